"""A sample's random numbers: keyed by (seed, epoch, position), never by who fetches it.

While a sample is fetched, the global generators of Python, NumPy and torch start from
its key, and `sample_rng()` gives a NumPy generator with that key. Seeding three generators
costs 7 µs a sample, too much for a dataset that draws nothing, so `LazySeeding` seeds
only those that are drawn from. If the result ever differs from seeding all, it is a bug.

Out of scope: generators that a dataset owns itself, and draws that nobody can see after
the fact, since the dataset puts the generator back itself (`torch.random.fork_rng()`). Let
it draw from `sample_rng()`. The global generators are one for all threads of a process.
"""

from __future__ import annotations

import functools
import reprlib
import threading
from collections.abc import Callable, Sequence
from operator import length_hint
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import NoSampleError, add_note
from dataporter.fetch.generators import ALL, TORCH, Captured, capture, seed, seed_all
from dataporter.law.keys import key_as_int, mix, mix_one

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class EpochKeys:
    """The keys of one epoch's samples and batches.

    >>> keys = EpochKeys(seed=1, epoch=0).sample_keys(np.array([5, 6]))
    >>> keys == EpochKeys(seed=1, epoch=0).sample_keys(np.array([5, 6]))
    True
    >>> keys == EpochKeys(seed=0, epoch=1).sample_keys(np.array([5, 6]))
    False
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        self._sample = key_as_int("sample", seed, epoch)
        self._batch = key_as_int("batch", seed, epoch)
        self._lanes: dict[int, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return keys_of, (self.seed, self.epoch)

    def sample_keys(self, positions: NDArray[np.int64]) -> list[int]:
        """One 64-bit key for each position."""
        keys: list[int] = mix(self._sample, positions).tolist()
        return keys

    def batch_key(self, positions: NDArray[np.int64]) -> int:
        """The key of what is done to a batch as a whole: that of its first position."""
        return mix_one(self._batch, int(positions[0])) if len(positions) else self._batch

    def lane_key(self, lane: int, number: int) -> int:
        """The key of a lane's batch; number -1 is for what comes before its first."""
        if lane not in self._lanes:
            self._lanes[lane] = key_as_int("lane", self.seed, self.epoch, lane)
        return mix_one(self._lanes[lane], number + 1)


@functools.lru_cache(maxsize=8)
def keys_of(seed: int, epoch: int) -> EpochKeys:
    """The keys of an epoch, which take some microseconds to make."""
    return EpochKeys(seed, epoch)


# A key, or how to make it for those who ask: that of a lane's batch costs 1 µs.
Key: TypeAlias = int | Callable[[], int]


class _Current:
    """The sample that a thread is fetching, or the batch that it is collating."""

    __slots__ = (
        *("asked", "callers", "generator", "key", "sample_keys", "seeds_calls", "watches"),
    )

    def __init__(self) -> None:
        # To be used again; several at once in nested loaders.
        self.watches: list[_Watch] = []
        self.callers: list[Captured] = []
        self.key: Key | None = None
        self.generator: np.random.Generator | None = None
        self.asked = False
        self.sample_keys: Callable[[], Sequence[int]] | None = None
        self.seeds_calls = False  # see `call_seeded`

    def enter(self, key: Key | None) -> None:
        self.key = key
        self.generator = None


class _Threads(threading.local):
    def __init__(self) -> None:
        self.current = _Current()


_threads = _Threads()


def current_key() -> Key | None:
    """Return the key of the sample or batch that this thread is at; None outside of one."""
    return _threads.current.key


def leave_for(key: Key | None) -> None:
    """Go back to a key that `current_key` returned, after an interrupt at any moment."""
    _threads.current.enter(key)
    _threads.current.sample_keys = None
    _threads.current.seeds_calls = False


# The key while a batch is fetched as a whole: whoever asks for it then is told apart later.
_NO_SAMPLE = 0


def sample_rng() -> np.random.Generator:
    """Give the random generator of the sample that is being fetched.

    Call it in `__getitem__`, a transform or a collate function, instead of keeping a
    generator of your own. Within one sample every call returns the same generator, and
    the numbers are the same under any number of workers and ranks and after any resume.

    >>> from dataporter import ResumableDataLoader
    >>> class Noisy:
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, index):
    ...         return index + sample_rng().random()
    >>> loader = ResumableDataLoader(Noisy(), batch_size=4, seed=1)
    >>> first, again = next(iter(loader)), next(iter(ResumableDataLoader(Noisy(), 4, seed=1)))
    >>> first.tolist() == again.tolist()
    True
    """
    current = _threads.current
    current.asked = True
    if current.generator is None:
        key = current.key
        if key is None:
            msg = (
                "sample_rng() was called where no sample is being fetched. Call it in the "
                "dataset's __getitem__, a transform or a collate function of a dataporter loader."
            )
            raise NoSampleError(msg)
        known = key() if callable(key) else key
        current.generator = np.random.Generator(np.random.Philox(key=known))
    return current.generator


def keys_of_samples() -> Sequence[int] | None:
    """Give the keys of the samples of the batch that is being collated, in its order.

    None where no batch is being collated. With them a collate function can do to a sample
    what does not depend on the batch around it.
    """
    sample_keys = _threads.current.sample_keys
    return None if sample_keys is None else sample_keys()


# Beside the generators that a function was seen to draw from: it asked for `sample_rng()`.
_OWN = 2 * TORCH


class LazySeeding:
    """Applies a function to arguments as if each application had been seeded.

    The first run is seeded, and watched. Those that follow are given only what the function was
    seen to need: the generators that it draws from are seeded before each argument, a function
    that draws from none gets all arguments at once. If it has drawn from any other after all,
    the generators are put back, and the run is made again with that one seeded too.
    The caller's generators are left as they were, whatever happens.

    With `seeds_globals=False` nobody's global generators are touched or looked at; only
    `sample_rng()` knows the sample.
    """

    def __init__(self, *, seeds_globals: bool = True) -> None:
        self._seeds_globals = seeds_globals
        self._needs: int | None = None  # generators; not known before the first run

    @property
    def draws(self) -> bool:
        """True if the function was seen to draw, so that it is applied to arguments one by one."""
        return bool(self._needs)

    def map(
        self,
        each: Callable[[Argument], Result],
        arguments: Sequence[Argument],
        keys: Callable[[], Sequence[int]],
    ) -> list[Result]:
        """Return `[each(a) for a in arguments]`, with the key of each as its randomness."""
        current = _threads.current
        with _put_back_when_done(current):
            if not self._seeds_globals:
                return self._unseeded(current, each, arguments, keys())
            if self._needs is None:
                return _undisturbed(current, self._first, current, each, arguments, keys())
            return self._map(current, each, arguments, keys, self._needs)

    def _map(
        self,
        current: _Current,
        each: Callable[[Argument], Result],
        arguments: Sequence[Argument],
        keys: Callable[[], Sequence[int]],
        needs: int,
    ) -> list[Result]:
        watch = current.watches.pop() if current.watches else _Watch(current)
        while True:
            watch.begin()
            try:
                if needs:
                    results = _keyed(current, each, arguments, keys(), seeds=needs)
                else:
                    current.enter(_NO_SAMPLE)
                    results = _plainly(each, arguments)
                seen = watch.put_back()  # here, so that it is done once more if interrupted
            except Exception:
                # With other random numbers it may not have failed: only a run without
                # draws, or one with the right numbers, may speak for the dataset.
                seen = watch.put_back()
                if seen | needs == needs:
                    raise
            except BaseException:
                watch.put_back()
                raise
            else:
                if seen | needs == needs:
                    current.watches.append(watch)
                    return results
            self._needs = needs = seen | needs

    def _first(
        self,
        current: _Current,
        each: Callable[[Argument], Result],
        arguments: Sequence[Argument],
        keys: Sequence[int],
    ) -> list[Result]:
        # Seeded, so that what is drawn is right, and stays right where a dataset keeps it.
        needs, results, watch = 0, [], _Watch(current)
        for argument, key in zip(arguments, keys, strict=True):
            seed_all(key)
            watch.begin()
            try:
                results += _keyed(current, each, [argument], [key])
            except Exception:
                self._needs = watch.seen() or None
                raise
            needs |= watch.seen()
        self._needs = needs
        return results

    def _unseeded(
        self,
        current: _Current,
        each: Callable[[Argument], Result],
        arguments: Sequence[Argument],
        keys: Sequence[int],
    ) -> list[Result]:
        current.asked = False
        try:
            return _keyed(current, each, arguments, keys)
        finally:
            if current.asked:
                self._needs = _OWN


def finished(
    finish: Callable[[Argument], Result],
    batch: Argument,
    key: int,
    *,
    sample_keys: Callable[[], Sequence[int]],
    seeds_globals: bool,
    draws_nothing: bool = False,
) -> Result:
    """Apply a function to a batch, with the key as its randomness, seeded in any case.

    A function that `draws_nothing` is not seeded, only what it calls by `call_seeded`. With
    `seeds_globals=False` only `sample_rng()` and `keys_of_samples()` know the batch.
    """
    current = _threads.current
    with _put_back_when_done(current):
        current.enter(key)
        current.sample_keys = sample_keys
        if not seeds_globals or draws_nothing:
            current.seeds_calls = seeds_globals
            return finish(batch)
        result: Result = _undisturbed(current, _seeded, finish, batch, key)
        return result


def call_seeded(call: Callable[..., Result], argument: Any, **options: Any) -> Result:
    """Call user code from a function that itself `draws_nothing`, seeded as that was to be."""
    current = _threads.current
    if not current.seeds_calls:  # nothing is to be seeded, or all is
        return call(argument, **options)
    with_options = functools.partial(call, **options)
    result: Result = _undisturbed(current, _seeded, with_options, argument, current.key)
    return result


def _seeded(finish: Callable[[Argument], Result], batch: Argument, key: int) -> Result:
    seed_all(key)
    return finish(batch)


def each_seeded(
    each: Callable[[Argument], Result],
    arguments: Sequence[Argument],
    keys: Sequence[int],
    *,
    seeds_globals: bool,
) -> list[Result]:
    """Return `[each(a) for a in arguments]`, every one seeded, called once in any case."""
    return _keyed(_threads.current, each, arguments, keys, seeds=ALL if seeds_globals else 0)


class LaneRandomness:
    """The random numbers of a lane's batches in one pass, each set by `enter`.

    A stream cannot be read again, so the generators have to be right before anybody knows
    whether it draws. Seeding them for every batch costs 9 µs. Instead, the generators of every
    batch start where those of the first one did, as long as the lane has drawn nothing. Once it
    has drawn, every batch from number `seeded_from` on is seeded by its own number.

    The key of `sample_rng()` is that of the batch in any case.
    """

    __slots__ = ("_keys", "_lane", "_seeds_globals", "_start", "seeded_from")

    def __init__(
        self, keys: EpochKeys, lane: int, *, seeded_from: int | None, seeds_globals: bool
    ) -> None:
        self._keys = keys
        self._lane = lane
        self._seeds_globals = seeds_globals
        self._start: Captured | None = None  # the generators of the first batch, once needed
        self.seeded_from = seeded_from

    def enter(self, number: int) -> None:
        """Set the random numbers of a batch; -1 is for what comes before the first one."""
        key = functools.partial(self._keys.lane_key, self._lane, number)
        current = _threads.current
        current.key, current.generator = key, None
        if not self._seeds_globals:
            return
        start, seeded_from = self._start, self.seeded_from
        if number < 0 or (seeded_from is not None and number >= seeded_from):
            seed_all(key())
        elif start is not None:
            start.restore()
        else:
            seed_all(self._keys.lane_key(self._lane, 0))
            self._start = capture()

    def note_draws(self, number: int) -> None:
        """Look whether anything was drawn since batch `number` was entered."""
        start = self._start
        if self.seeded_from is None and start is not None and start.moved():
            self.seeded_from = number + 1


def in_lane(read: Callable[..., Result], *arguments: Any, seeds_globals: bool) -> Result:
    """Read a lane, and leave the caller's generators, and its sample, as they were."""
    current = _threads.current
    sample = current.key, current.generator, current.asked
    try:
        if seeds_globals:
            return _undisturbed(current, read, *arguments)
        return read(*arguments)
    finally:
        current.key, current.generator, current.asked = sample


def _keyed(
    current: _Current,
    each: Callable[[Argument], Result],
    arguments: Sequence[Argument],
    keys: Sequence[int],
    *,
    seeds: int = 0,
) -> list[Result]:
    """Apply `each` one by one, `current` knowing the key, some generators seeded by it."""
    results = []
    for argument, key in zip(arguments, keys, strict=True):
        seed(key, seeds)
        current.key = key
        current.generator = None
        try:
            results.append(each(argument))
        except Exception as error:
            _name_sample(error, argument)
            raise
    return results


def _plainly(each: Callable[[Argument], Result], arguments: Sequence[Argument]) -> list[Result]:
    remaining = iter(arguments)
    try:
        return [each(argument) for argument in remaining]
    except Exception as error:
        _name_sample(error, arguments[len(arguments) - length_hint(remaining) - 1])
        raise


def _name_sample(error: Exception, argument: object) -> None:
    """Add to an error which sample it was, or which where they were asked for at once."""
    what = "samples at indices" if isinstance(argument, list) else "sample at index"
    add_note(error, f"dataporter was fetching the {what} {reprlib.repr(argument)}")


class _Watch:
    """Looks whether random numbers are drawn from here on."""

    __slots__ = ("_before", "_current")

    def __init__(self, current: _Current) -> None:
        self._current = current
        self._before = capture()

    def begin(self) -> None:
        """Look from now on."""
        self._current.asked = False
        self._before = capture(self._before)

    def seen(self) -> int:
        """Name the generators that were drawn from, or seeded; torch's with any other.

        Draws inside `torch.random.fork_rng()` are not seen. To seed torch's costs least, and makes
        them right at least where others are.
        """
        moved = self._before.moved()
        return (moved and moved | TORCH) | (_OWN if self._current.asked else 0)

    def put_back(self) -> int:
        """Put the generators back, and name those that were drawn from, or seeded."""
        seen = self.seen()
        if seen & ALL:
            self._before.restore()
        return seen


# A class: a context of every batch that is made of a generator costs four times as much.


class _put_back_when_done:  # noqa: N801
    """Leave the thread's sample as it was: a dataset may itself iterate a loader."""

    __slots__ = ("_before", "_current", "_of_batch")

    def __init__(self, current: _Current) -> None:
        self._current = current
        self._before = current.key, current.generator, current.asked
        self._of_batch = current.sample_keys, current.seeds_calls

    def __enter__(self) -> None:
        self._current.sample_keys, self._current.seeds_calls = None, False

    def __exit__(self, *_: object) -> None:
        current = self._current
        current.key, current.generator, current.asked = self._before
        current.sample_keys, current.seeds_calls = self._of_batch


def _undisturbed(current: _Current, call: Callable[..., Result], *arguments: Any) -> Result:
    """Call something, and leave the global generators as they were.

    No context: an interrupt at the start of its exit would leave them as they are.
    """
    before = capture(current.callers.pop() if current.callers else None)
    try:
        result = call(*arguments)
        before.restore()
    except BaseException:
        before.restore()
        raise
    current.callers.append(before)
    return result
