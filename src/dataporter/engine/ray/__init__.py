"""The Ray engine: actors on any node of a Ray cluster fetch ahead."""
