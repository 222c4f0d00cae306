"""Little shared memory, other libraries' threads, other loaders: it completes."""

import functools
import subprocess
import sys
import textwrap

import pytest
from forked_scripts import mounting, run

SMALL = 64  # MB of /dev/shm, what containers have unless told otherwise

SETUP = """
import os, sys, threading, time
import numpy as np
import torch
from support import Augmented, Ids, one_pass, passes
from torch.utils.data import DataLoader
from dataporter import ResumableDataLoader

class Many(Ids):
    '''Sample i is a thousand tensors that are i.'''
    def __getitem__(self, index):
        return [torch.full((3,), index) for _ in range(1000)]

class Large(Ids):
    '''Sample i is 9.5 MB that are i; four of them are a batch of 38 MB.'''
    def __getitem__(self, index):
        return torch.full((9_500_000,), index, dtype=torch.uint8)

def same(value):
    return value
"""


# Little shared memory


@functools.cache
def may_mount() -> bool:
    """Whether a file system can be mounted in a name space of one's own."""
    try:
        tried = subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"],  # noqa: S607, S108
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


with_small_shared_memory = pytest.mark.skipif(
    sys.platform != "linux" or not may_mount(),
    reason="a small /dev/shm needs user name spaces, which are not allowed here",
)


def run_with_small_shared_memory(body: str) -> None:
    """Run a script where /dev/shm holds 64 MB; it must end in silence and leave that empty."""
    run(
        mounting("/dev/shm", f"size={SMALL}m")  # noqa: S108  a file system of its own
        + SETUP
        + textwrap.dedent(body)
        + "\nassert os.listdir('/dev/shm') == []\n",
    )


@with_small_shared_memory
def test_the_shared_memory_is_as_small_as_these_tests_say():
    run_with_small_shared_memory(f"""
        status = os.statvfs("/dev/shm")
        assert status.f_blocks * status.f_frsize == {SMALL} * 2**20
        with open("/dev/shm/full", "wb") as file:
            try:
                file.write(bytes({SMALL + 1} * 2**20))
                file.flush()
            except OSError as error:
                assert "No space left" in str(error)
                os.unlink("/dev/shm/full")
            else:
                raise AssertionError("there is more")
            file.truncate(0)
    """)


@with_small_shared_memory
@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.soak), True])
def test_batches_of_a_thousand_tensors_need_no_shared_memory_of_the_system(persistent):
    run_with_small_shared_memory(f"""
        loader = ResumableDataLoader(
            Many(60), None, num_workers=2, collate_fn=same, persistent_workers={persistent})
        kept = list(loader)
        assert len(kept) == 60
        for index, batch in enumerate(kept):
            assert len(batch) == 1000
            assert (torch.stack(batch) == index).all()
    """)


@with_small_shared_memory
@pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(method, marks=pytest.mark.soak) for method in ("spawn", "forkserver"))],
)
def test_large_batches_that_are_all_held_need_no_shared_memory_of_the_system(method):
    # What is sent to a spawned worker must be found there: a tensor will do.
    dataset = "Large(40)"
    if method != "fork":
        dataset = "torch.arange(40, dtype=torch.uint8)[:, None].expand(40, 9_500_000)"
    run_with_small_shared_memory(f"""
        loader = ResumableDataLoader(
            {dataset}, 4, num_workers=2, multiprocessing_context={method!r})
        kept = list(loader)
        assert sum(batch.nbytes for batch in kept) == 40 * 9_500_000
        for first, batch in enumerate(kept):
            expected = torch.arange(4 * first, 4 * first + 4, dtype=torch.uint8)
            for column in (0, 5_000_000, -1):
                assert torch.equal(batch[:, column], expected)
    """)


@with_small_shared_memory
def test_large_arrays_and_collations_of_the_user_need_no_shared_memory_of_the_system():
    run_with_small_shared_memory("""
        class Arrays(Ids):
            def __getitem__(self, index):
                return {"x": np.full(9_500_000, index, np.uint8), "name": str(index)}

        def stacked(samples):
            return {"x": torch.stack([torch.from_numpy(s["x"]) for s in samples]),
                    "raw": samples[0]["x"], "names": [s["name"] for s in samples]}

        for collate_fn in (None, stacked, same):
            kept = list(ResumableDataLoader(Arrays(16), 4, num_workers=2, collate_fn=collate_fn))
            assert len(kept) == 4
            for first, batch in enumerate(kept):
                if collate_fn is same:
                    assert [int(s["x"][-1]) for s in batch] == list(range(4 * first, 4 * first + 4))
                else:
                    assert batch["x"][:, -1].tolist() == list(range(4 * first, 4 * first + 4))
    """)


def test_a_consumer_may_hold_more_batches_than_a_process_may_have_mappings():
    run(
        SETUP
        + textwrap.dedent("""
        most = 65_530
        if os.path.exists("/proc/sys/vm/max_map_count"):
            most = int(open("/proc/sys/vm/max_map_count").read())
        count = min(most, 65_530) + 1000
        kept = list(ResumableDataLoader(torch.arange(count), 1, num_workers=1))
        assert torch.equal(torch.cat(kept), torch.arange(count))
        """),
    )


# Libraries that have threads before workers are forked


MULTIPLYING = """
torch.set_num_threads(4)
matrix = torch.rand(512, 512)
product = matrix @ matrix
assert len(os.listdir("/proc/self/task")) > 1

class Multiplied(Ids):
    '''Sample i is a row of a product that is made anew for it.'''
    def __getitem__(self, index):
        assert torch.get_num_threads() == 1  # more would wait for threads that no fork has
        return (matrix @ matrix)[index]
"""


@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_workers_may_use_openmp_that_their_parent_has_used(persistent):
    run(
        SETUP
        + MULTIPLYING
        + textwrap.dedent(f"""
        loader = ResumableDataLoader(
            Multiplied(24), 4, num_workers=2, persistent_workers={persistent})
        for _ in range(2):
            assert torch.allclose(torch.cat(list(loader)), product[:24], atol=1e-4)
            assert torch.allclose(matrix @ matrix, product)
        """),
    )


def test_workers_may_be_forked_while_another_thread_uses_openmp():
    run(
        SETUP
        + MULTIPLYING
        + textwrap.dedent("""
        done = threading.Event()

        def multiply():
            while not done.is_set():
                matrix @ matrix

        thread = threading.Thread(target=multiply)
        thread.start()
        try:
            for _ in range(3):
                loader = ResumableDataLoader(Multiplied(12), 4, num_workers=2)
                assert torch.allclose(torch.cat(list(loader)), product[:12], atol=1e-4)
        finally:
            done.set()
            thread.join()
        """),
    )


@pytest.mark.parametrize("parallelism", [pytest.param("", marks=pytest.mark.soak), "true"])
def test_workers_may_use_tokenizers_that_their_parent_has_used_in_parallel(parallelism):
    pytest.importorskip("tokenizers", reason="Hugging Face's tokenizers are not installed")
    run(
        f"parallelism = {parallelism!r}\n"
        + SETUP
        + textwrap.dedent("""
        # They say in each fork that they go on without threads there; errors are told still.
        sys.stderr = os.fdopen(os.dup(2), "w")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.environ.pop("TOKENIZERS_PARALLELISM", None)
        if parallelism:
            os.environ["TOKENIZERS_PARALLELISM"] = parallelism
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = {f"w{number}": number for number in range(100)}
        tokenizer = Tokenizer(models.WordLevel({**words, "?": 100}, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        texts = [" ".join(f"w{(index * step) % 100}" for step in range(30)) for index in range(400)]
        expected = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        assert len(os.listdir("/proc/self/task")) > 1

        class OneByOne(Ids):
            def __getitem__(self, index):
                return tokenizer.encode(texts[index]).ids

        class AtOnce(Ids):
            def __getitems__(self, indices):
                return [e.ids for e in tokenizer.encode_batch([texts[i] for i in indices])]

        for dataset in (OneByOne(400), AtOnce(400)):
            loader = ResumableDataLoader(
                dataset, 50, num_workers=2, collate_fn=torch.tensor, persistent_workers=True)
            for _ in range(2):
                assert torch.cat(list(loader)).tolist() == expected
        assert [encoding.ids for encoding in tokenizer.encode_batch(texts)] == expected
        """),
    )


# Other loaders


BESIDE = """
def make(dataset=None, **options):
    options = {"num_workers": 2, "shuffle": True, "seed": 3, **options}
    return ResumableDataLoader(dataset or Augmented(60, "own"), 4, **options)

expected = passes(make(num_workers=0), 2)
"""


@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_second_loader_may_be_made_and_used_in_a_thread_while_the_first_runs(persistent):
    run(
        SETUP
        + BESIDE
        + textwrap.dedent(f"""
        found = []
        first = iter(make(persistent_workers={persistent}))
        batches = [next(first)]

        def use():
            second = make(persistent_workers={persistent})
            found.extend(passes(second, 2))

        thread = threading.Thread(target=use)
        thread.start()
        batches += first
        thread.join()
        assert one_pass(batches) == expected[0]
        assert found == expected
        """),
    )


def test_one_loader_of_each_step_may_be_dropped_in_a_thread_while_the_first_runs():
    run(
        SETUP
        + BESIDE
        + textwrap.dedent("""
        def glance():
            for _ in range(5):
                next(iter(make(Ids(20))))

        first, batches = iter(make()), []
        threads = []
        for batch in first:
            batches.append(batch)
            if len(threads) < 3:
                threads.append(threading.Thread(target=glance))
                threads[-1].start()
        for thread in threads:
            thread.join()
        assert one_pass(batches) == expected[0]
        """),
    )


def test_torchs_loader_may_run_beside_ours():
    run(
        SETUP
        + BESIDE
        + textwrap.dedent("""
        torchs = DataLoader(Ids(60), 4, num_workers=2)
        plain = [list(range(first, first + 4)) for first in range(0, 60, 4)]
        pairs = list(zip(make(), torchs))
        assert one_pass(ours for ours, _ in pairs) == expected[0]
        assert one_pass(theirs for _, theirs in pairs) == plain
        del pairs
        for inner in (make, lambda: torchs):
            batches = []
            for batch in make():
                batches.append(batch)
                assert len(list(inner())) == 15
                if len(batches) == 3:
                    break
            assert one_pass(batches) == expected[0][:3]
        """),
    )


def test_a_thread_may_hold_a_lock_of_the_dataset_when_workers_are_forked_elsewhere():
    # Logging is the lock that every process has: Python makes it anew in a fork.
    run(
        SETUP
        + BESIDE
        + textwrap.dedent("""
        import io, logging
        log, done = logging.getLogger("test"), threading.Event()
        log.addHandler(logging.StreamHandler(io.StringIO()))
        log.propagate = False

        class Logs(Ids):
            def __getitem__(self, index):
                log.warning("sample %d", index)
                return index

        def write():
            while not done.is_set():
                log.warning("busy")

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(5):
                assert sorted(sum(one_pass(make(Logs(40))), [])) == list(range(40))
        finally:
            done.set()
            thread.join()
        """),
    )
