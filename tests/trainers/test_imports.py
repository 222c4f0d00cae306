"""The cost of importing the package: no framework, and little time beyond torch's own."""

import ast
import compileall
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dataporter

SOURCE = Path(dataporter.__file__).parent

# Each integration may import frameworks of one of these families at its top.
FAMILIES = [
    {"accelerate", "transformers"},
    {"lightning", "lightning_fabric", "pytorch_lightning"},
    {"ray"},
]
CLI = {"click", "rich", "typer"}
STORAGE = {"fsspec", "obstore"}
OTHERS = {"datasets", "pandas", "pyarrow", "tokenizers", "torchdata", *CLI, *STORAGE}
FRAMEWORKS = set().union(OTHERS, *FAMILIES)

# What needs no framework, so that it may be imported without one.
FREE = {
    *("loader_states", "logged_stats", "distributed_checkpoint"),
}

USE = """
import sys, tempfile
import {modules}
from dataporter import ResumableDataLoader
loader = ResumableDataLoader(range(40), 4, shuffle=True, num_workers=2)
batches = iter(loader)
next(batches)
state = loader.state_dict()
with tempfile.TemporaryDirectory() as folder:
    dataporter.training.CheckpointManager(folder).save(epoch=0, dataloader=loader)
loader.load_state_dict(state)
assert len(list(loader)) == 9
print(*sorted({{name.split(".")[0] for name in sys.modules}}))
"""


def modules() -> Iterator[str]:
    """All of the package's, but the command's, integrations' and those about data in files."""
    for found in pkgutil.walk_packages([str(SOURCE)], "dataporter."):
        room, _, name = found.name.removeprefix("dataporter.").partition(".")
        reads_files = name == "index" or name.startswith("plan.")
        if (room == "shards" and name) or (room == "tools" and reads_files):
            continue  # they read files with pyarrow
        if room in ("trainers", "integrations") and name:
            if name in FREE:
                yield found.name
        elif room != "__main__" and not name.startswith("cli."):
            yield found.name


def python(code: str, path: Path = SOURCE.parent) -> subprocess.CompletedProcess:
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer


def test_using_the_package_brings_no_framework():
    named = list(modules())
    assert "dataporter.training.checkpoint" in named
    answer = python(USE.format(modules=", ".join(named)))
    brought = set(answer.stdout.split())
    assert "dataporter" in brought
    assert not brought & FRAMEWORKS


def imports_at_the_top(path: Path) -> set[str]:
    """The packages that a file imports when it is imported itself."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return found


def test_only_an_integration_imports_a_framework_and_only_its_own():
    for path in SOURCE.rglob("*.py"):
        frameworks = imports_at_the_top(path) & FRAMEWORKS
        room, name = path.relative_to(SOURCE).parts[0], path.parent.name
        if name == "cli":
            assert frameworks <= CLI, path
        elif name == "storage":
            assert frameworks <= STORAGE, path
        elif room == "shards":
            assert frameworks <= {"pyarrow"}, path
        elif room == "trainers":
            assert not frameworks or any(frameworks <= family for family in FAMILIES), path
        else:
            assert not frameworks, path
    assert imports_at_the_top(SOURCE / "trainers" / "ray.py") & FRAMEWORKS == {"ray"}


# Without the garbage collector: when it looks through all of torch's objects is chance.
IMPORT = """
import gc, time
gc.disable()
started = time.thread_time()
import torch, torch.utils.data
torchs = time.thread_time() - started
started = time.thread_time()
{statement}
took = time.thread_time() - started
import dataporter
print(took / torchs, dataporter.__file__)
"""


@pytest.mark.parametrize(
    ("statement", "largest_share"),
    [("import dataporter", 0.005), ("from dataporter import ResumableDataLoader", 0.08)],
)
def test_importing_takes_a_small_share_of_the_time_that_torch_takes(
    statement, largest_share, tmp_path
):
    copied = tmp_path / "dataporter"
    shutil.copytree(SOURCE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(copied, quiet=1)  # as an installed package is
    shares = []
    for _ in range(5):  # the smallest share is the least disturbed one
        share, path = python(IMPORT.format(statement=statement), path=tmp_path).stdout.split()
        assert Path(path).parent == copied
        shares.append(float(share))
        if shares[-1] < largest_share:
            break
    assert min(shares) < largest_share, shares
