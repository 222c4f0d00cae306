"""The training kit: collators against transformers', and what converters and loaders cost."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Quartiles, interleaved, table
from torch.utils.data import DataLoader, TensorDataset

from dataporter.converters import KeyBasedDtypeConverter
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.training import (
    DataLoaderConfig,
    DataLoaderFactory,
    LanguageModelingDataCollator,
    VisionDataCollator,
)

ROUNDS = 9
BATCHES = 40  # collated in a round
VOCABULARY = 30_000
STEP_SECONDS = 0.01
STEPS = 400
SAMPLES, WIDTH = 64, 32 * 1024  # of the table of savings: large enough that pages do not count


def main() -> None:
    """Print all tables, and how busy the machine was."""
    torch.set_num_threads(1)  # as in workers; and two threads wait for each other on busy cores
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    print(f"\nload of the machine over 1, 5 and 15 minutes: {load} on {os.cpu_count()} cores")
    print(collators())
    print(conversion())
    print(overhead())
    print(savings())


# Collators


def collators() -> str:
    """The same rows, collated by both; first it is checked that they agree."""
    from transformers import (  # noqa: PLC0415  takes seconds
        DataCollatorForLanguageModeling,
        DataCollatorWithPadding,
    )

    tokenizer = _tokenizer()
    batches = [_tokenised_rows(32, seed) for seed in range(BATCHES)]
    ours = partial(LanguageModelingDataCollator, tokenizer)
    rows = []
    for name, mine, theirs, target in (
        (
            "causal, padded",
            ours(),
            DataCollatorForLanguageModeling(tokenizer, mlm=False),
            2.0,
        ),
        ("masked, padded", ours(mlm=True), DataCollatorForLanguageModeling(tokenizer), 1.0),
        ("padded only", ours(own_labels_only=True), DataCollatorWithPadding(tokenizer), 1.0),
    ):
        _check_agreement(mine(batches[0]), theirs(batches[0]), masks=name.startswith("masked"))
        work = {
            "dataporter": partial(_collate_all, mine, batches),
            "transformers": partial(_collate_all, theirs, batches),
        }
        seconds = interleaved(work, ROUNDS)
        rows.append(
            (
                name,
                *(f"{spent / BATCHES * 1e6:,.0f} µs" for spent in seconds.values()),
                f"{seconds['transformers'] / seconds['dataporter']:.1f}x",
                f"{target:.1f}x",
            )
        )
    header = ("32 rows of 16 to 256 tokens", "dataporter", "transformers", "ratio", "target")
    return table("Collators, a batch", header, rows)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models  # noqa: PLC0415  comes with transformers
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415  takes seconds

    # It says at every first padding that tokenising would have padded too.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    words = [*special.values(), *(f"word{n}" for n in range(VOCABULARY))]
    raw = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=words[1]))
    return PreTrainedTokenizerFast(tokenizer_object=raw, **special)


def _tokenised_rows(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Rows as a tokenizer leaves them in a dataset."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(16, 257, count).tolist()
    return [
        {"input_ids": rng.integers(3, VOCABULARY, n).tolist(), "attention_mask": [1] * n}
        for n in lengths
    ]


def _check_agreement(mine: Any, theirs: Any, *, masks: bool) -> None:
    same = ["attention_mask"] if masks else list(theirs)
    for name in same:
        if not torch.equal(mine[name], theirs[name]):
            msg = f"{name} differs, so that speeds cannot be compared."
            raise ValueError(msg)


def _collate_all(collate: Callable[[Any], Any], batches: Iterable[Any]) -> None:
    for rows in batches:
        collate(rows)


# Conversion


def conversion() -> str:
    """Whole batches by a converter, and the bare casts that it has to make in any case."""
    rows = []
    for name, batch in (
        ("images of 64x64, batches of 32", {"image": torch.rand(32, 3, 64, 64)}),
        (
            "512 tokens, batches of 32",
            {
                "input_ids": torch.randint(0, VOCABULARY, (32, 512)),
                "attention_mask": torch.ones(32, 512, dtype=torch.int64),
                "labels": torch.randint(0, 10, (32,)),
            },
        ),
    ):
        names = {"image": "float16", "attention_mask": "uint8"}
        dtypes = {key: getattr(torch, names.get(key, "int32")) for key in batch}
        converter = KeyBasedDtypeConverter(dtypes)
        work = {
            "converter": partial(_repeat, partial(converter.convert_batch, batch)),
            "casts": partial(_repeat, partial(_bare_casts, batch, dtypes)),
        }
        seconds = {who: spent / BATCHES for who, spent in interleaved(work, ROUNDS).items()}
        spent = seconds["converter"] - seconds["casts"]
        rows.append(
            (
                name,
                *(f"{each * 1e6:,.0f} µs" for each in seconds.values()),
                f"{spent * 1e6:,.0f} µs, {spent / STEP_SECONDS:.1%} of a 10 ms step",
            )
        )
    header = ("", "converter", "unchecked casts", "checks and containers cost")
    return table("Conversion, a batch", header, rows)


def _repeat(work: Callable[[], object]) -> None:
    for _ in range(BATCHES):
        work()


def _bare_casts(batch: dict[str, torch.Tensor], dtypes: dict[str, torch.dtype]) -> object:
    return {name: tensor.to(dtypes[name]) for name, tensor in batch.items()}


# The loader beside a training step


def overhead() -> str:
    """Time that loaders add to the same batches made by hand, in steps of 10 ms.

    Steps sleep, as a process does while its device computes; so caches are cold, as in training.
    All take turns batch by batch, in random order. Times are CPU time of the thread that asks for
    a batch, which other processes change little. With workers, a batch by hand is one that is
    ready.
    """
    rows = []
    for name, dataset, by_hand, collate in _workloads():
        for num_workers in (0, 2):
            config = DataLoaderConfig(
                shuffle=True, num_workers=num_workers, seed=1, collate_fn=collate
            )
            ours = DataLoaderFactory().create_dataloader(dataset, config)
            torchs = DataLoader(
                dataset, 32, shuffle=True, num_workers=num_workers, collate_fn=collate
            )
            spent = _cpu_times(_by_hand(dataset, by_hand, is_ready=num_workers > 0), ours, torchs)
            hand, *others = (spent[who] for who in ("by hand", "dataporter", "torch"))
            added = [[a - b for a, b in zip(each, hand, strict=True)] for each in others]
            texts = [Quartiles.of([1e6 * each for each in a]).text("{:.0f} µs") for a in added]
            share = statistics.median(added[0]) / STEP_SECONDS
            made = f"{statistics.median(hand) * 1e6:.0f} µs" if num_workers == 0 else "-"
            rows.append((name, str(num_workers), made, texts[0], f"{share:.2%}", texts[1]))
    header = (
        *("batches of 32", "workers", "by hand", "dataporter adds", "of a 10 ms step"),
        "torch adds",
    )
    return table("CPU time in next(), a batch: medians and quartiles", header, rows)


def _by_hand(
    dataset: Any, by_hand: Callable[[torch.Tensor], Any], *, is_ready: bool
) -> Iterable[Any]:
    order = torch.split(torch.randperm(len(dataset)), 32)
    return [by_hand(indices) for indices in order] if is_ready else map(by_hand, order)


def _cpu_times(
    by_hand: Iterable[Any], ours: Iterable[Any], torchs: Iterable[Any]
) -> dict[str, list[float]]:
    """CPU seconds for every batch after the first, in which workers start."""
    contenders = {"by hand": iter(by_hand), "dataporter": iter(ours), "torch": iter(torchs)}
    for each in contenders.values():
        next(each)
    spent: dict[str, list[float]] = {who: [] for who in contenders}
    turns = random.Random(0)
    for _ in range(STEPS - 1):
        for who in turns.sample([*contenders], len(contenders)):
            time.sleep(STEP_SECONDS / len(contenders))  # a step lies between two turns of each
            start = time.thread_time()
            batch = next(contenders[who])
            spent[who].append(time.thread_time() - start)
            del batch
    return spent


def _workloads() -> Iterable[tuple[str, Any, Callable[[torch.Tensor], Any], Any]]:
    """Name, dataset, what makes a batch of its samples by hand, and the collate function."""
    pair = torch.randn(32 * STEPS, 32), torch.randint(0, 10, (32 * STEPS,))
    yield "tensors", TensorDataset(*pair), lambda at: [part[at] for part in pair], None
    windows = torch.randint(0, VOCABULARY, (32 * STEPS, 256))
    yield "windows of 256 tokens", windows, windows.__getitem__, None
    lengths = np.random.default_rng(0).integers(16, 257, 32 * STEPS).tolist()
    ids = [torch.randint(0, VOCABULARY, (n,)) for n in lengths]
    collate = LanguageModelingDataCollator()
    yield "ragged ids, padded", ids, lambda at: collate([ids[n] for n in at.tolist()]), collate
    images = np.random.default_rng(0).integers(0, 256, (32 * STEPS, 32, 32, 3), dtype=np.uint8)
    stack = VisionDataCollator()
    rows = [{"img": image, "label": n % 10} for n, image in enumerate(images)]
    yield "images of 32x32", rows, lambda at: stack([rows[n] for n in at.tolist()]), stack


# Savings


class Rows:
    """Rows of ones, of one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._row = torch.ones(WIDTH, dtype=dtype)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"data": self._row}


def savings() -> str:
    """Savings of conversions, by the library's report and in the memory that workers share."""
    rows = []
    for use, before, after, promised in (
        ("embeddings, images", torch.float32, "float16", 0.5),
        ("token ids, labels", torch.int64, "int32", 0.5),
        ("positions", torch.int64, "int16", 0.75),
        ("attention masks", torch.int64, "uint8", 0.875),
    ):
        dataset, converter = Rows(before), KeyBasedDtypeConverter({"data": after})
        report = converter.report(next(iter(ResumableDataLoader(dataset, batch_size=8))))
        wide, narrow = (_shared_bytes(dataset, by) for by in (None, converter))
        rows.append(
            (
                use,
                f"{str(before).removeprefix('torch.')} to {after}",
                f"{promised:.1%}",
                f"{report.saved:.1%}",
                f"{1 - narrow / wide:.1%} ({wide / 2**20:.1f} to {narrow / 2**20:.1f} MiB)",
            )
        )
    header = ("", "conversion", "promised", "reported", "saved in the workers' shared memory")
    return table("Memory saved by conversion", header, rows)


def _shared_bytes(dataset: Any, converter: Any) -> int:
    """Shared memory of all batches of a pass, if they are kept."""
    loader = ResumableDataLoader(dataset, batch_size=8, num_workers=1, converter=converter)
    kept, held = [], 0
    for batch in loader:
        kept.append(batch)
        held = max(held, _arena_bytes())  # the pass gives it up with its last batch
    return held


def _arena_bytes() -> int:
    """Memory of this process's arenas, each counted once."""
    found = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(descriptor.readlink()).startswith("/memfd:dataporter"):
                status = descriptor.stat()
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


if __name__ == "__main__":
    main()
