"""`make mutants`: changes to the code that no test notices.

Each change is made in a copy of src/, which PYTHONPATH puts before the installed package, for
child processes too. The working tree stays as it is, so a run may be interrupted at any time.

A change goes unnoticed if a test is missing, the code is not needed, or both do the same.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mutations import Change, changes, chosen

# Tests that prove a room's promises, beside those in the room's own folder.
FURTHER = {
    "law": (
        *("tests/properties", "tests/golden", "tests/sources", "tests/loader"),
        "tests/test_seek.py",
    ),
    "sources": (
        *("tests/properties", "tests/golden", "tests/loader"),
        *("tests/test_seek.py", "tests/utils"),
    ),
    "fetch": (
        *("tests/properties", "tests/converters", "tests/sources/lanes", "tests/tools/profile"),
        *("tests/engine/test_skipping.py", "tests/training/test_*collator.py"),
    ),
    "engine": ("tests/faults", "tests/sources", "tests/cluster", "tests/tools/profile"),
    "system": ("tests/faults", "tests/engine", "tests/shards/test_*.py"),
    "shards": ("tests/distributed/test_sharded_groups.py", "tests/golden", "tests/views"),
    "views": ("tests/properties", "tests/golden", "tests/law/test_tracks.py"),
}
SHORT = 20  # seconds of tests in one run of pytest, so that a test that hangs ends soon
# Bytecode counts as that of a file of the same size, changed within the same second.
_COMPILED = shutil.ignore_patterns("__pycache__")
say = partial(print, flush=True)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Runs files of tests over copies of src/."""

    root: Path
    folder: Path  # for the copies
    seconds: float | None
    times: dict[str, float] = field(default_factory=dict)  # of each file over unchanged code
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """A folder for one job, with a copy of src/ as it was when the script began."""
        job = Path(tempfile.mkdtemp(dir=self.folder))
        shutil.copytree(self.folder / "src", job / "src", ignore=_COMPILED)
        try:
            yield job
        finally:
            shutil.rmtree(job, ignore_errors=True)

    def measure(self, file: str) -> str | None:
        """Run one file of tests over unchanged code; return the test that fails."""
        with self.copy() as job:
            began = time.monotonic()
            failed = self._run([file], job, self.seconds or 600)
            self.times[file] = time.monotonic() - began
        return failed

    def noticed_by(self, change: Change, room: str, files: list[str]) -> str | None:
        """Return the first test that fails with a change."""
        with self.copy() as job:
            target = job / "src" / change.path
            target.write_bytes(change.changed)
            for run in self._runs(target, f"tests/{room}/", files):
                limit = max(60, 10 * sum(self.times.get(file, 0) for file in run))
                if failed := self._run(run, job, self.seconds or limit):
                    return failed
        return None

    def _runs(self, target: Path, folder: str, files: list[str]) -> Iterable[list[str]]:
        """Divide tests into runs: the module's own, the room's, the rest; cheap ones first."""
        groups: list[list[str]] = [[str(target)], [], []]  # the first has its doctests
        for file in sorted(files, key=self.times.__getitem__):
            is_own = Path(file).stem == f"test_{target.stem}"
            groups[0 if is_own else 1 if file.startswith(folder) else 2].append(file)
        for group in groups:
            runs: list[list[str]] = [[]]
            for file in group:
                if sum(self.times.get(each, 0) for each in [*runs[-1], file]) > SHORT:
                    runs.append([])
                runs[-1].append(file)
            yield from filter(None, runs)

    def _run(self, files: list[str], job: Path, seconds: float) -> str | None:
        """Return the test that fails, `hung` if they take too long, None if all pass."""
        path = os.pathsep.join(filter(None, [str(job / "src"), os.environ.get("PYTHONPATH")]))
        own = {"PYTHONPATH": path, "HYPOTHESIS_STORAGE_DIRECTORY": str(job / "hypothesis")}
        own["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-m", "not soak"]
        command += ["-p", "no:cacheprovider", "--doctest-modules", f"--basetemp={job / 'tmp'}"]
        command += [f"--rootdir={self.root}", "-c", str(self.root / "pyproject.toml")]
        said = job / "said"  # a file, for which nobody waits if a child keeps it open
        with said.open("w") as output:
            process = subprocess.Popen(
                [*command, *(file for file in files if (self.root / file).exists())],
                cwd=self.root,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.add(process)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return "hung"
        finally:
            self.end(process)
        if process.returncode in (0, 5):  # 5: no tests, such as a module without doctests
            return None
        text = said.read_text(errors="replace")
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE)
        return found[1] if found else f"pytest ended with {process.returncode}: {text[-300:]}"

    def end(self, *processes: subprocess.Popen[bytes]) -> None:
        """Kill runs, and the children that they have left."""
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.running.discard(process)


def files_of(root: Path, paths: Iterable[str], ignored: list[str]) -> list[str]:
    """Return the test files of some files, folders and patterns, relative to the root."""
    found: set[Path] = set()
    for path in paths:
        tops = list(root.glob(path))
        if not tops:
            sys.exit(f"No tests in {path}. Correct FURTHER in {Path(__file__).name}, or --also.")
        found.update(*(top.rglob("*.py") if top.is_dir() else [top] for top in tops))
    tests = sorted(file.relative_to(root) for file in found if file.name.startswith("test_"))
    return [str(file) for file in tests if not any(file.is_relative_to(each) for each in ignored)]


def main(arguments: list[str] | None = None) -> None:
    """Try random changes, and list those that no test noticed."""
    options = _parsed(arguments)
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        shutil.copytree(options.root / "src", Path(folder, "src"), ignore=_COMPILED)
        bench = Bench(root=options.root, folder=Path(folder), seconds=options.seconds)
        pool = ThreadPoolExecutor(options.jobs)
        try:
            rows = _tried(options, bench, pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            bench.end(*bench.running)
    if options.out:
        options.out.write_text(json.dumps({"times": bench.times, "changes": rows}, indent=1))
    say(f"\n{'room':10}{'changes':>8}{'noticed':>9}{'share':>8}")
    for room in options.rooms:
        noticed = [bool(row["noticed_by"]) for row in rows if row["room"] == room]
        share = f"{sum(noticed) / len(noticed):.0%}" if noticed else "-"
        say(f"{room:10}{len(noticed):8}{sum(noticed):9}{share:>8}")
    say("\nNot noticed:")
    for row in rows:
        if not row["noticed_by"]:
            say(f"src/{row['path']}:{row['line']}  {row['before']} -> {row['after']}")


def _tried(options: Any, bench: Bench, pool: ThreadPoolExecutor) -> list[dict[str, Any]]:
    """Try changes to each room, and say for each which test noticed it."""
    source, files, picked = bench.folder / "src", {}, []
    for number, room in enumerate(options.rooms):
        paths = [f"tests/{room}", *FURTHER.get(room, ()), *options.also]
        files[room] = files_of(options.root, paths, options.ignore)
        count = options.n // len(options.rooms) + (number < options.n % len(options.rooms))
        modules = sorted(source.glob(f"*/{room}/**/*.py"))
        found = [change for module in modules for change in changes(module, source)]
        dice = random.Random(f"{options.seed} {room}")
        picked += [(room, change) for change in chosen(found, count, dice)]
    if options.times:
        bench.times.update(json.loads(options.times.read_text())["times"])
    needed = sorted({file for each in files.values() for file in each} - bench.times.keys())
    for file, failed in zip(needed, pool.map(bench.measure, needed), strict=True):
        if failed:
            sys.exit(f"{file} fails without a change: {failed}. Mend it, or --ignore it.")
    say(f"Unchanged code passes {len(needed)} files of tests.")

    def tried(job: tuple[str, Change]) -> dict[str, Any]:
        room, change = job
        by, (before, after) = bench.noticed_by(change, room, files[room]), change.shown
        say(f"{change.path}:{change.line}  {before} -> {after}  [{by or 'not noticed'}]")
        shown = {"kind": change.kind, "before": before, "after": after, "noticed_by": by}
        return {"room": room, "path": change.path, "line": change.line, **shown}

    return list(pool.map(tried, picked))


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rooms", nargs="+", default=list(FURTHER), help="folders of the package")
    parser.add_argument("-n", type=int, default=40, help="changes in all")
    parser.add_argument("--seed", default="0", help="other changes for each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs side by side")
    parser.add_argument("--seconds", type=float, help="of one run; else 10 times an unchanged one")
    parser.add_argument("--also", nargs="*", default=[], help="further tests for every room")
    parser.add_argument("--ignore", nargs="*", default=[], help="tests that cannot run here")
    parser.add_argument("--times", type=Path, help="an earlier report, for its unchanged run")
    parser.add_argument("--out", type=Path, help="a report as JSON")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="of the tree")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
