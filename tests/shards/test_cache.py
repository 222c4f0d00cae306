"""Decoded blocks lie in a folder: whole, counted, within the budget, with nothing left by kills."""

import fcntl
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dataporter.errors import ShardCacheError, ShardFormatError
from dataporter.shards.cache import BlockCache, CachedBlocks, NoRoomError

BLOCKS = 8


def put(cache: BlockCache, block: int, size: int = 10, *, at: int = 0, far=None) -> int:
    far = np.full(BLOCKS, 100) if far is None else np.array(far)

    def write(path: Path) -> None:
        path.write_bytes(bytes([block]) * size)

    return cache.add(block, write, lambda: cache.reserve(block, size, far, at), wait=True)


def held(cache: BlockCache) -> list[int]:
    return [block for block in range(BLOCKS) if cache.holds(block)]


@pytest.fixture
def cache(tmp_path):
    return BlockCache(tmp_path / "cache", BLOCKS, 40)


def test_a_block_is_there_after_it_was_added_and_is_not_written_twice(cache):
    assert put(cache, 3) == 10
    assert put(cache, 3) == 0
    assert cache.path(3).read_bytes() == b"\3" * 10
    assert cache.map(3)[:] == b"\3" * 10
    assert held(CachedBlocks(cache.folder, BLOCKS)) == [3]


def test_a_reader_finds_blocks_in_a_folder_that_is_made_later(tmp_path):
    reader = CachedBlocks(tmp_path / "cache", BLOCKS)
    assert not reader.holds(0)
    put(BlockCache(tmp_path / "cache", BLOCKS, 40), 0)
    assert reader.holds(0)


def test_the_farthest_is_evicted_and_the_mapped_stays_valid(cache):
    for block in range(4):
        put(cache, block)
    mapped = cache.map(2)
    put(cache, 4, far=[5, 6, 9, 7, 0, 0, 0, 0])
    assert held(cache) == [0, 1, 3, 4]
    assert cache.evicted == 1
    assert mapped[:] == b"\2" * 10
    assert cache.map(2) is None


def test_a_block_is_never_evicted_for_one_that_is_used_later(cache):
    for block in range(4):
        put(cache, block)
    with pytest.raises(NoRoomError) as caught:
        put(cache, 4, at=9, far=[5, 6, 9, 7, 0, 0, 0, 0])
    assert (caught.value.missing, caught.value.reserved) == (10, 0)
    assert held(cache) == [0, 1, 2, 3]
    assert not list(cache.folder.glob("*.tmp"))
    assert int(np.abs(cache.sizes()).sum()) == 40  # what was reserved is given back


def test_a_smaller_budget_evicts_the_farthest_but_nothing_in_use(cache):
    for block in range(4):
        put(cache, block)
    smaller = BlockCache(cache.folder, BLOCKS, 25)
    smaller.trim(np.array([5, 6, 9, 7, 0, 0, 0, 0]))
    assert held(smaller) == [0, 1]
    smaller.budget = 5
    smaller.trim(np.array([0, 6, 9, 7, 0, 0, 0, 0]))
    assert held(smaller) == [0]
    assert smaller.evicted == 3


def test_a_block_that_is_larger_than_reserved_makes_its_room(cache):
    for block in range(3):
        put(cache, block)
    far = np.array([5, 9, 6, 0, 0, 0, 0, 0])
    size = cache.add(
        3,
        lambda path: path.write_bytes(b"x" * 20) and None,
        lambda: cache.reserve(3, 10, far, 0),
        wait=True,
        grow=lambda size: cache.reserve(3, size, far, 0),
    )
    assert size == 20
    assert held(cache) == [0, 2, 3]
    assert int(np.abs(cache.sizes()).sum()) == 40


def test_two_writers_count_each_others_bytes(cache):
    other = BlockCache(cache.folder, BLOCKS, 40)
    put(cache, 0, 20)
    put(other, 1, 20)
    put(cache, 2, far=[1, 9, 0, 0, 0, 0, 0, 0])
    assert held(other) == held(cache) == [0, 2]


def test_an_error_leaves_nothing(cache):
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise ShardFormatError("damaged")

    with pytest.raises(ShardFormatError, match="damaged"):
        cache.add(1, fail, lambda: None, wait=True)
    assert sorted(path.name for path in cache.folder.iterdir()) == ["sizes"]
    assert put(cache, 1) == 10


def test_an_empty_block_is_an_error(cache):
    with pytest.raises(ShardFormatError, match="empty"):
        cache.add(1, lambda _: None, lambda: None, wait=True)


def test_one_of_many_threads_writes(cache):
    written = []

    def write(path: Path) -> None:
        written.append(threading.get_ident())
        path.write_bytes(b"x")

    def add() -> None:
        cache.add(5, write, lambda: None, wait=True)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1
    assert not list(cache.folder.glob("*.tmp"))


def test_nobody_waits_who_does_not_want_to(cache):
    with (cache.folder / "00000002.tmp").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert cache.add(2, lambda _: None, lambda: None, wait=False) == 0
    assert not cache.holds(2)


def test_a_new_start_removes_what_a_kill_left_and_nothing_else(cache):
    put(cache, 0)
    cache._record(1, 10)  # killed before the rename
    cache._record(2, -10)  # killed while decoding
    (cache.folder / "00000002.tmp").write_bytes(b"half")
    (cache.folder / "notes.tmp").write_bytes(b"not ours")
    with (cache.folder / "00000003.tmp").open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        cache._record(3, -10)
        BlockCache(cache.folder, BLOCKS, 40)
    names = {path.name for path in cache.folder.iterdir()}
    assert names == {"00000000.block", "00000003.tmp", "notes.tmp", "sizes"}
    assert cache.sizes().tolist() == [10, 0, 0, -10, 0, 0, 0, 0]


def test_a_block_of_another_size_than_recorded_is_written_again(cache):
    put(cache, 1)
    os.truncate(cache.path(1), 4)
    assert not cache.holds(1)
    assert put(cache, 1) == 10
    assert cache.path(1).read_bytes() == b"\1" * 10


def test_a_cleared_cache_is_filled_again(cache):
    put(cache, 1)
    reader = CachedBlocks(cache.folder, BLOCKS)
    assert reader.holds(1)
    for path in cache.folder.iterdir():
        path.unlink()
    cache.folder.rmdir()
    assert put(cache, 1) == 10
    assert reader.holds(1)
    assert cache.holds(1)


def test_a_file_in_place_of_the_folder_is_named_with_a_remedy(tmp_path):
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(
        ShardCacheError, match=r"cannot be written to .*cache.*Pass cache="
    ) as caught:
        BlockCache(tmp_path / "cache" / "key", BLOCKS, 40)
    assert caught.value.errno is not None


def test_half_of_the_free_disk_is_the_default(tmp_path):
    status = os.statvfs(tmp_path)
    budget = BlockCache(tmp_path / "cache", BLOCKS, None).budget
    assert budget == pytest.approx(status.f_bavail * status.f_frsize / 2, rel=0.2)


def test_an_error_of_the_source_is_not_taken_for_one_of_the_cache(cache):
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied", "source")

    with pytest.raises(PermissionError) as caught:
        cache.add(1, refuse, lambda: None, wait=True)
    assert type(caught.value) is PermissionError


# Room


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing tells what is mapped")
def test_an_evicted_block_counts_until_readers_have_let_go_of_it(cache):
    for block in range(4):
        put(cache, block)
    reader = CachedBlocks(cache.folder, BLOCKS)
    mapped, seen = {block: reader.map(block) for block in range(2)}, reader.evictions()
    put(cache, 4, far=[9, 8, 7, 6, 5, 5, 5, 5])
    assert cache.excess() == 10
    assert reader.evictions() != seen
    assert [block for block in mapped if reader.is_gone(block)] == [0]
    assert cache.make_up(np.array([9, 8, 7, 6, 5, 5, 5, 5]), 0)  # 1 is mapped, so it is 2
    assert held(cache) == [1, 3, 4]
    mapped.clear()
    assert cache.excess() == 0
    assert not list((cache.folder / "evicted").iterdir())


def test_a_block_that_is_written_again_is_gone_for_who_has_mapped_the_first(cache):
    put(cache, 0)
    reader = CachedBlocks(cache.folder, BLOCKS)
    mapped = reader.map(0)
    cache.drop(0)
    put(cache, 0)
    assert reader.holds(0)
    assert reader.is_gone(0)
    assert mapped[:] == reader.map(0)[:]
    assert not reader.is_gone(0)
