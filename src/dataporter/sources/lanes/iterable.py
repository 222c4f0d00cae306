"""An iterable before it is read: its name, its epoch, perhaps its length."""

from __future__ import annotations

from typing import Any

from dataporter.errors import LengthWarning
from dataporter.law import Tail
from dataporter.sources.users_sampler import epoch_of
from dataporter.user_warnings import warn_user


class Iterable:
    """An IterableDataset, as a loader over it speaks of it.

    `shuffle` is what was said of a DataPipe's; None if nothing was.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        drop_last: bool,
        has_workers: bool,
        shuffle: bool | None,
    ) -> None:
        self._dataset = dataset
        self._size = batch_size
        self._drop_last = drop_last
        self._has_workers = has_workers
        self._shuffle = shuffle
        self._length: int | None = None  # of the dataset, once somebody has asked for it
        self._too_long = ""  # the warning of a longer one

    @property
    def tail(self) -> Tail:
        """The fate of a last, short batch."""
        return "drop" if self._drop_last else "uneven"

    @property
    def order_id(self) -> str:
        """The name of the order, which is the iterable's own."""
        order = f"lanes of {type(self._dataset).__qualname__}"
        return order if self._shuffle is None else f"{order}, shuffle={self._shuffle}"

    def epoch_holder(self) -> Any:
        """The dataset, if it wants to be told the epoch."""
        tellable = callable(getattr(self._dataset, "set_epoch", None))
        return self._dataset if tellable and epoch_of(self._dataset) is not None else None

    def num_batches(self) -> int:
        """Count as torch does; a TypeError where the dataset does not say how long it is."""
        self._length, self._too_long = len(self._dataset), ""
        whole, rest = divmod(self._length, self._size)
        return whole + (rest > 0 and not self._drop_last)

    def check_length(self, samples: int) -> None:
        """Warn, as torch does, of more samples than the dataset said when it was asked.

        The words are the same at every batch, so that Python shows them once.
        """
        if self._length is None or samples <= self._length:
            return
        if not self._too_long:
            self._too_long = (
                f"Length of IterableDataset {self._dataset} was reported to be {self._length} "
                f"(when accessing len(dataloader)), but {samples} samples have been fetched. "
            )
            if self._has_workers:
                self._too_long += (
                    "For multiprocessing data-loading, this could be caused by not properly "
                    "configuring the IterableDataset replica at each worker. Please see "
                    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset "
                    "for examples."
                )
        warn_user(self._too_long, LengthWarning)
