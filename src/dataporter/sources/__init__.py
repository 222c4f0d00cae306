"""What a pass consists of: dataporter's own order, a sampler of the user's own, or lanes."""
