"""The parent is killed, told to end, or ends: its workers go with it, and nothing is left."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forked_scripts import Script, started
from support import Ids, flat, passes
from watching import is_running, state_of, until

from dataporter import ResumableDataLoader
from dataporter.system.signals import IGNORED

SETUP = """
import json, os, signal, sys, threading, time
import torch
from support import Ids
from watching import worker_pids
from dataporter import ResumableDataLoader
from dataporter.engine import worker_shutdown

folder, method, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])

def make(dataset=None, **options):
    return ResumableDataLoader(
        Ids(400) if dataset is None else dataset, 4, shuffle=True, seed=3,
        num_workers=workers, multiprocessing_context=method, **options)

def say(**what):
    print(json.dumps(what), flush=True)

class Busy(Ids):
    def __getitem__(self, index):
        time.sleep(0.002)
        return index

class Hangs(Ids):
    def __getitem__(self, index):
        time.sleep(1000 if index == self.length - 1 else 0)
        return index

worker_shutdown._GRACE = 1000  # who waits for a worker that is at work does not end
"""

FOREVER = """
if __name__ == "__main__":
    loader = make(Busy(400) if "busy" in sys.argv else None, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    say(pids=worker_pids())
    while True:
        if "busy" in sys.argv:
            list(iterator)
            iterator = iter(loader)
        else:
            signal.pause()
"""


@contextmanager
def script(
    body: str, folder: Path, method: str = "fork", workers: int = 2, *more: str
) -> Iterator[Script]:
    """Run a script of which we read the output as it comes. It is a file, for spawn's sake."""
    path = folder / "script.py"
    path.write_text(SETUP + body)
    with started(path, folder, method, workers, *more) as child:
        yield child


def told(child: Script) -> dict:
    line = child.stdout.readline()
    assert line, child.stderr.read()
    return json.loads(line)


def named_memory(pid: int) -> set[str]:
    """What a process has of memory that has a name, and so can be left behind."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    names = {line.split(maxsplit=5)[-1] for line in lines}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            names.add(os.readlink(link))  # noqa: PTH115
    return {name for name in names if name.startswith("/dev/shm")}  # noqa: S108


# Killed


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("fork", "busy"),
        ("forkserver", "idle"),
        pytest.param("fork", "idle", marks=pytest.mark.soak),
        pytest.param("spawn", "busy", marks=pytest.mark.soak),
    ],
)
def test_workers_end_with_a_parent_that_is_killed(method, what, tmp_path):
    with script(FOREVER, tmp_path, method, 2, what) as child:
        pids = told(child)["pids"]
        assert len(pids) == 2
        assert not any(named_memory(pid) for pid in (child.pid, *pids))
        child.kill()
        until(lambda: not any(map(is_running, pids)))
    if method == "fork":
        with script(FOREVER, tmp_path, method, 2, what) as again:
            assert len(told(again)["pids"]) == 2
            again.kill()


def test_workers_of_a_loader_in_a_thread_end_with_a_parent_that_is_killed(tmp_path):
    body = """
def loop():
    for batch in make(Busy(10**6)):
        pids = worker_pids()
        if pids and not told:
            told.append(say(pids=pids))
told = []
threading.Thread(target=loop).start()
"""
    with script(body, tmp_path) as child:
        pids = told(child)["pids"]
        child.kill()
        until(lambda: not any(map(is_running, pids)))


# Told to end


SAVING = """
class Saved(SystemExit):
    pass

def save(signum, frame):
    with open(folder + "/state.json", "w") as file:
        json.dump(loader.state_dict(), file)
    raise Saved(0)

if __name__ == "__main__":
    loader = make(Busy(400))
    if os.path.exists(folder + "/state.json"):
        with open(folder + "/state.json") as file:
            loader.load_state_dict(json.load(file))
    signal.signal(signal.SIGINT, save)
    signal.signal(signal.SIGTERM, save)
    log = open(folder + "/seen.jsonl", "a", buffering=1)
    both = {signal.SIGINT, signal.SIGTERM}
    say(listens=True)
    for epoch in range(loader.epoch, 2):
        loader.set_epoch(epoch)
        for batch in loader:
            signal.pthread_sigmask(signal.SIG_BLOCK, both)  # a step is whole or not made
            log.write(json.dumps(batch.tolist()) + chr(10))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
    while "until told" in sys.argv:
        signal.pause()
"""


@pytest.mark.parametrize(
    ("method", "sent", "moments"),
    [
        ("fork", signal.SIGTERM, (9, 110)),
        pytest.param("fork", signal.SIGINT, (60,), marks=pytest.mark.soak),
    ],
)
def test_a_state_saved_when_the_whole_group_is_told_to_end_is_exact(
    method, sent, moments, tmp_path
):
    log = tmp_path / "seen.jsonl"
    for after in (*moments, None):
        how = "to its end" if after is None else "until told"
        with script(SAVING, tmp_path, method, 2, how) as child:
            assert told(child) == {"listens": True}
            if after is not None:
                until(lambda n=after: log.exists() and log.read_text().count("\n") >= n)
                os.killpg(child.pid, sent)
            assert child.wait() == 0
            assert child.stderr.read() == ""
    seen = [json.loads(line) for line in log.read_text().splitlines()]
    expected = flat(passes(ResumableDataLoader(Ids(400), 4, shuffle=True, seed=3), 2))
    # The signal may fall between a batch's delivery and its step: that one is never made.
    missed = [batch for batch in expected if batch not in seen]
    assert len(missed) <= 2
    assert [batch for batch in expected if batch not in missed] == seen


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.soak)])
def test_a_parent_that_goes_on_when_the_group_is_told_to_end_goes_on_exactly(method, tmp_path):
    body = """
if __name__ == "__main__":
    numbers, got = [*map(int, sys.argv[4:])], []
    for number in numbers:
        signal.signal(number, lambda number, _: (say(got=number), got.append(number)))
    import warnings
    warnings.simplefilter("ignore")
    batches = []
    for batch in make(Busy(400)):
        batches.append(batch.tolist())
        if len(batches) == 5:
            say(ready=1)
        while len(batches) == 80 and len(got) < len(numbers):
            time.sleep(0.001)
    say(batches=batches)
"""
    with script(body, tmp_path, method, 2, *map(str, map(int, IGNORED))) as child:
        assert told(child) == {"ready": 1}
        for number in IGNORED:
            os.killpg(child.pid, number)
            assert told(child) == {"got": number}
        found = told(child)["batches"]
        assert child.wait() == 0
        assert child.stderr.read() == ""
    assert [found] == passes(ResumableDataLoader(Ids(400), 4, shuffle=True, seed=3), 1)


def test_a_signal_that_a_worker_gets_as_it_is_born_does_not_run_the_parents_handler(tmp_path):
    body = """
parent = os.getpid()
signal.signal(signal.SIGTERM, lambda *_: say(handled_by_parent=os.getpid() == parent))
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
batches = [batch.tolist() for batch in make()]
say(count=len(batches))
"""
    with script(body, tmp_path) as child:
        assert told(child) == {"count": 100}
        assert child.wait() == 0
        assert child.stderr.read() == ""


# Ending


ENDINGS = {
    "with workers at work": "iterator = iter(make(Hangs(40))); next(iterator)",
    "with persistent workers": "loader = make(persistent_workers=True); list(loader)",
    "with whatever one may have": """
for batch in make(): break
kept = next(iter(make()))
persistent = make(Hangs(40), persistent_workers=True)
iterator = iter(persistent)
next(iterator)
loader = make()
loader.me, loader.iterator = loader, iter(loader)
next(loader.iterator)
""",
    "in a function": "def main():\n    for batch in make(Hangs(40)):\n        sys.exit()\nmain()",
}


@pytest.mark.parametrize(
    "ending",
    [
        "with persistent workers",
        "with whatever one may have",
        pytest.param("with workers at work", marks=pytest.mark.soak),
        pytest.param("in a function", marks=pytest.mark.soak),
    ],
)
def test_the_interpreter_ends_silently_and_at_once(ending, tmp_path):
    body = f"""
{ENDINGS[ending]}
say(pids=worker_pids())
"""
    if "exit" in ENDINGS[ending]:
        body = f"""
import atexit
atexit.register(lambda: say(pids=[]))
{ENDINGS[ending]}
"""
    with script(body, tmp_path) as child:
        last = told(child)
        assert child.wait() == 0
        assert child.stderr.read() == ""
        until(lambda: not any(map(is_running, last["pids"])))


@pytest.mark.parametrize("method", ["forkserver"])
def test_the_interpreter_ends_silently_however_workers_were_started(method, tmp_path):
    body = """
if __name__ == "__main__":
    loader = make(Hangs(40), persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    say(pids=worker_pids())
"""
    with script(body, tmp_path, method) as child:
        last = told(child)
        assert child.wait() == 0
        assert child.stderr.read() == ""
        until(lambda: not any(map(is_running, last["pids"])))


@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_an_exception_in_the_loop_ends_the_run_at_once_with_its_traceback_alone(
    persistent, tmp_path
):
    body = f"""
def train():
    for step, batch in enumerate(make(Hangs(40), persistent_workers={persistent})):
        if step == 3:
            say(pids=worker_pids())
            raise ValueError("in the loop")
train()
"""
    with script(body, tmp_path) as child:
        last = told(child)
        assert child.wait() == 1
        errors = child.stderr.read()
        assert errors.count("Traceback") == 1
        assert errors.endswith("ValueError: in the loop\n")
        until(lambda: not any(map(is_running, last["pids"])))


@pytest.mark.parametrize(
    ("method", "inner"), [("fork", "fork"), pytest.param("spawn", "fork", marks=pytest.mark.soak)]
)
def test_a_process_of_multiprocessing_ends_with_its_loaders_workers(method, inner, tmp_path):
    body = f"""
import multiprocessing

def rank():
    global loader, iterator
    loader = make(persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    say(pids=worker_pids())

if __name__ == "__main__":
    process = multiprocessing.get_context({method!r}).Process(target=rank)
    process.start()
    process.join(60)
    say(code=process.exitcode)
    if process.exitcode is None:
        process.kill()
"""
    with script(body, tmp_path, inner) as child:
        pids = told(child)["pids"]
        assert told(child) == {"code": 0}
        assert child.wait() == 0
        assert child.stderr.read() == ""
        until(lambda: not any(map(is_running, pids)))


def test_a_forked_child_that_iterates_the_same_loader_does_not_disturb_its_parent(tmp_path):
    body = """
import multiprocessing

def child(loader, queue):
    queue.put([batch.tolist() for batch in loader])

loader = make(persistent_workers=True)
first = [batch.tolist() for batch in loader]
queue = multiprocessing.SimpleQueue()
process = multiprocessing.get_context("fork").Process(target=child, args=(loader, queue))
process.start()
mine, its = [batch.tolist() for batch in loader], queue.get()
process.join()
say(same=mine == its, count=len(mine), code=process.exitcode)
"""
    with script(body, tmp_path) as child:
        assert told(child) == {"same": True, "count": 100, "code": 0}
        assert child.wait() == 0
        assert child.stderr.read() == ""


def test_a_forked_child_that_ends_leaves_its_parents_iterator_alone(tmp_path):
    body = """
iterator = iter(make())
batches = [next(iterator).tolist()]
pid = os.fork()
if pid == 0:
    del iterator
    os._exit(0)
os.waitpid(pid, 0)
batches += [batch.tolist() for batch in iterator]
say(batches=batches)
"""
    with script(body, tmp_path) as child:
        found = told(child)["batches"]
        assert child.wait() == 0
        assert child.stderr.read() == ""
    assert [found] == passes(ResumableDataLoader(Ids(400), 4, shuffle=True, seed=3), 1)


# Threads


def test_a_loader_outlives_the_thread_that_started_its_workers(tmp_path):
    body = """
loader, found = make(), []
def begin():
    found.append(iter(loader))
    found.append(next(found[0]).tolist())
thread = threading.Thread(target=begin)
thread.start()
thread.join()
say(batches=found[1:] + [batch.tolist() for batch in found[0]])
"""
    with script(body, tmp_path) as child:
        found = told(child)["batches"]
        assert child.wait() == 0
        assert child.stderr.read() == ""
    assert [found] == passes(ResumableDataLoader(Ids(400), 4, shuffle=True, seed=3), 1)


def test_workers_that_a_thread_dropped_exit(tmp_path):
    body = """
def use():
    loader = make(persistent_workers=True)
    for step, batch in enumerate(loader):
        if step == 3:
            break
    pids.extend(worker_pids())
pids = []
thread = threading.Thread(target=use)
thread.start()
thread.join()
say(pids=pids)
signal.pause()
"""
    with script(body, tmp_path) as child:
        pids = told(child)["pids"]
        assert len(pids) == 2
        until(lambda: not any(map(is_running, pids)))
        until(lambda: state_of(child.pid) == "S")


def test_a_workers_death_is_noticed_although_another_process_has_inherited_its_pipe(tmp_path):
    # As when another thread forks at that very moment.
    body = """
import warnings
warnings.simplefilter("ignore")
strangers = []

def fork_another():
    if not strangers:
        strangers.append(None)
        pid = os.fork()
        if pid == 0:
            signal.pause()
        strangers[0] = pid

os.register_at_fork(after_in_parent=fork_another)
workers = 1
iterator = iter(make())
batches = [next(iterator)]
os.kill(worker_pids()[0], signal.SIGKILL)
batches += iterator
say(count=len(batches))
os.kill(strangers[0], signal.SIGKILL)
"""
    with script(body, tmp_path) as child:
        child.wait()
        assert told(child) == {"count": 100}
