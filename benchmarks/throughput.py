"""Delivery without workers against torch's loader, and what keeping the state costs."""

from __future__ import annotations

import platform
from functools import partial
from typing import Any

import torch
from measure import interleaved, table
from torch.utils.data import DataLoader, TensorDataset
from workloads import FiveFields, TokenWindows

from dataporter import ResumableDataLoader

ROUNDS = 9


def rows_in_memory() -> list[dict[str, Any]]:
    """Make the same dicts beforehand, as after reading a file of rows."""
    fields = FiveFields(8192)
    return [fields[index] for index in range(len(fields))]


def main() -> None:
    """Print both tables."""
    print(f"\n{platform.processor() or platform.machine()}, torch {torch.__version__}")
    print(against_torch())
    print(state_keeping())


def against_torch() -> str:
    """Whole shuffled epochs, this loader and torch's in turns."""
    tensors = TensorDataset(torch.randn(65_536, 32), torch.randint(0, 10, (65_536,)))
    rows = []
    for name, dataset, batch_size, target in (
        ("token windows (256 int32), batches of 64", TokenWindows(8192), 64, 1.0),
        ("TensorDataset, batches of 256", tensors, 256, 20.0),
        ("dicts of five fields in memory, batches of 128", rows_in_memory(), 128, 1.3),
        ("dicts of five fields made at reading, batches of 128", FiveFields(8192), 128, 1.3),
    ):
        loaders: dict[str, DataLoader[Any]] = {
            "torch": DataLoader(dataset, batch_size, shuffle=True),  # type: ignore[arg-type]
            "dataporter": ResumableDataLoader(dataset, batch_size, shuffle=True, seed=1),
        }
        epochs = {who: partial(_drain, loader) for who, loader in loaders.items()}
        seconds = interleaved(epochs, ROUNDS)
        samples = len(dataset)
        rows.append(
            (
                name,
                f"{samples / seconds['torch']:,.0f}",
                f"{samples / seconds['dataporter']:,.0f}",
                f"{seconds['torch'] / seconds['dataporter']:.2f}x",
                f"{target:.1f}x",
            )
        )
    header = ("without workers, samples/s", "torch", "dataporter", "ratio", "target")
    return table("Throughput", header, rows)


def state_keeping() -> str:
    """Epochs with a state taken at every step, and without."""
    loader = ResumableDataLoader(TokenWindows(8192), 64, shuffle=True, seed=1)

    def with_states() -> None:
        for _ in loader:
            loader.state_dict()

    def without() -> None:
        _drain(loader)

    seconds = interleaved({"never": without, "every step": with_states}, ROUNDS)
    steps = len(loader)
    rows = [(name, f"{spent / steps * 1e6:.1f} µs") for name, spent in seconds.items()]
    return table("Cost of the state", ("state_dict() called", "time a step"), rows)


def _drain(loader: DataLoader[Any]) -> None:
    for _ in loader:
        pass


if __name__ == "__main__":
    main()
