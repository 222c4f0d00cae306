"""The files of the bucket that these tests read, and options by which nothing is late."""

import numpy as np

BUCKET = "corpus-bucket"
# Tries follow each other soon. No request is late because a machine is busy: a test of requests
# that are late, or of patience that ends, passes shorter times.
QUICK = {
    "patience": 60.0,
    "first_wait": 0.01,
    "longest_wait": 0.2,
    "least_timeout": 60.0,
    "least_delay": 60.0,
    "renewal": 60.0,
}
LARGE = np.random.default_rng(1).bytes(20 << 20)
FILES = {
    "data/a.bin": b"0123456789" * 100,
    "data/empty.bin": b"",
    "data/large.bin": LARGE,
    "data/more/b c%20+ü.bin": b"odd",
    "data.bin": b"beside the folder",
}
