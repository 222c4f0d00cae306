"""The ranks of a run as loaders in one process, advanced in step."""

from typing import Any

from support import Ids, plain

from dataporter import ResumableDataLoader


def ranks(
    length: int, world_size: int, batch_size: int, dataset: type[Ids] = Ids, **options: Any
) -> list[ResumableDataLoader]:
    if not length:
        options["shuffle"] = False  # there is nothing to shuffle, which is an error
    return [
        ResumableDataLoader(
            dataset(length),
            batch_size,
            seed=5,
            strategy="distributed",
            rank=rank,
            world_size=world_size,
            **options,
        )
        for rank in range(world_size)
    ]


def run(loaders: list[ResumableDataLoader], steps: int | None = None) -> list[list[Any]]:
    """Advance all ranks in step; the batches of each rank."""
    iterators = [iter(loader) for loader in loaders]
    seen: list[list[Any]] = [[] for _ in loaders]
    done = 0
    while steps is None or done < steps:
        ended = 0
        for rank, batches in enumerate(iterators):
            batch = next(batches, None)
            if batch is None:
                ended += 1
            else:
                seen[rank].append(plain(batch))
        if ended == len(loaders):
            break
        done += 1
    return seen


def state_of(loaders: list[ResumableDataLoader]) -> dict[str, Any]:
    """The state of a run: the same on every rank."""
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    return states[0]
