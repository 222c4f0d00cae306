"""File formats, behind the protocol in `format`."""
