"""Readers of data in files that `shards.py` compares: batches of 64, shuffled, without an end.

Each reads the same samples in its own format, with two workers and the shuffle that its
documentation recommends. Shuffles differ: torch's, Grain's and our default permute the whole data;
ours by tracks, MDS and LitData mix blocks; Hugging Face's stream and webdataset mix a buffer of
1,000 samples. A batch is whatever the reader makes of it: `values_of` finds the values in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
from loaders import Delivery
from players import die_with_player
from shard_data import Data
from torch.utils.data import DataLoader

import dataporter.shards.dataset as ours
from dataporter.resumable_dataloader import ResumableDataLoader

BATCH_SIZE = 64
WORKERS = 2
MOSAIC, NEPRR = "mosaicml-streaming", "neprr-streaming"
_LEAST = 64  # batches in a turn, or an epoch: what is fetched ahead would be a turn of no time
_BUFFER = 1_000  # samples in the shuffle buffer of a stream
_folders: dict[str, Path] = {}  # of distributions that are not installed, but lie in a folder

# Makes the batches of some data.
Batches = Callable[[Data], Iterator[Any]]


class _Reading(Delivery):
    """The batches of one contender, in turns that are longer than what it has fetched ahead."""

    def __init__(self, batches: Iterator[Any], epoch: int) -> None:
        super().__init__(batches, epoch)
        self._least = min(epoch, _LEAST)

    def warm_up(self, seconds: float) -> int:
        return max(super().warm_up(seconds), self._least)


def reading(batches: Batches, data: Data) -> Delivery:
    """Read an epoch, then be ready for turns."""
    epoch = data.rows // BATCH_SIZE
    delivery = _Reading(batches(data), epoch)
    delivery.turn(epoch)
    return delivery


def use_folder(name: str, folder: Path | None) -> None:
    """Import a distribution from a folder, in the players that need it.

    mosaicml-streaming and neprr-streaming have a module of the same name, and the second refuses
    to run where the first is installed.
    """
    if folder is not None:
        _folders[name] = folder.absolute()


def import_peer(name: str, module: str) -> Any:
    """Import a module of a distribution, from its folder if it has one."""
    if name in _folders:
        sys.path.insert(0, str(_folders[name]))
    return import_module(module)


def dataset(data: Data, form: str, order: str = "default") -> ours.ShardedDataset:
    """Our dataset over a format; `order` is "default", or "tracks" for any size."""
    if order == "tracks":
        use_tracks()
    return ours.ShardedDataset(
        data.folder / form,
        columns=[data.column],
        format=form,
        index=data.folder / "index" / form,
        cache=data.folder / "cache",
    )


def use_tracks() -> None:
    """Order by tracks in this process, however small the data."""
    ours.SMALL = 0


def loader(samples: ours.ShardedDataset, workers: int = WORKERS) -> ResumableDataLoader[Any]:
    """Our loader over our dataset."""
    return ResumableDataLoader(
        samples,
        BATCH_SIZE,
        shuffle=True,
        seed=1,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def _dataporter(form: str, order: str) -> Batches:
    return lambda data: again_and_again(loader(dataset(data, form, order)))


def _torch(data: Data) -> Iterator[Any]:
    """Read mmapped Arrow by Hugging Face's map-style dataset in torch's loader."""
    from datasets import Dataset, concatenate_datasets  # noqa: PLC0415  may be missing

    parts = [Dataset.from_file(str(path)) for path in data.files("arrow")]
    return again_and_again(_torch_loader(concatenate_datasets(parts), shuffle=True))


def _hugging_face_stream(data: Data) -> Iterator[Any]:
    return hugging_face_stream(_names(data, "parquet"))


def hugging_face_stream(files: list[str]) -> Iterator[Any]:
    """Read Parquet files by Hugging Face's stream."""
    from datasets import load_dataset  # noqa: PLC0415  likewise

    stream = load_dataset("parquet", data_files=files, split="train", streaming=True)
    stream = stream.shuffle(seed=1, buffer_size=_BUFFER)
    batches = _torch_loader(stream)
    epoch = 0
    while True:
        stream.set_epoch(epoch)
        yield from batches
        epoch += 1


def _mosaic(data: Data) -> Iterator[Any]:
    return mosaic(local=str(data.folder / "mds"))


def mosaic(**place: str) -> Iterator[Any]:
    """Read MDS by its own library."""
    streaming = import_peer(MOSAIC, "streaming")
    with suppress(AttributeError, ImportError):  # shared memory that a killed run has left
        streaming.base.util.clean_stale_shared_memory()
    samples = streaming.StreamingDataset(**place, batch_size=BATCH_SIZE, shuffle=True)
    return again_and_again(_torch_loader(samples))


def _neprr_threads(data: Data) -> Iterator[Any]:
    return neprr(0, local=str(data.folder / "mds"))


def _neprr_workers(data: Data) -> Iterator[Any]:
    return neprr(WORKERS, local=str(data.folder / "mds"))


def neprr(workers: int, **place: str) -> Iterator[Any]:
    """Read MDS by workers, or by threads of the process, which its documentation prefers."""
    streaming = import_peer(NEPRR, "streaming")
    config = streaming.StreamingRuntimeConfig(decode_threads=WORKERS, ready_queue_size=64)
    samples = streaming.StreamingDataset(
        **place,
        batch_size=BATCH_SIZE,
        shuffle=True,
        runtime_config=config,
    )
    options = {"persistent_workers": True, "worker_init_fn": die_with_player} if workers else {}
    return again_and_again(
        streaming.StreamingDataLoader(
            samples, batch_size=BATCH_SIZE, num_workers=workers, **options
        )
    )


def _litdata(data: Data) -> Iterator[Any]:
    return litdata(str(data.folder / "litdata"))


def litdata(place: str, **options: Any) -> Iterator[Any]:
    """Read LitData's chunks by its own library."""
    import litdata  # noqa: PLC0415  likewise

    samples = litdata.StreamingDataset(place, shuffle=True, drop_last=False, **options)
    return again_and_again(
        litdata.StreamingDataLoader(
            samples, batch_size=BATCH_SIZE, num_workers=WORKERS, persistent_workers=True
        )
    )


def _webdataset(data: Data) -> Iterator[Any]:
    return webdataset(_names(data, "tar"), data.column)


def webdataset(urls: list[str], column: str) -> Iterator[Any]:
    """Read tar files by webdataset."""
    import webdataset as wds  # noqa: PLC0415  likewise

    samples = wds.WebDataset(urls, shardshuffle=len(urls), seed=1).shuffle(_BUFFER).decode()
    batches = samples.to_tuple(column).batched(BATCH_SIZE)
    return again_and_again(
        wds.WebLoader(
            batches,
            batch_size=None,
            num_workers=WORKERS,
            persistent_workers=True,
            worker_init_fn=die_with_player,
        )
    )


def _grain(data: Data) -> Iterator[Any]:
    from grain import python as grain  # noqa: PLC0415  likewise

    paths = [str(path) for path in data.files("array_record")]
    samples = grain.MapDataset.source(grain.ArrayRecordDataSource(paths)).shuffle(seed=1)
    if data.kind == "texts":
        samples = samples.map(bytes.decode)
    # Its 16 threads by default make it six times slower on two cores.
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    stream = samples.repeat().to_iter_dataset(options).batch(BATCH_SIZE, batch_fn=list)
    return iter(stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS)))


def _names(data: Data, form: str) -> list[str]:
    return [str(path) for path in data.files(form)]


def _torch_loader(samples: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        samples,
        BATCH_SIZE,
        num_workers=WORKERS,
        persistent_workers=True,
        worker_init_fn=die_with_player,
        **options,
    )


def again_and_again(batches: Any) -> Iterator[Any]:
    """Read epoch after epoch."""
    while True:
        yield from batches


def sequential(data: Data) -> Iterator[Any]:
    """Read Parquet from beginning to end in one process: the limit of those that decode."""
    import pyarrow.parquet as pq  # noqa: PLC0415  likewise

    while True:
        for path in data.files("parquet"):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH_SIZE, use_threads=False):
                    yield batch.to_pydict()


def taken(data: Data) -> Iterator[Any]:
    """Take random rows of mmapped Arrow in one process: the limit of those that shuffle."""
    import pyarrow as pa  # noqa: PLC0415  likewise

    parts = []
    for path in data.files("arrow"):
        with pa.memory_map(str(path)) as file:
            parts.append(pa.ipc.open_stream(file).read_all())
    table = pa.concat_tables(parts).combine_chunks()
    random = np.random.default_rng(1)
    while True:
        order = random.permutation(len(table))
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            yield table.take(order[start : start + BATCH_SIZE]).to_pydict()


def values_of(batch: Any, column: str) -> Sequence[Any]:
    """Find the values in a batch, whatever its reader made of it.

    >>> values_of({"txt": ["a", "b"]}, "txt"), values_of((["a", "b"],), "txt")
    (['a', 'b'], ['a', 'b'])
    """
    if isinstance(batch, dict):
        return batch[column]  # type: ignore[no-any-return]
    if len(batch) == 1 and isinstance(batch[0], list | tuple):
        return batch[0]
    return batch  # type: ignore[no-any-return]


# Distribution, format and reader of each peer.
_PEERS: dict[str, tuple[str, str, Batches]] = {
    "torch": ("datasets", "arrow", _torch),
    "Hugging Face stream": ("datasets", "parquet", _hugging_face_stream),
    MOSAIC: (MOSAIC, "mds", _mosaic),
    f"{NEPRR}, threads": (NEPRR, "mds", _neprr_threads),
    f"{NEPRR}, workers": (NEPRR, "mds", _neprr_workers),
    "LitData": ("litdata", "litdata", _litdata),
    "webdataset": ("webdataset", "tar", _webdataset),
    "Grain": ("grain", "array_record", _grain),
}
FORMS = {"texts": ("parquet", "jsonl", "tar", "arrow", "mds"), "jpegs": ("tar", "parquet", "mds")}


def contenders(data: Data) -> dict[str, Batches]:
    """Ours, the first format by the name "dataporter", and the peers that can read the data."""
    first, *others = FORMS[data.kind]
    found = {"dataporter": _dataporter(first, "default")}
    found[f"dataporter, {first}, tracks"] = _dataporter(first, "tracks")
    for form in others:
        if data.has(form):
            found[f"dataporter, {form}"] = _dataporter(form, "default")
    for who in _installed_peers():
        _, form, batches = _PEERS[who]
        if data.has(form):
            found[who] = batches
    return found


def _installed_peers() -> list[str]:
    return [who for who, (name, _, _) in _PEERS.items() if version(name) is not None]


def version(name: str) -> str | None:
    """The version of a distribution; None if it is not there."""
    if name in _folders:
        found = metadata.distributions(path=[str(_folders[name])])
        return next((each.version for each in found if each.name == name), None)
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def versions() -> dict[str, str]:
    """Versions of the peers that are there."""
    found = {name: version(name) for name, _, _ in _PEERS.values()}
    return {name: version for name, version in found.items() if version is not None}


def missing(data: Data) -> list[str]:
    """Peers that are not installed, or whose format could not be written."""
    return [who for who in _PEERS if who not in contenders(data)]
