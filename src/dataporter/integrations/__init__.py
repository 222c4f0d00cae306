"""Earlier paths of `dataporter.trainers`."""
