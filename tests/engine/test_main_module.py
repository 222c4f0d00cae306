"""What is defined in a main module that other processes cannot import."""

import subprocess
import sys

from forked_scripts import run
from watching import environment

DEFINITIONS = """
import sys
import torch
from dataporter import DataPorterError, ResumableDataLoader
from dataporter.converters import DtypeConverter

sys.ps1 = sys.ps2 = ""  # an interactive session prompts for more

class Here(torch.utils.data.Dataset):
    __len__ = (8).__int__
    __getitem__ = torch.tensor

class Stream(torch.utils.data.IterableDataset):
    __iter__ = range(8).__iter__

class Holder(list):
    pass

class Converter(DtypeConverter):
    pass

def collate(samples): return samples

def init(worker): pass

cases = {
    "class Here": dict(dataset=Here()),
    "class Stream": dict(dataset=Stream()),
    "class Holder": dict(dataset=torch.utils.data.Subset([Holder()], [0])),
    "class Converter": dict(dataset=range(8), converter=Converter("float16")),
    "function collate": dict(dataset=range(8), collate_fn=collate),
    "function init": dict(dataset=range(8), worker_init_fn=init),
}

def told(method, **options):
    try: next(iter(ResumableDataLoader(num_workers=2, multiprocessing_context=method, **options)))
    except DataPorterError as error: return f"{type(error).__name__}: {error}"
    return "worked"

"""
EACH = """
for method in ("spawn", "forkserver"):
    for name, options in cases.items():
        words = told(method, **options)
        expected = f"{method!r}: {name} is defined in a notebook, an interactive session or a"
        assert "OptionError: " in words and expected in words, (name, words)
        assert "module" in words and "multiprocessing_context='fork'" in words, words
    words = told(method, dataset=range(8), collate_fn=lambda samples: samples)
    assert "lambda" in words and "notebook" not in words, words  # no module would help

print("told" if told("fork", dataset=Here()) == "worked" else "not forked")
"""
STDIN = """
print(told("spawn", dataset=range(8)))
print(told("forkserver", dataset=range(8)))
print(told("fork", dataset=Here()))
"""


def printed(*arguments: str, stdin: str = "") -> str:
    """Run Python, which neither fails nor says anything on stderr; what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_a_command_may_not_send_what_it_defines():
    assert run(DEFINITIONS + EACH) == "told\n"


def test_an_interactive_session_may_not_send_what_it_defines():
    assert printed("-i", stdin=DEFINITIONS + EACH).endswith("told\n")


def test_a_script_from_stdin_starts_no_workers_that_are_not_forked():
    spawned, served, forked = printed("-", stdin=DEFINITIONS + STDIN).splitlines()
    for method, words in (("spawn", spawned), ("forkserver", served)):
        assert words.startswith("WorkerStartError: the script comes from <stdin>"), words
        assert f"{method!r}" in words
        assert "multiprocessing_context='fork'" in words
    assert forked == "worked"
