"""A loader put together: its options, its source and engine, numbered batches, a look back."""
