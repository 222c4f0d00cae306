"""The operating system: memory, processes, signals, files. No torch is imported here."""
