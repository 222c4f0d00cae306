"""Options as a type checker sees them: `make lint` fails where an ignored error is none."""

from dataporter import (
    PatchedDataLoader,
    ResumableDataLoader,
    StatefulDataLoader,
    create_resumable_dataloader,
)

DATA = [1, 2, 3]


def all_values_that_there_are() -> None:
    ResumableDataLoader(DATA, engine="processes", on_error="raise", strategy="auto", tail="pad")
    ResumableDataLoader(DATA, engine="threads", on_error="skip", strategy="unified", tail="drop")
    ResumableDataLoader(DATA, engine=None, strategy="simple", tail="uneven", num_workers="auto")
    ResumableDataLoader(DATA, strategy="distributed", rank=0, world_size=1)
    StatefulDataLoader(DATA, strategy=None)


def others_are_errors_in_the_editor() -> None:
    ResumableDataLoader(DATA, engine="thread")  # type: ignore[arg-type]
    ResumableDataLoader(DATA, on_error="ignore")  # type: ignore[arg-type]
    ResumableDataLoader(DATA, strategy="single")  # type: ignore[arg-type]
    ResumableDataLoader(DATA, tail="keep")  # type: ignore[arg-type]
    ResumableDataLoader(DATA, num_workers="many")  # type: ignore[arg-type]
    ResumableDataLoader(DATA, bach_size=3)  # type: ignore[call-arg]
    StatefulDataLoader(DATA, engine="thread")  # type: ignore[arg-type]
    StatefulDataLoader(DATA, strategy="single")  # type: ignore[arg-type]
    PatchedDataLoader(DATA, on_error="ignore")  # type: ignore[arg-type]
    create_resumable_dataloader(DATA, engine="thread")  # type: ignore[arg-type]
    create_resumable_dataloader(DATA, bach_size=3)  # type: ignore[call-arg]


def samples_have_the_type_of_the_data() -> ResumableDataLoader[int]:
    return create_resumable_dataloader(DATA, 2, shuffle=True)
