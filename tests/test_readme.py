"""The README's code runs unchanged, and resumes."""

import re
from contextlib import suppress
from pathlib import Path

from support import Augmented, passes, plain

from dataporter import ResumableDataLoader

README = Path(__file__).parents[1] / "README.md"


def the_ten_lines() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return code


class DiedError(Exception):
    """An error that represents the death of the machine."""


def test_the_ten_lines_resume_where_the_last_checkpoint_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = the_ten_lines()
    for shown, run in {
        "step % 100 == 99": "step % 4 == 3",
        "range(loader.epoch, 10)": "range(loader.epoch, 3)",
        "shuffle=True": "shuffle=True, seed=5",
        "...  ": "train(batch)",
    }.items():
        assert shown in code
        code = code.replace(shown, run)
    reference = ResumableDataLoader(Augmented(320), batch_size=32, shuffle=True, seed=5)
    wanted = [batch for epoch in passes(reference, 3) for batch in epoch]

    # Epochs of 10 batches, a checkpoint after 4 and 8 of each.
    for begins, dies_after in ((0, 7), (4, 7), (8, 30)):
        seen: list = []

        def train(batch, seen=seen, dies_after=dies_after):
            seen.append(plain(batch))
            if len(seen) == dies_after:
                raise DiedError

        with suppress(DiedError):
            exec(code, {"dataset": Augmented(320), "train": train})  # noqa: S102
        assert seen == wanted[begins : begins + dies_after]


def test_the_readme_is_short_and_has_no_hole():
    text = README.read_text()
    assert len(text.splitlines()) < 150
    assert "BENCH_" not in text
