"""A run is killed while it saves: an earlier or the new checkpoint loads, never a half one."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forked_scripts import run
from watching import environment

from dataporter.training import CheckpointManager

# A process that has imported torch forks the runs to be killed, and looks at what they left.
SETUP = """
import os, random, signal, struct, sys, time, warnings
from pathlib import Path
import torch
from dataporter.training import CheckpointManager, checkpoint_file
warnings.simplefilter("error")
torch.set_num_threads(1)
folder, size = Path(sys.argv[1]), int(sys.argv[2])

def save(manager, step):
    # Every part says which step it is of, so that a mixture would be seen.
    return manager.save(
        epoch=step // 10, step=step, model={"weight": torch.full((size,), float(step))},
        metrics={"loss": float(step % 7)}, custom_state={"step": step})

def manager():
    return CheckpointManager(folder, keep_last=2, keep_best=1, metric="loss")

def look(known, more=1):
    # `known` was saved; at most `more` beyond it may be there.
    found = manager()
    assert not list(folder.glob("*.tmp")), list(folder.iterdir())
    state = found.load()
    step = state["step"]
    assert known <= step <= known + more, (known, step)
    for path in found.checkpoints():
        state = found.load(path)
        step_of, weight = state["step"], state["model"]["weight"]
        assert state["custom_state"] == {"step": step_of}
        assert state["metrics"] == {"loss": step_of % 7}
        assert weight.numel() == size and bool((weight == step_of).all())
    return step

def finish(known):
    # A save that comes to its end removes what those that did not have left over.
    save(manager(), known + 1)
    assert look(known + 1) == known + 1
    assert len(list(folder.iterdir())) <= 3, list(folder.iterdir())

save(manager(), 0)
"""

AT_RANDOM = """
def saving(known, pipe):
    mine = manager()
    os.write(pipe, struct.pack("q", known))
    while True:
        known += 1
        save(mine, known)
        os.write(pipe, struct.pack("q", known))

chance, enough = random.Random(int(sys.argv[3])), int(sys.argv[4])
known, kills, during = 0, 0, 0
while kills < enough or not during:  # some find a file half written
    assert kills < 50 * enough
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            saving(known, writer)
        finally:
            os._exit(1)
    os.close(writer)
    os.read(reader, 8)  # it is at its first save now
    time.sleep(chance.uniform(0, 0.03))
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    kills += 1
    during += bool(list(folder.glob("*.tmp")))
    said = b""
    while piece := os.read(reader, 1 << 16):
        said += piece
    os.close(reader)
    if said:
        known = struct.unpack("q", said[-8:])[0]
    known = look(known)
finish(known)
"""


def test_kills_at_random_moments_of_saves_leave_a_whole_checkpoint(tmp_path):
    run(SETUP + AT_RANDOM, tmp_path, 100_000, 1, 20)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_thousands_of_kills_leave_a_whole_checkpoint(tmp_path, seed):
    size = [10, 10_000, 1_000_000][seed % 3]
    run(SETUP + AT_RANDOM, tmp_path, size, seed, 200, timeout=800)


BEFORE_EVERY_LINE = """
files = str(Path(checkpoint_file.__file__).parent)

def traced(step, kill_at=None):
    # The lines of ours that a save comes through; it is killed before it comes to `kill_at`.
    mine, lines = manager(), {}

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(files):
            return None
        if event == "line":
            line = frame.f_code.co_filename, frame.f_lineno
            if line == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            lines[line] = None
        return trace

    sys.settrace(trace)
    save(mine, step)
    sys.settrace(None)
    return list(lines)

for known in range(1, 6):  # until as many are there as are kept
    lines = traced(known)
for line in lines[::int(sys.argv[3])]:
    pid = os.fork()
    if pid == 0:
        try:
            traced(known + 1, line)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL, line
    known = look(known)
    if len(list(folder.iterdir())) > 5:
        finish(known)
        known += 1
finish(known)
print(len(lines))
"""


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_a_kill_before_any_line_of_a_save_leaves_a_whole_checkpoint(every, tmp_path):
    assert int(run(SETUP + BEFORE_EVERY_LINE, tmp_path, 1, every)) > 80


# Beside a writer that lives

WRITER = """
import sys, torch
from dataporter.training import CheckpointManager

class Waits:
    def __reduce__(self):  # in the middle of a write
        print("writing", flush=True)
        sys.stdin.readline()
        return (torch.Size, ((7,),))  # something that may be in a checkpoint

manager = CheckpointManager(sys.argv[1], keep_last=1)
print(manager.save(epoch=3, custom_state={"waited": Waits()}).name, flush=True)
"""


@contextmanager
def writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that stands in the middle of a save until it is sent a line."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_live_writer_keeps_its_file_and_a_killed_one_s_is_removed(tmp_path):
    with writer(tmp_path) as alive, writer(tmp_path) as dead:
        for process in (alive, dead):
            assert process.stdout.readline() == "writing\n"
        assert len(list(tmp_path.glob("*.tmp"))) == 2
        os.kill(alive.pid, signal.SIGSTOP)  # it does nothing, and is there
        dead.kill()
        dead.wait()
        manager = CheckpointManager(tmp_path)
        assert len(left := list(tmp_path.iterdir())) == 1
        saved = manager.save(epoch=1)
        assert left[0].exists()
        os.kill(alive.pid, signal.SIGCONT)
        alive.stdin.write("\n")
        alive.stdin.flush()
        finished = alive.stdout.readline().strip()
        assert alive.wait(60) == 0
    # It began before the other, which is the newer one, and what it returned is there.
    assert {path.name for path in tmp_path.iterdir()} == {finished, saved.name}
    assert CheckpointManager(tmp_path).load()["epoch"] == 1


def test_where_locks_do_not_work_nothing_is_taken_for_left_over(tmp_path, monkeypatch):
    def refuse(_descriptor, _how):
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    leftover = tmp_path / "checkpoint-000004.tmp"
    leftover.touch()
    path = CheckpointManager(tmp_path, keep_last=1).save(epoch=0)
    assert path.name == "checkpoint-000005-epoch0.pt"
    assert leftover.exists()
