"""A loader over data in files, in tracks, with noise; the folder is in the environment."""

import os
from pathlib import Path

from planted import loader
from tracked import Tracked

from dataporter import sample_rng

FOLDER = "PLANTED_FILES"


def noisy(sample):
    return sample["id"], float(sample_rng().random())


def make_loader():
    folder = Path(os.environ[FOLDER])
    corpus = Tracked(folder / "rows.parquet", cache=folder / "cache", transform=noisy)
    return loader(corpus, shuffle=True)
