"""The sources of passes: dataporter's own order, a sampler of the user's own, or lanes."""
