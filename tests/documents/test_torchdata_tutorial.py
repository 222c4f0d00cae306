"""torchdata's tutorial of the StatefulDataLoader: every snippet runs, with its outputs."""

from typing import Any

import pytest
import torch
import torch.utils.data
from support import plain
from tutorial_dataset import MyIterableDataset

from dataporter.stateful_dataloader import StatefulDataLoader

# Saving and loading state


def test_saving_and_loading_state():
    dataset = list(range(40))

    dataloader = StatefulDataLoader(dataset, num_workers=2)
    for i, batch in enumerate(dataloader):
        assert batch.tolist() == [i]
        if i == 10:
            state_dict = dataloader.state_dict()
            break

    # Training run resumes with the previous checkpoint
    dataloader = StatefulDataLoader(dataset, num_workers=2)
    # Resume state with DataLoader
    dataloader.load_state_dict(state_dict)
    rest = []
    for _, batch in enumerate(dataloader):
        rest.extend(batch.tolist())
    assert rest == list(range(11, 40))


# Saving custom state with map-style datasets


class MySampler(torch.utils.data.Sampler[int]):
    def __init__(self, high: int, seed: int, limit: int):
        self.seed, self.high, self.limit = seed, high, limit
        self.g = torch.Generator()
        self.g.manual_seed(self.seed)
        self.i = 0

    def __iter__(self):
        while self.i < self.limit:
            val = int(torch.randint(high=self.high, size=(1,), generator=self.g))
            self.i += 1
            yield val

    def load_state_dict(self, state_dict: dict[str, Any]):
        self.i = state_dict["i"]
        self.g.set_state(state_dict["rng"])

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i, "rng": self.g.get_state()}


# Optional: save dataset random transform state
class NoisyRange(torch.utils.data.Dataset):
    def __init__(self, high: int, mean: float, std: float):
        self.high, self.mean, self.std = high, torch.tensor([float(mean)]), float(std)

    def __len__(self):
        return self.high

    def __getitem__(self, idx: int) -> float:
        if not (0 <= idx < self.high):
            raise IndexError
        x = torch.normal(self.mean, self.std)
        noise = x.item()
        return idx + noise

    def load_state_dict(self, state_dict):
        torch.set_rng_state(state_dict["rng"])

    def state_dict(self):
        return {"rng": torch.get_rng_state()}


def test_the_sampler_of_the_tutorial_yields_what_it_does_there():
    assert list(MySampler(5, 1, 10)) == [0, 4, 4, 3, 3, 3, 1, 1, 4, 2]


def test_saving_custom_state_with_map_style_datasets():
    # Test both single/multiprocess dataloading
    for num_workers in [0, 2]:
        dl = StatefulDataLoader(
            NoisyRange(5, 1, 1),
            sampler=MySampler(5, 1, 10),
            batch_size=2,
            drop_last=False,
            num_workers=num_workers,
        )

        batches = []
        for i, batch in enumerate(dl):
            batches.append(batch)
            if i == 2:
                sd = dl.state_dict()

        dl.load_state_dict(sd)
        batches2 = list(dl)

        assert len(batches) == 5
        assert plain(batches[3:]) == plain(batches2)
        assert batches2[0].dtype is torch.float64


# Saving custom state with iterable-style datasets


OUTPUTS = {
    0: [[2, 10], [3, 1], [11, 6]],
    2: [[4, 10], [3, 11], [1, 6]],
}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_saving_custom_state_with_iterable_style_datasets(num_workers):
    # Test both single/multiprocess dataloading
    dl = StatefulDataLoader(
        MyIterableDataset(12, 0), batch_size=2, drop_last=False, num_workers=num_workers
    )

    batches = []
    for i, batch in enumerate(dl):
        batches.append(batch)
        if i == 2:
            sd = dl.state_dict()

    dl.load_state_dict(sd)
    batches2 = list(dl)

    assert plain(batches[3:]) == OUTPUTS[num_workers]
    assert plain(batches2) == OUTPUTS[num_workers]
