"""Systems that these tests do not run on: SIMULATIONS, on Linux.

What a system lacks is taken away from Python before anything imports it, in every process. That
shows that the rest does without it. It does not show that a real macOS or Windows has nothing else
that is in the way.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from forked_scripts import mounting, run, run_to_end, started
from test_environment import may_mount
from watching import environment, is_running, until

from dataporter import UnsupportedSystemError
from dataporter.engine import arena

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="simulations of other systems")

# Python runs a module of this name in each process before all else.
TAKING_AWAY = "sitecustomize.py"

WITHOUT_MEMFD_IN_PYTHON = """
import os
del os.memfd_create
"""

WITHOUT_MEMFD = """
import ctypes, os
del os.memfd_create

class CDLL(ctypes.CDLL):
    def __getattr__(self, name):
        if self._name is None and name in lacking:
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = CDLL
lacking = {"memfd_create"}
"""

# Also no pidfd, no prctl, no way to reserve a file's space or to punch holes into it, no /proc.
LIKE_MACOS = (
    WITHOUT_MEMFD
    + """
import mmap, sys
import urllib.request  # which would import a module of macOS's
lacking |= {"mallopt", "prctl"}
for name in ("pidfd_open", "posix_fallocate", "sched_getaffinity"):
    delattr(os, name)
del mmap.MADV_REMOVE

def open_but_not_proc(path, *arguments, opened=os.open, **more):
    if str(path).startswith("/proc/"):
        raise FileNotFoundError(2, "there is no such thing on macOS", path)
    return opened(path, *arguments, **more)

os.open = open_but_not_proc
sys.platform = "darwin"
"""
)

# To be run once torch is there, which on a real Windows is another torch.
LIKE_WINDOWS = """
import asyncio, concurrent.futures, logging.handlers, multiprocessing.connection, socket
import ctypes, mmap, os, select, signal, subprocess, sys, tempfile
import torch

lacking = {
    os: "fork forkpty getpgid getuid killpg memfd_create mkfifo O_CLOEXEC O_DIRECTORY O_NONBLOCK "
        "pidfd_open posix_fallocate posix_spawn pread pwrite register_at_fork sched_getaffinity "
        "setsid statvfs sysconf uname WNOHANG",
    signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGSTOP SIGUSR1 SIGUSR2 alarm "
        "pthread_kill pthread_sigmask setitimer sigwait",
    select: "epoll poll",
    mmap: "MADV_REMOVE MAP_SHARED PROT_READ PROT_WRITE",
}
for module, names in lacking.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None

class CDLL(ctypes.CDLL):
    def __init__(self, name, *arguments, **more):
        if name is None:
            raise TypeError("LoadLibrary() argument 1 must be str, not None")
        super().__init__(name, *arguments, **more)

ctypes.CDLL = CDLL
sys.platform = "win32"
"""

# Another default of multiprocessing's is the script's own matter.
SETUP = """
import multiprocessing, os, signal, sys, tempfile, warnings
import torch
from support import Augmented, Ids, passes, plain
from streamed import IteratorShards
from watching import arena_bytes
from dataporter import ResumableDataLoader, WorkerRestartWarning

class Growing(Ids):
    '''Sample i is i, so many times that a later batch is far larger than the first.'''
    def __getitem__(self, index):
        return torch.full((index * 2000,), index, dtype=torch.int16)

def same(value):
    return value
"""


@pytest.fixture(scope="module")
def without_memfd(tmp_path_factory):
    """A folder that stands first in the path of a system without memfd_create."""
    return taking_away(tmp_path_factory.mktemp("without_memfd"), WITHOUT_MEMFD)


@pytest.fixture(scope="module")
def like_macos(tmp_path_factory):
    return taking_away(tmp_path_factory.mktemp("like_macos"), LIKE_MACOS)


def taking_away(folder: Path, source: str) -> Path:
    (folder / TAKING_AWAY).write_text(source)
    return folder


def keeping_files_in(temporary: Path) -> str:
    """Source with which a script begins whose temporary files go to a folder."""
    return f"""
import os, tempfile
os.environ["TMPDIR"] = tempfile.tempdir = {str(temporary)!r}
"""


def written(folder: Path, script: str, temporary: Path | None = None) -> Path:
    """Write a script whose temporary files go where it is told."""
    temporary = temporary or folder / "temporary"
    temporary.mkdir(exist_ok=True)
    body = textwrap.indent(textwrap.dedent(script), "    ")
    path = folder / "script.py"
    path.write_text(f"{keeping_files_in(temporary)}{SETUP}\nif __name__ == '__main__':\n{body}")
    return path


@pytest.fixture(params=["disk", "tmpfs"])
def temporary(request, tmp_path):
    """A temporary folder of either kind; what is left in it at the end is an error."""
    if request.param == "disk":
        folder = tmp_path / "on disk"
        folder.mkdir()
    else:
        folder = Path("/dev/shm") / f"dataporter-{os.getpid()}"  # noqa: S108  it is a tmpfs
        if not os.access("/dev/shm", os.W_OK):  # noqa: S108  likewise
            pytest.skip("no /dev/shm to write to")
        folder.mkdir()
    yield folder
    left = [path for path in folder.iterdir() if not path.name.startswith(("pymp-", "torch-"))]
    for path in folder.iterdir():
        path.rmdir()
    folder.rmdir()
    assert left == []


# A Linux whose Python has no os.memfd_create


def test_simulated_python_without_memfd_takes_it_from_the_c_library(tmp_path):
    script = """
        assert not hasattr(os, "memfd_create")
        loader = ResumableDataLoader(Ids(40), 4, shuffle=True, seed=1, num_workers=2)
        batches = iter(loader)
        next(batches)
        assert arena_bytes() > 0  # of memfds alone
    """
    run(written(tmp_path, script), first=taking_away(tmp_path, WITHOUT_MEMFD_IN_PYTHON))


GROWING = """
expected = [plain(batch) for batch in ResumableDataLoader(Growing(60), None)]
for method, workers in {workers}.items():
    loader = ResumableDataLoader(
        Growing(60), None, num_workers=workers, collate_fn=same, persistent_workers=True,
        multiprocessing_context=method)
    kept = list(loader)
    assert [plain(batch) for batch in kept] == expected
    del kept  # their slots are used again
    assert [plain(batch) for batch in loader] == expected
"""


def test_simulated_linux_without_memfd_uses_a_file_that_grows(tmp_path, temporary, without_memfd):
    script = GROWING.format(workers={"fork": 2})
    run(written(tmp_path, script, temporary), first=without_memfd)


@pytest.mark.skipif(not may_mount(), reason="a small temporary folder needs user name spaces")
def test_simulated_linux_without_memfd_says_that_its_temporary_folder_is_full(
    tmp_path, without_memfd
):
    shown = run(
        mounting(tmp_path, "size=64m")
        + keeping_files_in(tmp_path)
        + textwrap.dedent("""
        import torch
        from dataporter import ResumableDataLoader
        batch = torch.zeros(8, 40_000_000, dtype=torch.uint8)
        try:
            list(ResumableDataLoader(batch, 1, num_workers=1))
        except OSError as error:
            print(error)
        """),
        first=without_memfd,
    )
    assert "No space left" in shown
    assert "Set TMPDIR to a folder with more room" in shown


def test_a_batch_that_does_not_fit_a_simulated_arena_is_an_error(tmp_path):
    with (tmp_path / "arena").open("wb") as file, pytest.raises(UnsupportedSystemError) as caught:
        arena.Slot(file.fileno(), 1).reach(2**30 + 1)
    assert "larger than 1,073,741,824 bytes" in str(caught.value)
    assert "engine='threads'" in str(caught.value)


# macOS


@pytest.mark.parametrize(
    "temporary", ["disk", pytest.param("tmpfs", marks=pytest.mark.soak)], indirect=True
)
def test_simulated_macos_delivers_forked_and_spawned(tmp_path, temporary, like_macos):
    script = GROWING.format(workers={"fork": 2, "spawn": 1})
    run(written(tmp_path, script, temporary), first=like_macos)


KILLED = """
def killed(loader):
    '''A pass in which a worker is killed twice, if there still is one: all may be done early.'''
    batches = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        for number, batch in enumerate(loader):
            batches.append(plain(batch))
            if number in (1, 9):
                for worker in multiprocessing.active_children()[:1]:
                    os.kill(worker.pid, signal.SIGKILL)
                    worker.join()
    return batches

for dataset in (Augmented(90), IteratorShards([40, 35, 20], noisy=True)):
    options = {"lanes": 3} if isinstance(dataset, IteratorShards) else {"shuffle": True}
    def make(workers, **more):
        return ResumableDataLoader(
            dataset, 4, seed=5, num_workers=workers, **options, **more)
    expected = passes(make(0), 2)
    for persistent in (False, True):
        loader = make(2, persistent_workers=persistent, multiprocessing_context="fork")
        assert [killed(loader), killed(loader)] == expected
    loader = make(2, persistent_workers=True, multiprocessing_context="fork")
    next(iter(loader))  # and the rest of that pass is given up
    loader.set_epoch(1)
    assert killed(loader) == expected[1]
"""


def test_simulated_macos_replaces_workers_and_gives_up_passes(tmp_path, like_macos):
    run(written(tmp_path, KILLED), first=like_macos)


@pytest.mark.skipif(not may_mount(), reason="to do without /proc needs user name spaces")
def test_workers_are_replaced_where_proc_is_really_absent(tmp_path):
    script = written(tmp_path, KILLED)
    done = run_to_end(mounting("/proc", "size=1m") + script.read_text())
    told = [line for line in done.err.splitlines() if "cpuinfo" not in line]  # torch misses it
    assert (done.status, told) == (0, []), done.out + done.err


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_workers_of_a_simulated_macos_end_when_their_parent_is_killed(tmp_path, like_macos, method):
    script = f"""
        loader = ResumableDataLoader(
            Ids(10**6), 4, num_workers=2, multiprocessing_context={method!r})
        batches = iter(loader)
        next(batches)
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        signal.pause()
    """
    with started(written(tmp_path, script), first=like_macos) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2, parent.stderr.read()
        parent.kill()
        until(lambda: not any(map(is_running, workers)))


# Windows


def run_like_windows(tmp_path: Path, script: str, before: str = "") -> str:
    path = tmp_path / "script.py"
    path.write_text(before + LIKE_WINDOWS + textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


REFUSED = """\
num_workers=2 needs worker processes, which this system (win32) cannot run. Use engine='threads', \
or num_workers=0.
num_workers='auto' needs worker processes, which this system (win32) cannot run. Use \
engine='threads', or num_workers=0.
Running a loader in processes of its own needs processes that fork, and this system (win32) has \
none. Run it on Linux.
Running a loader in processes of its own needs processes that fork, and this system (win32) has \
none. Run it on Linux.
checkpoints cannot be locked: this system (win32) has no fcntl. Save loader.state_dict() and your \
other states with torch.save.
"""


def test_a_simulated_windows_imports_every_module_loads_inline_and_in_threads_and_refuses_the_rest(
    tmp_path,
):
    shown = run_like_windows(
        tmp_path,
        f"""
        import importlib, pkgutil
        import dataporter
        found = [m.name for m in pkgutil.walk_packages(dataporter.__path__, "dataporter.")]
        # Other frameworks, and what the command is made with, have parts of Windows's own.
        left_out = ("integrations", "trainers", "__main__", "tools.cli.")
        left_out = tuple(f"dataporter.{{room}}" for room in left_out)
        names = [name for name in found if not name.startswith(left_out)]
        assert len(names) > 100
        for name in (*names, "dataporter.tools.cli.signals"):
            importlib.import_module(name)

        from support import Augmented, passes, plain
        from dataporter import ResumableDataLoader

        def make(**options):
            return ResumableDataLoader(Augmented(30, "own"), 4, shuffle=True, seed=3, **options)

        expected = passes(make(), 2)
        threads = {{"engine": "threads", "num_workers": 2}}
        assert passes(make(**threads), 2) == expected
        for options in ({{}}, threads):
            loader = make(**options)
            batches = iter(loader)
            begun = [plain(next(batches)) for _ in range(3)]
            state = loader.state_dict()
            again = make(**options)
            again.load_state_dict(state)
            assert begun + passes(again, 1)[0] == expected[0]

        from dataporter import DataPorterError
        from dataporter.tools.profile import profile
        from dataporter.tools.verify import verify
        from dataporter.training import CheckpointManager

        def make_loader(): ...

        manager = CheckpointManager({str(tmp_path)!r})
        for refused in (
            lambda: ResumableDataLoader(torch.arange(9), num_workers=2),
            lambda: ResumableDataLoader(torch.arange(9), num_workers="auto"),
            lambda: verify(make_loader),
            lambda: profile(make_loader),
            lambda: manager.save(epoch=0, model=torch.nn.Linear(1, 1)),
        ):
            try:
                refused()
            except DataPorterError as error:
                print(error)
        """,
    )
    assert shown == REFUSED


@pytest.mark.soak
def test_a_simulated_windows_has_the_callback_that_pauses(tmp_path):
    pytest.importorskip("lightning", reason="Lightning is not installed")
    shown = run_like_windows(
        tmp_path,
        """
        from dataporter.trainers.lightning import PauseCallback
        print(PauseCallback("checkpoints"))
        """,
        before="import lightning.pytorch\n",
    )
    assert shown == "PauseCallback('checkpoints', signals=[SIGTERM], on_mismatch='raise')\n"
