"""Former import paths of `dataporter.trainers`."""
