"""Tools that examine loaders from outside. A training run imports nothing from here."""
