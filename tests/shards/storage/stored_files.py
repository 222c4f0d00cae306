"""The files of the bucket that these tests read, and options that give up soon."""

import numpy as np

BUCKET = "corpus-bucket"
QUICK = {
    "patience": 20.0,
    "first_wait": 0.01,
    "longest_wait": 0.2,
    "least_timeout": 0.5,
    "least_delay": 0.1,
    "renewal": 0.5,
}
LARGE = np.random.default_rng(1).bytes(20 << 20)
FILES = {
    "data/a.bin": b"0123456789" * 100,
    "data/empty.bin": b"",
    "data/large.bin": LARGE,
    "data/more/b c%20+ü.bin": b"odd",
    "data.bin": b"beside the folder",
}
