"""Readers of data on an object server that `server_shards.py` compares.

Each begins with an empty folder for what it brings to this machine. Peers take the end point and
the keys from the environment; webdataset reads by curl, and Hugging Face by plain HTTP.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import shard_contenders
from object_server import REGION, SECRET, ObjectServer
from obstore.store import S3Store
from shard_contenders import BATCH_SIZE, MOSAIC, NEPRR
from shard_data import TITLES, Data

from dataporter.shards.dataset import ShardedDataset

BUCKET = "bench"
REQUESTS = 32  # at a time, of ours by default
_FORMS = {"texts": ("parquet", "mds"), "jpegs": ("tar", "mds")}
_UPLOADED = ("parquet", "tar", "mds", "litdata")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Samples of one kind on a server, and beside it on this machine."""

    data: Data
    server: ObjectServer

    @property
    def title(self) -> str:
        """The samples in words."""
        return f"{self.data.rows:,} {TITLES[self.data.kind]}"

    @property
    def forms(self) -> list[str]:
        """The formats that ours is measured with, the usual one first."""
        return [form for form in _FORMS[self.data.kind] if self.data.has(form)]

    def through(self, endpoint: str) -> Served:
        """The same samples, reached by a proxy."""
        return replace(self, server=self.server.through(endpoint))

    def upload(self) -> None:
        """Put all formats onto the server."""
        top = self.data.folder.parent
        for form in _UPLOADED:
            if self.data.has(form):
                files = {str(path.relative_to(top)): path for path in self.data.files(form)}
                self.server.upload(BUCKET, files)

    def url(self, form: str, scheme: str = f"s3://{BUCKET}") -> str:
        """The folder of a format."""
        return f"{scheme}/{self.data.folder.name}/{form}"

    def urls(self, form: str) -> list[str]:
        """The files of a format, by plain HTTP."""
        folder = self.url(form, f"{self.server.endpoint}/{BUCKET}")
        return [f"{folder}/{path.name}" for path in self.data.files(form)]

    def dataset(self, form: str, cache: Path, **options: Any) -> ShardedDataset:
        """Our dataset, with an index that is kept."""
        return ShardedDataset(
            self.url(form),
            **{
                "columns": [self.data.column],
                "format": form,
                "index": self.data.folder / "index of served" / form,
                "cache": cache,
                "storage_options": self.server.options,
                **options,
            },
        )

    def local(self, form: str, cache: Path) -> ShardedDataset:
        """Our dataset over the same files on this machine."""
        return ShardedDataset(
            self.data.folder / form,
            columns=[self.data.column],
            format=form,
            index=self.data.folder / "index" / form,
            cache=cache,
        )


class Reader:
    """A reader of data. The folder that it gets is empty at its beginning."""

    def prepare(self, folder: Path) -> None:
        """Do what does not belong to an epoch: import libraries, build an index."""

    def batches(self, folder: Path) -> Iterator[Any]:
        """Begin an epoch."""
        raise NotImplementedError


class Ours(Reader):
    """Our loader, from the server or from the same files on this machine."""

    def __init__(self, served: Served, form: str, *, local: bool = False) -> None:
        self._open = partial(served.local if local else served.dataset, form)

    def prepare(self, folder: Path) -> None:
        self._open(folder)

    def batches(self, folder: Path) -> Iterator[Any]:
        return iter(shard_contenders.loader(self._open(folder)))


class BareGets(Reader):
    """obstore's ranged GETs of what an epoch needs, as many at a time as ours, and nothing else."""

    def __init__(self, served: Served, form: str) -> None:
        self._served, self._form = served, form

    def prepare(self, folder: Path) -> None:
        self.ranges = _ranges(self._served.dataset(self._form, folder))

    def batches(self, folder: Path) -> Iterator[None]:
        """Get all; then there are as many batches as an epoch has."""
        del folder
        asyncio.run(self._get())
        return iter([None] * (self._served.data.rows // BATCH_SIZE))

    async def _get(self) -> None:
        options = {"client_options": {"allow_http": True}, **self._served.server.options}
        store = S3Store(BUCKET, **options)
        turns = asyncio.Semaphore(REQUESTS)

        async def get(path: str, start: int, end: int) -> None:
            async with turns:
                await obstore.get_range_async(store, path, start=start, end=end)

        folder = self._served.url(self._form, "")[1:]
        await asyncio.gather(
            *(get(f"{folder}/{path}", start, end) for path, start, end in self.ranges)
        )


def _ranges(samples: ShardedDataset) -> list[tuple[str, int, int]]:
    """The byte ranges of all blocks, and of the ends of files behind them, in a random order."""
    index = samples.index
    found = [
        (index.paths[file], int(start), int(start + size))
        for file, start, size in zip(index.file, index.offset, index.size, strict=True)
    ]
    if index.format == "parquet":
        for number, path in enumerate(index.paths):
            blocks = index.file == number
            end = int((index.offset[blocks] + index.size[blocks]).max())
            found.append((path, end, int(index.sizes[number])))
    return [found[place] for place in np.random.default_rng(1).permutation(len(found))]


class Peer(Reader):
    """Another loader."""

    def __init__(self, served: Served, who: str) -> None:
        self._served = served
        self._distribution, self._module, _, self._read = _PEERS[who]

    def prepare(self, folder: Path) -> None:
        del folder
        os.environ.update(_environment(self._served.server))
        shard_contenders.import_peer(self._distribution, self._module)

    def batches(self, folder: Path) -> Iterator[Any]:
        return self._read(self._served, folder)


def _environment(server: ObjectServer) -> dict[str, str]:
    """The variables by which libraries find a server of S3."""
    return {
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": server.endpoint,
        "S3_ENDPOINT_URL": server.endpoint,
    }


def _webdataset(served: Served, empty: Path) -> Iterator[Any]:
    del empty
    urls = [f"pipe:curl -s -f {url}" for url in served.urls("tar")]
    return shard_contenders.webdataset(urls, served.data.column)


def _hugging_face_stream(served: Served, empty: Path) -> Iterator[Any]:
    del empty
    return shard_contenders.hugging_face_stream(served.urls("parquet"))


def _mosaic(served: Served, empty: Path) -> Iterator[Any]:
    return shard_contenders.mosaic(local=str(empty), remote=served.url("mds"))


def _neprr(served: Served, empty: Path) -> Iterator[Any]:
    """Read by threads: its workers hang when they are forked here."""
    return shard_contenders.neprr(0, local=str(empty), remote=served.url("mds"))


def _litdata(served: Served, empty: Path) -> Iterator[Any]:
    from litdata.streaming import downloader  # noqa: PLC0415  may be missing

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001  it has no option
    options = {
        "endpoint_url": served.server.endpoint,
        "aws_access_key_id": "anybody",
        "aws_secret_access_key": SECRET,
        "region_name": REGION,
    }
    url = served.url("litdata")
    return shard_contenders.litdata(url, cache_dir=str(empty), storage_options=options)


# Distribution, module, format and reader of each peer.
_PEERS: dict[str, tuple[str, str, str, Callable[[Served, Path], Iterator[Any]]]] = {
    NEPRR: (NEPRR, "streaming", "mds", _neprr),
    "LitData": ("litdata", "litdata", "litdata", _litdata),
    "Hugging Face stream": ("datasets", "datasets", "parquet", _hugging_face_stream),
    MOSAIC: (MOSAIC, "streaming", "mds", _mosaic),
    "webdataset": ("webdataset", "webdataset", "tar", _webdataset),
}


def readers(served: Served) -> dict[str, Reader]:
    """Ours in its formats, and the peers that are there."""
    found: dict[str, Reader] = {}
    for form in served.forms:
        found[f"dataporter, {form}"] = Ours(served, form)
    for who, (distribution, _, form, _) in _PEERS.items():
        if served.data.has(form) and shard_contenders.version(distribution) is not None:
            found[who] = Peer(served, who)
    return found
