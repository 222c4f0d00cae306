"""File formats: one file each, behind the protocol in `format`."""
