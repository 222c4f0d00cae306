"""Loading a state: what it says is compared with what a source has, and fitted to it.

Every field of an identity that would silently change the data is checked. A difference says what
was saved, what is there now, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dataporter.errors import (
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
    UncheckedStateWarning,
)
from dataporter.law.state import PLACE_FIELDS, Identity, Progress, is_place, parse_place
from dataporter.sources.source import Resumption, Source
from dataporter.user_warnings import warn_user


class Mismatch(NamedTuple):
    """A difference between a state and a loader: both values, and a remedy."""

    field: str  # the state's entry
    found: str
    remedy: str
    may_pass: bool = True  # whether strict=False is worth a word

    def as_error(self, progress: Progress) -> str:
        """Say it to somebody who may choose to go on nevertheless."""
        if not self.may_pass:
            return f"{self.found} {self.remedy}"
        at = f"strict=False to continue here at position {progress.samples_processed:,}"
        return f"{self.found} {self.remedy.removesuffix('.')}, or pass {at}."

    def as_warning(self, progress: Progress) -> str:
        """Say it to somebody who has chosen to."""
        at = f"The run continues here at position {progress.samples_processed:,}"
        return f"{self.found} {at}: samples may come twice or never. To avoid that: {self.remedy}"


_LANES_UNREAD = Mismatch(
    "lanes",
    "the state has lanes, of an iterable or a dataset with a state; this dataset is read by index "
    "and has none.",
    "Resume with the dataset that it was saved with.",
    may_pass=False,
)


def resumption(
    source: Source, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strict: bool
) -> Resumption:
    """Return where a state leads to in a source; nothing has changed yet.

    A state of other data, another order or another seed is refused. If not `strict`, that is a
    warning.
    """
    found: list[Mismatch] = []
    if is_place(state):
        saved, progress = _from_place(source, state)
    else:
        saved, progress = source.parse(state)
        present = source.identity_after(saved)
        found += mismatches(saved, present, world_may_change=source.world_may_change)
    if progress.lanes is not None and not source.has_lanes:
        found.append(_LANES_UNREAD)
        progress = progress._replace(lanes=None)
    if found and strict:
        msg = "\n".join(each.as_error(progress) for each in found)
        raise StateMismatchError(msg, mismatches=found)
    for each in found:
        warn_user(each.as_warning(progress), StateMismatchWarning)
    progress, length = source.admit(progress, saved, same_data=not found, strict=strict)
    if is_place(state):
        is_drawn = source.shuffle and not source.seed_is_given
        message = unchecked(progress, seed=source.seed if is_drawn else None)
        warn_user(message, UncheckedStateWarning)
    seed = source.seed if source.seed_is_given else saved.seed
    order = None if is_place(state) else saved.order
    rank = None if is_place(state) else saved.rank
    return Resumption(progress, seed, length, order, saved.excluded, rank)


def _from_place(source: Source, state: Any) -> tuple[Identity, Progress]:
    """Read a position in the source's own order: there is nothing to compare it with."""
    if source.place_lacks is not None:
        msg = (
            f"the state holds only a position, and this loader needs the state of "
            f"{source.place_lacks} too. Pass the whole dict that state_dict() returned, or "
            "begin the epoch anew."
        )
        raise StateFormatError(msg)
    return replace(source.identity(), length=None), parse_place(state)


def mismatches(saved: Identity, present: Identity, *, world_may_change: bool) -> Iterator[Mismatch]:
    """Compare a state's identity with a loader's, in the order a user should look.

    `batch_size` never counts: the position does not depend on it.
    """
    if saved.num_samples != present.num_samples:
        yield Mismatch(
            "num_samples",
            f"num_samples changed: the state was saved over {_samples(saved)}, "
            f"this dataset has {_samples(present)}.",
            "Resume with the same data.",
        )
    elif is_other_data(saved.fingerprint, present.fingerprint):
        yield Mismatch(
            "fingerprint",
            f"fingerprint changed: the state was saved over data {saved.fingerprint!r}, this "
            f"dataset is {present.fingerprint!r}.",
            "Resume with the same data; if its values are meant to change, give the dataset a "
            "fingerprint() that returns what stays.",
        )
    if saved.shuffle != present.shuffle:
        yield Mismatch(
            "shuffle",
            f"shuffle changed: the state was saved with shuffle={saved.shuffle}, this loader has "
            f"shuffle={present.shuffle}.",
            f"Build it with shuffle={saved.shuffle}.",
        )
    elif saved.order != present.order:
        yield Mismatch(
            "order",
            f"order changed: the state was saved with the order {saved.order!r}, this loader has "
            f"{present.order!r}.",
            "Build it with the same sampler and weights.",
        )
    if saved.seed != present.seed:
        yield Mismatch(
            "seed",
            f"seed changed: the state was saved with seed={saved.seed}, this loader has "
            f"seed={present.seed}.",
            f"Build it with seed={saved.seed} or without a seed (the state's is taken then).",
        )
    if saved.world_size != present.world_size and not world_may_change:
        yield Mismatch(
            "world_size",
            f"world_size changed: the state was saved on {saved.world_size} ranks, this run has "
            f"{present.world_size}, and a sampler of your own, the iterable itself or the state of "
            "the dataset decides what each of them reads.",
            f"Resume on {saved.world_size} ranks. dataporter's own order goes on with any number, "
            "and so does an iterable with lanes=.",
            may_pass=False,
        )
    elif saved.rank != present.rank and None not in (saved.rank, present.rank):
        yield Mismatch(
            "rank",
            f"rank changed: the state is that of rank {saved.rank} alone, this is rank "
            f"{present.rank}, and the iterable, dataset or batch sampler has another state on each "
            "rank.",
            "Save the states of all ranks, and load each on its own rank.",
        )


def is_other_data(saved: str | None, present: str | None) -> bool:
    """Return True if two fingerprints are known to belong to different data.

    A dataset that says nothing of itself, then or now, cannot be told apart; nor can two
    subsets of such by more than their indices.

    >>> is_other_data("v1", "v2"), is_other_data("v1", None), is_other_data("[ab]", "v1[ab]")
    (True, False, False)
    """
    if saved is None or present is None or saved == present:
        return False
    shorter, longer = sorted((saved, present), key=len)
    return not (shorter.startswith("[") and longer.endswith(shorter))


def unchecked(progress: Progress, *, seed: int | None) -> str:
    """Say what is not known of a state that is only a place; `seed` if the loader drew one."""
    drawn = (
        ""
        if seed is None
        else f" This loader's seed is {seed}, which was drawn: build it with the seed of the run "
        "that saved the state, or the rest of its epoch is in another order."
    )
    return (
        f"the state holds only {', '.join(PLACE_FIELDS)}, so nothing could be checked: neither "
        f"data nor order nor seed. The run continues at epoch {progress.epoch}, position "
        f"{progress.samples_processed:,}.{drawn} What state_dict() returns from here on says more."
    )


def _samples(identity: Identity) -> str:
    if identity.num_samples is None:
        return "an unknown number of samples"
    return f"{identity.num_samples:,} samples"
