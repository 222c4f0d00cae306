"""Dream Trainer's data utilities: every snippet of the document runs."""

import os
from types import SimpleNamespace

import pytest
import torch
from small_tokenizer import LINES, small_tokenizer
from support import Ids, flat, plain
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from dataporter import ResumableDataLoader, ResumableSampler
from dataporter.utils.dataloader import (
    Batch,
    DataLoaderSetupMixin,
    get_epoch_length,
    get_train_dataloader_steps,
    get_val_dataloader_steps,
    profile_dataloader,
)

LOADERS = pytest.mark.parametrize(
    "loader_class", [DataLoader, ResumableDataLoader], ids=["torch", "dataporter"]
)


# DataLoader utilities


@LOADERS
def test_get_epoch_length(loader_class):
    train_dataloader = loader_class(Ids(100), batch_size=8)

    # Automatically determine length
    epoch_length = get_epoch_length(train_dataloader, length=None)
    assert epoch_length == 13

    # Or specify manually
    epoch_length = get_epoch_length(train_dataloader, length=1000)
    assert epoch_length == 1000


@LOADERS
def test_the_numbers_of_steps(loader_class):
    loader = loader_class(Ids(96), batch_size=8)
    assert get_train_dataloader_steps(loader, None, 32, 2) == (32, 12, 2)
    assert get_val_dataloader_steps(loader, 5, 3, 2) == (3, 2)


def test_batch_type():
    input_tensor, target_tensor, attention_mask = torch.ones(2), torch.ones(2), torch.ones(2)

    # Batch is a dict[str, Any]
    batch: Batch = {
        "input": input_tensor,
        "target": target_tensor,
        "mask": attention_mask,
        # ... any other fields
    }
    assert isinstance(batch, dict)
    assert str(Batch) == "dict[str, typing.Any]"


# DataLoader best practices


@LOADERS
@pytest.mark.parametrize("size", [1, 2])
def test_distributed_sampling(loader_class, size):
    train_dataset, val_loader, batch_size = Ids(40), None, 4

    class Trainer:
        def __init__(self, rank):
            self.world = SimpleNamespace(size=size, rank=rank)
            self.seed = 1

        def configure_dataloaders(self):
            # Create distributed sampler for multi-GPU
            train_sampler = None
            if self.world.size > 1:
                train_sampler = DistributedSampler(
                    train_dataset,
                    num_replicas=self.world.size,
                    rank=self.world.rank,
                    shuffle=True,
                    seed=self.seed,
                )

            train_loader = loader_class(
                train_dataset,
                batch_size=batch_size,
                sampler=train_sampler,
                shuffle=(train_sampler is None),
                num_workers=1,
                pin_memory=loader_class is ResumableDataLoader,  # torch's warns without CUDA
                persistent_workers=True,
            )

            return train_loader, val_loader

    seen = []
    for rank in range(size):
        train_loader, _ = Trainer(rank).configure_dataloaders()
        seen += flat(plain(batch) for batch in train_loader)
    assert sorted(seen) == list(range(40))


@LOADERS
def test_efficient_data_loading(loader_class):
    trainer = SimpleNamespace(
        world=SimpleNamespace(local_size=1, device=torch.device("cpu")), dataset=Ids(40)
    )
    # Use multiple workers
    num_workers = min(2, os.cpu_count() // trainer.world.local_size)

    # Pin memory for GPU transfer
    pin_memory = trainer.world.device.type == "cuda"

    # Keep workers alive
    persistent_workers = num_workers > 0

    dataloader = loader_class(
        trainer.dataset,
        batch_size=8,
        num_workers=num_workers,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        prefetch_factor=2 if num_workers > 0 else None,
    )
    assert flat(plain(batch) for batch in dataloader) == list(range(40))


def stateful(loader_class):
    class StatefulDataLoader(loader_class):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.current_epoch = 0

        def state_dict(self):
            return {
                "current_epoch": self.current_epoch,
                "sampler_state": getattr(self.sampler, "state_dict", dict)(),
            }

        def load_state_dict(self, state_dict):
            self.current_epoch = state_dict["current_epoch"]
            if hasattr(self.sampler, "load_state_dict"):
                self.sampler.load_state_dict(state_dict["sampler_state"])

    return StatefulDataLoader


@LOADERS
def test_stateful_dataloaders_of_ones_own_resume_with_our_samplers(loader_class):
    def loader():
        sampler = ResumableSampler(40, shuffle=True, seed=3)
        return stateful(loader_class)(Ids(40), batch_size=4, sampler=sampler)

    whole = [plain(batch) for batch in loader()]
    first = loader()
    batches = iter(first)
    for _ in range(4):
        next(batches)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    assert [plain(batch) for batch in resumed] == whole[4:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stateful_dataloaders_of_ones_own_resume_with_our_loaders_sampler(num_workers):
    def loader():
        options = {"shuffle": True, "seed": 3, "num_workers": num_workers}
        return stateful(ResumableDataLoader)(Ids(40), batch_size=4, **options)

    whole = [plain(batch) for batch in loader()]
    first = loader()
    batches = iter(first)
    for _ in range(4):
        next(batches)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    assert [plain(batch) for batch in resumed] == whole[4:]


# For large datasets
class StreamingDataset(IterableDataset):
    def __init__(self, urls: list[str], buffer_size: int = 1000):
        self.urls = urls
        self.buffer_size = buffer_size

    def __iter__(self):
        # Stream data from URLs
        for url in self.urls:
            yield from self.stream_from_url(url)

    def stream_from_url(self, url):
        return (torch.full((2,), len(url) + n) for n in range(3))


@LOADERS
def test_memory_efficient_loading(loader_class):
    urls = ["a", "bb"]
    # Use with DataLoader
    dataloader = loader_class(
        StreamingDataset(urls),
        batch_size=None,  # Dataset yields batches
        num_workers=1,  # Streaming doesn't parallelize well
    )
    assert [plain(batch) for batch in dataloader] == [[n, n] for n in (1, 2, 3, 2, 3, 4)]


# Integration with Trainer


@LOADERS
def test_integration_with_trainer(loader_class):
    train_loader, val_loader = loader_class(Ids(64), batch_size=8), loader_class(Ids(16))

    class MyTrainer(DataLoaderSetupMixin):
        config = SimpleNamespace(
            training_parameters=SimpleNamespace(
                train_steps_per_epoch=None, val_steps_per_epoch=5, train_batch_size=16
            )
        )

        def configure_dataloaders(self):
            # Get steps for progress tracking
            train_steps = get_train_dataloader_steps(self.config.training_parameters, train_loader)

            val_steps = get_val_dataloader_steps(self.config.training_parameters, val_loader)

            self._num_train_steps = train_steps
            self._num_val_steps = val_steps

            return train_loader, val_loader

    trainer = MyTrainer()
    assert trainer.configure_dataloaders() == (train_loader, val_loader)
    assert (trainer._num_train_steps, trainer._num_val_steps) == (8, 5)
    assert trainer.train_dataloader is train_loader


# Custom batch processing


class Sequences(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {
            "input": torch.full((3,), float(index)),
            "target": torch.tensor(index % 2),
            "sequence": torch.ones(1 + index % 5),
        }


def custom_collate_fn(samples: list[dict]) -> Batch:
    # Process list of samples into batch
    inputs = torch.stack([s["input"] for s in samples])
    targets = torch.stack([s["target"] for s in samples])

    # Dynamic padding
    max_len = max(len(s["sequence"]) for s in samples)
    padded_sequences = torch.zeros(len(samples), max_len)

    for i, s in enumerate(samples):
        seq_len = len(s["sequence"])
        padded_sequences[i, :seq_len] = s["sequence"]

    return {
        "input": inputs,
        "target": targets,
        "sequences": padded_sequences,
        "lengths": torch.tensor([len(s["sequence"]) for s in samples]),
    }


@LOADERS
@pytest.mark.parametrize("num_workers", [0, 1])
def test_collate_functions(loader_class, num_workers):
    dataloader = loader_class(
        Sequences(), batch_size=32, collate_fn=custom_collate_fn, num_workers=num_workers
    )
    for batch in dataloader:
        assert batch["input"].shape == (32, 3)
        assert batch["sequences"].shape == (32, 5)
        assert torch.equal(batch["sequences"].sum(1).long(), batch["lengths"])


class BatchTransform:
    def __init__(self, tokenizer, max_length: int = 512):
        self.tokenizer = tokenizer
        self.max_length = max_length

    def __call__(self, batch: list[dict]) -> Batch:
        texts = [item["text"] for item in batch]
        labels = [item["label"] for item in batch]

        # Tokenize batch
        encoding = self.tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self.max_length,
            return_tensors="pt",
        )

        return {
            "input_ids": encoding["input_ids"],
            "attention_mask": encoding["attention_mask"],
            "labels": torch.tensor(labels),
        }


@LOADERS
def test_batch_transformations(loader_class):
    rows = [{"text": line, "label": n} for n, line in enumerate(LINES)]
    transform = BatchTransform(small_tokenizer(), max_length=8)
    (batch,) = loader_class(rows, batch_size=len(rows), collate_fn=transform)
    assert batch["input_ids"].shape == (len(rows), 8)
    assert batch["labels"].tolist() == list(range(len(rows)))


# Performance tips


def test_prefetching():
    # Increase prefetch factor for CPU-bound loading
    dataloader = ResumableDataLoader(
        Ids(64),
        batch_size=32,
        num_workers=8,
        prefetch_factor=4,  # Prefetch 4 batches per worker
    )
    assert flat(plain(batch) for batch in dataloader) == list(range(64))


@LOADERS
def test_avoid_bottlenecks(loader_class, capsys):
    dataloader = loader_class(Ids(64), batch_size=8)
    profile = profile_dataloader(dataloader, num_batches=100)
    assert profile.batches == 8  # those that were there, not those that were asked for
    assert profile.batches_per_second > 0
    print(profile)  # noqa: T201  the document prints; ours returns what is to be printed
    assert capsys.readouterr().out.startswith(f"Average batch time: {profile.mean:.6f}s\n")
    assert profile_dataloader(dataloader, num_batches=5).batches == 5


class Compose:
    """Chains transforms as torchvision's does."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


def random_crop(image):
    top, left = torch.randint(0, 9, (2,)).tolist()
    return image[:, top : top + 24, left : left + 24]


def random_flip(image):
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def normalize(image):
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    return (image - mean) / std


class Augmented(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return self.transform(torch.full((3, 32, 32), index / 12))


def test_data_pipeline_optimization():
    # Chain transforms efficiently
    transform_pipeline = Compose([random_crop, random_flip, normalize])
    passes = [
        [
            plain(batch)
            for batch in ResumableDataLoader(
                Augmented(transform_pipeline), batch_size=4, num_workers=num_workers, seed=1
            )
        ]
        for num_workers in (0, 2)
    ]
    assert passes[0] == passes[1]
