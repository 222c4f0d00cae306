"""The state's schema, what tells datasets apart, steps and timing of a loader."""
