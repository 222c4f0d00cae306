"""The `dataporter` command."""
