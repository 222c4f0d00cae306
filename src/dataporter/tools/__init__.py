"""What looks at loaders from outside. Nothing here is imported by a training run."""
