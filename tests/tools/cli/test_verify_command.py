"""`dataporter verify` as a user runs it: statuses, words, pipes, terminals, interrupts."""

import contextlib
import json
import os
import re
import signal
import sys
import time

import pytest
from forked_commands import in_terminal, piped
from terminals import marked
from watching import until

from dataporter.tools import cli
from dataporter.tools.cli.loaders import _CheckPrinter
from dataporter.tools.cli.main import run
from dataporter.tools.sandbox import Sandbox, sandbox
from dataporter.tools.sandbox.processes import fresh_interpreters
from dataporter.tools.sandbox.sandbox import HASH_SEEDS
from dataporter.tools.verify.runs import Run, run_in

SHOP = """
import os, sys, time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from dataporter import ResumableDataLoader

print("loaded the shop")


class Photos(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"image": torch.full((2, 2), float(index)) + torch.rand(()), "label": index % 10}


    @staticmethod
    def make_loader():
        return make_loader()


class Noisy(Photos):
    rng = np.random.default_rng()

    def __getitem__(self, index):
        print("fetching", index)
        return {"image": torch.full((2, 2), float(index)) + self.rng.normal(), "label": index % 10}


class Module:
    def setup(self, stage):
        self.data = {"fit": Photos()}[stage]

    def train_dataloader(self):
        return ResumableDataLoader(self.data, batch_size=8)


class SeveralLoaders(Module):
    def train_dataloader(self):
        return {"photos": ResumableDataLoader(self.data, batch_size=8)}


class Slow(Photos):
    def __getitem__(self, index):
        time.sleep(0.05)
        return super().__getitem__(index)


def make_loader():
    return ResumableDataLoader(Photos(), batch_size=8, shuffle=True)


def make_noisy():
    return ResumableDataLoader(Noisy(), batch_size=8, shuffle=True)


def make_slow():
    return ResumableDataLoader(Slow(), batch_size=8, num_workers=2)


def make_torchs():
    return DataLoader(Photos(), batch_size=8, shuffle=True)


kept = make_loader()


def make_kept():
    return kept


def make_nothing():
    pass


def make_trouble():
    raise LookupError("no folder 'photos'")


def make_exit():
    sys.exit(3)


def make_end():
    os._exit(3)


def make_from(folder):
    return make_loader()


def make_broken():
    return ResumableDataLoader([torch.zeros(2), torch.zeros(3)], batch_size=2)


def make_empty():
    return ResumableDataLoader([], batch_size=2)


def hang():
    time.sleep(1000)


number = 7
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder with a package that is not ours, and in it."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "data.py").write_text(SHOP)
    (package / "broken.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def flat(text):
    """A text without its line breaks."""
    return " ".join(text.split())


def verified(capsys, *arguments):
    """Run the command in this process; its status, and what it printed."""
    with pytest.raises(SystemExit) as ended:
        run(["verify", *arguments])
    printed = capsys.readouterr()
    return ended.value.code or 0, printed.out, printed.err


ONE_HASH = {"PYTHONHASHSEED": "0"}  # one for all: fewer interpreters are started
QUICK = ("--batches", "3", "--points", "0", "--workers", "0")


def test_an_exact_loader_ends_with_status_0(shop, capsys):
    status, out, err = verified(capsys, "shop.data:make_loader", *QUICK)
    assert (status, err) == (0, "")
    assert out.startswith("ResumableDataLoader over Photos, 64 samples, batches of 8, shuffled")
    assert re.search(r"^EXACT: all \d+ checks", out, re.MULTILINE)


def test_a_wrong_one_ends_with_status_1_and_says_what_where_and_why(shop, capsys):
    status, out, err = verified(capsys, "shop.data:make_noisy", *QUICK)
    assert (status, err) == (1, "")
    words = flat(out)
    assert re.search(r"epoch 0, batch 1, sample 0 \(position 0, index \d+\), at image: exp", words)
    assert "NOT EXACT" in words
    assert "a generator of its own: Noisy.rng, NumPy's Generator" in words
    assert "dataporter.sample_rng()" in words
    assert "fetching" not in out
    assert "loaded" not in out


def test_of_many_differences_the_first_two_are_shown(shop, capsys):
    _, out, _ = verified(capsys, "shop.data:make_noisy", *QUICK)
    assert out.count("  DIFFERS  ") == 3
    assert re.search(r"DIFFERS \d+ more: numbers of workers, killed workers, .*ranks", flat(out))


def test_a_part_of_the_checks_ends_with_a_status_of_its_own(shop, capsys, monkeypatch):
    ahead = [0.0]
    monkeypatch.setattr(sandbox, "monotonic", lambda: time.monotonic() + ahead[0])
    note = _CheckPrinter.note

    def note_and_hurry(self, check):
        note(self, check)
        ahead[0] = 1e6 * check.name.startswith("after")

    monkeypatch.setattr(_CheckPrinter, "note", note_and_hurry)
    status, out, err = verified(capsys, "shop.data:make_loader", *QUICK, "--json")
    assert (status, err) == (3, "")
    assert json.loads(out)["outcome"] == "incomplete"


def test_json_has_all_of_it_and_nothing_else(shop, capsys):
    status, out, err = verified(capsys, "shop.data:make_noisy", *QUICK, "--json", "--fail-fast")
    report = json.loads(out)
    assert (status, err) == (1, "")
    assert (report["outcome"], report["exact"]) == ("differs", False)
    assert report["cause"]["kind"] == "generator"
    assert report["checks"][-1]["outcome"] == "differs"
    assert report["seconds"] > 0


def test_the_same_seed_tries_the_same_interruptions(shop, capsys):
    def names(seed):
        others = ("--workers", "0", "--batch-size", "4", "--world-size", "1", "--points", "2")
        arguments = ("--batches", "5", "--seed", seed, *others, "--json")
        report = json.loads(verified(capsys, "shop.data:make_loader", *arguments)[1])
        return [check["name"] for check in report["checks"]]

    first = names("1")
    assert names("1") == first
    assert names("2") != first


BAD = {
    "shop.data:make_kept": "had not made",
    "shop.data:SeveralLoaders": (
        r"train_dataloader\(\) of SeveralLoaders returned a builtins.dict, not a loader. Name a "
        "function that returns one of its loaders"
    ),
    "shop.data:make_nothing": "returned None, not a loader",
    "shop.data:make_trouble": "the factory failed: LookupError: no folder 'photos'",
    "shop.data:make_exit": "the factory failed: SystemExit: 3",
    "shop.data:make_end": "ended while the factory ran",
    "shop.data:make_from": r"make_from\(\) must work without arguments, but it requires 'folder'",
    "shop.data:make_broken": "the loader failed: .*",
    "shop.data:make_empty": "delivered no batch",
    "shop.data:number": "cannot be called: its type is int",
    "shop.data:make_lodaer": "has no 'make_lodaer'. Did you mean 'make_loader'",
    "shop.dat:make_loader": "no module 'shop.dat'",
    "stop.data:make_loader": "no module 'stop'",
    "shop.broken:make_loader": "the import failed: ModuleNotFoundError: .*nowhere_to_be_found",
    "nowhere/data.py:make_loader": "There is no file nowhere/data.py",
    "shop.data:Photos.mak_loader": "has no 'Photos.mak_loader'. Did you mean 'Photos.make_loader'",
    "shop.data:number.nothing": "has no 'number.nothing'",
    "shop.data": r"package.module:function or path/to/file.py:function, found 'shop.data'",
    ":make_loader": "package.module:function",
    "shop/data.py": "path/to/file.py:function, found 'shop/data.py'",
    "shop/data.py:make_lodaer": "has no 'make_lodaer'. Did you mean 'make_loader'",
}


@pytest.mark.parametrize("factory", BAD)
def test_bad_input_ends_with_status_2_and_plain_words(factory, shop, capsys):
    status, out, err = verified(capsys, factory, *QUICK)
    assert (status, out) == (2, "")
    assert re.search(BAD[factory], flat(err))
    assert err.startswith("dataporter: ")
    assert "Traceback" not in err


PATHS = {
    "in a package here": "shop/data.py",
    "the package itself": "shop/__init__.py",
    "beside the module that it imports": "{folder}/tools/train.py",
    "in a package elsewhere": "{folder}/elsewhere/store/goods/stock.py",
    "whose name cannot be imported": "tools/2nd-stock.py",
    "with the name of a module that is imported already": "tools/random.py",
}


@pytest.mark.parametrize("where", PATHS)
def test_a_function_is_named_by_the_path_of_its_file(where, shop, capsys):
    (shop / "shop" / "__init__.py").write_text("from shop.data import make_loader\n")
    goods = shop / "elsewhere" / "store" / "goods"
    goods.mkdir(parents=True)
    (shop / "tools").mkdir()
    for package in (goods.parent, goods):
        (package / "__init__.py").touch()
    (goods / "shelf.py").write_text(SHOP)
    (goods / "stock.py").write_text("from .shelf import make_loader\n")
    (shop / "tools" / "beside.py").write_text(SHOP)
    for name in ("train.py", "2nd-stock.py", "random.py"):
        (shop / "tools" / name).write_text("from beside import make_loader\n")
    path = PATHS[where].format(folder=shop)
    factory = f"{path}:make_loader"
    assert sandboxed(factory) == "Photos"


def sandboxed(factory):
    """Make the loader of a factory in the sandbox; the name of its dataset."""
    with contextlib.closing(Sandbox(factory, Run, seconds=60)) as sandbox:
        facts, result = run_in(sandbox, Run(batches=1))
    assert result.problem is None
    return facts.dataset


def test_a_data_module_is_verified_by_its_loader_for_training(shop, capsys):
    status, out, err = verified(capsys, "shop/data.py:Module", *QUICK)
    assert (status, err) == (0, "")
    assert out.startswith("ResumableDataLoader over Photos, 64 samples, batches of 8, 0 workers")


def test_a_torch_loader_is_shown_what_it_loses_and_what_would_change(shop, capsys):
    status, out, err = verified(capsys, "shop.data:make_torchs", *QUICK)
    assert (status, err) == (1, "")
    before, after, verdict = out.split("\n\n")
    assert before.startswith("torch's DataLoader over Photos, 64 samples, batches of 8, 0 workers")
    assert before.count("  DIFFERS  ") == 4
    assert after.startswith("With dataporter and the same arguments: ResumableDataLoader")
    assert "DIFFERS" not in after
    assert verdict.startswith("As it is, NOT EXACT: 4 of 4 checks differ.\nWith dataporter, EXACT")
    assert "dataporter.ResumableDataLoader, which takes the same arguments" in flat(verdict)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--batches", "0", "batches must be at least 2, found 0"),
        ("--seconds", "-1", "seconds must be finite and above 0"),
        ("--workers", "-1", "workers must be at least 0"),
        ("--batches", "many", "'--batches'"),
    ],
)
def test_an_impossible_option_is_bad_input(option, value, words, shop, capsys):
    status, out, err = verified(capsys, "shop.data:make_loader", option, value)
    assert (status, out) == (2, "")
    assert words in flat(err)


def test_a_factory_that_hangs_is_given_up_after_its_seconds(shop, capsys):
    status, _, err = verified(capsys, "shop.data:hang", "--seconds", "0.3")
    assert status == 2
    assert re.search(r"has (not returned|not ended|delivered too little) after 0\.3 s", flat(err))


def test_tracebacks_are_shown_with_debug_wherever_it_stands(shop, capfd):
    for arguments in (
        ("--debug", "verify", "shop.data:make_trouble"),
        ("verify", "shop.data:make_trouble", "--debug"),
    ):
        with pytest.raises(SystemExit) as ended:
            run(arguments)
        printed = capfd.readouterr()
        assert ended.value.code == 2
        assert 'raise LookupError("no folder' in printed.err
        assert printed.out == ""


def test_without_its_extra_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "dataporter.tools.cli.main")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as ended:
        cli.start()
    assert ended.value.code == 2
    assert "typer is not installed" in (err := capsys.readouterr().err)
    assert 'pip install "torch-dataporter[cli]"' in err


# As a process


def test_piped_output_has_no_colours_and_fits_into_80_columns(shop):
    command = ("verify", "shop.data:make_noisy", *QUICK, "--fail-fast")
    status, out, err = piped(*command, cwd=shop, COLUMNS="80", **ONE_HASH)
    assert (status, err) == (1, "")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert "NOT EXACT" in out


SLOW = ("verify", "shop.data:make_slow", "--batches", "4")


def test_a_terminal_has_colours_and_whole_lines_and_ctrl_c_leaves_nothing_behind(shop):
    before = sorted(shop.rglob("*"))
    mark = f"terminal-{os.getpid()}"
    with in_terminal(*SLOW, cwd=shop, mark=mark, COLUMNS="80", **ONE_HASH) as terminal:
        terminal.read_until(b"exact  ")
        assert len(marked(mark)) >= 2  # interpreters, hosts
        terminal.press(b"\x03")
        assert terminal.status() == 130
    until(lambda: not marked(mark), seconds=60)
    assert b"\x1b[32m  exact" in terminal.shown
    assert re.search(rb"interrupting and resuming: \d+ of \d+ checks", terminal.shown)
    assert terminal.widest() <= 80
    assert terminal.text().rstrip().endswith("dataporter: interrupted.")
    after = [path for path in shop.rglob("*") if "__pycache__" not in path.parts]
    assert sorted(after) == before


def test_a_kill_leaves_no_process(shop):
    mark = f"killed-{os.getpid()}"
    with in_terminal(*SLOW, cwd=shop, mark=mark, **ONE_HASH) as terminal:
        terminal.read_until(b"ResumableDataLoader")
        assert len(marked(mark)) >= 2
        os.kill(terminal.pid, signal.SIGKILL)
        assert terminal.status() == -signal.SIGKILL
    until(lambda: not marked(mark), seconds=60)


def test_an_interpreter_that_has_ended_is_started_again_and_debug_shows_what_is_printed(
    shop, capfd, monkeypatch
):
    monkeypatch.syspath_prepend(shop)  # as the command does
    monkeypatch.setenv("PYTHONHASHSEED", HASH_SEEDS[0])  # of the first interpreter: no other runs
    assert sandboxed("shop.data:make_loader") == "Photos"
    process, _ = fresh_interpreters._started[HASH_SEEDS[0]]
    process.kill()
    process.wait()
    status, out, err = verified(capfd, "shop.data:make_noisy", *QUICK, "--debug")
    assert status == 1
    assert "fetching" not in out
    assert "loaded the shop\n" in err
    assert re.search(r"^fetching \d+$", err, re.MULTILINE)
