"""DataPorter's own document: every snippet runs as it is written there."""

import inspect
import subprocess
import sys
from importlib import import_module

import datasets
import pytest
import torch
from launching import outputs_of_two_ranks
from small_tokenizer import LINES, small_tokenizer
from support import flat, plain
from torch.utils.data import DataLoader, Dataset
from watching import environment

from dataporter import ResumableDataLoader, ResumableSampler, create_resumable_dataloader
from dataporter.converters import DtypeConverter, KeyBasedDtypeConverter
from dataporter.datasets import HFDatasetWrapper
from dataporter.errors import PositionDroppedWarning
from dataporter.strategies import UnifiedResumptionStrategy


class Points(Dataset):
    """A small regression; sample i has i as its first number."""

    def __init__(self, length=160):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([float(index), 1.0])


def ids(batch):
    return batch[:, 0].int().tolist()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the snippets write into the current folder
    return tmp_path


def test_project_structure():
    for module in (
        "resumable_dataloader",
        "strategies",
        "strategies.strategies",
        "converters",
        "converters.dtype_converter",
        "datasets",
        "datasets.huggingface",
        "utils",
        "utils.state_dict",
    ):
        assert import_module(f"dataporter.{module}").__doc__


# Quick start


@pytest.mark.usefixtures("folder")
def test_basic_usage_and_resume_training():
    dataset = Points()
    num_epochs, save_interval, interrupted = 3, 2, (1, 2)
    network = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)

    def model(batch):
        return network(batch).square().mean()

    # Direct instantiation - automatically detects environment
    dataloader = ResumableDataLoader(dataset, batch_size=32, shuffle=True, num_workers=4)

    # Or use the factory function
    dataloader = create_resumable_dataloader(dataset, batch_size=32, shuffle=True)

    # Use exactly like PyTorch DataLoader
    seen = {}
    for epoch in range(num_epochs):
        dataloader.set_epoch(epoch)  # Important for shuffle reproducibility

        for batch_idx, batch in enumerate(dataloader):
            # Your training code
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen[epoch, batch_idx] = ids(batch)

            # Save checkpoint with dataloader state
            if batch_idx % save_interval == 0 and (epoch, batch_idx) <= interrupted:
                torch.save(
                    {
                        "model": network.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "dataloader": dataloader.state_dict(),  # Saves position
                        "epoch": epoch,
                        "batch_idx": batch_idx,
                    },
                    "checkpoint.pt",
                )
    assert sorted(flat(seen[1, step] for step in range(5))) == list(range(160))
    assert seen[0, 0] != seen[1, 0]

    # Load checkpoint
    checkpoint = torch.load("checkpoint.pt")
    network.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])

    # Create new dataloader and restore state
    dataloader = create_resumable_dataloader(
        dataset, batch_size=32, shuffle=True, strategy="simple"
    )
    dataloader.load_state_dict(checkpoint["dataloader"])  # Resume position

    # Continue from the exact batch
    continued = []
    start_epoch = checkpoint["epoch"]
    for epoch in range(start_epoch, num_epochs):
        dataloader.set_epoch(epoch)

        for batch in dataloader:
            # Continues from the exact sample where interrupted
            continued.append(ids(batch))  # noqa: PERF401  the loop is the document's

    assert continued == [batch for at, batch in seen.items() if at > interrupted]


# Key components


def test_resumable_dataloader_is_a_dataloader_with_the_documented_state():
    dataloader = ResumableDataLoader(Points(), batch_size=32)
    assert isinstance(dataloader, DataLoader)
    next(iter(dataloader))
    state = dataloader.state_dict()
    assert (state["epoch"], state["batches_processed"], state["samples_processed"]) == (0, 1, 32)
    assert "rng_state" in state
    dataloader.load_state_dict(state)
    with pytest.warns(PositionDroppedWarning):
        dataloader.set_epoch(3)
    assert dataloader.state_dict()["epoch"] == 3


def test_the_documented_signature_and_defaults():
    parameters = inspect.signature(ResumableDataLoader).parameters
    documented = {
        "dataset": inspect.Parameter.empty,
        "batch_size": 1,
        "shuffle": False,
        "sampler": None,
        "batch_sampler": None,
        "num_workers": 0,
        "collate_fn": None,
        "pin_memory": False,
        "drop_last": False,
        "timeout": 0,
        "worker_init_fn": None,
        "multiprocessing_context": None,
        "generator": None,
        "prefetch_factor": 2,
        "persistent_workers": False,
    }
    positional = list(parameters.values())[: len(documented)]
    assert {each.name: each.default for each in positional} == documented
    assert all(each.kind is each.POSITIONAL_OR_KEYWORD for each in positional)


def test_unified_resumption_strategy():
    strategy = UnifiedResumptionStrategy()
    assert type(strategy.create_sampler(10)).__name__ == "ResumableSampler"
    ranked = UnifiedResumptionStrategy(rank=0, world_size=2).create_sampler(10)
    assert type(ranked).__name__ == "ResumableDistributedSampler"


class Structured(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, idx):
        return {
            "image": torch.rand(3, 4, 4),
            "label": idx,
            "attention_mask": torch.ones(6, dtype=torch.int64),
            "token_ids": torch.arange(6) + idx,
        }


# Apply in dataset or collate function
class OptimizedDataset(Dataset):
    def __init__(self, base_dataset, converter):
        self.dataset = base_dataset
        self.converter = converter

    def __getitem__(self, idx):
        item = self.dataset[idx]
        return self.converter.convert_batch(item)

    def __len__(self):
        return len(self.dataset)


def test_memory_optimization():
    # Simple converter for all tensors
    converter = DtypeConverter(dtype=torch.float16)
    assert converter.convert_batch(torch.ones(2)).dtype is torch.float16

    # Key-based converter for structured data
    converter = KeyBasedDtypeConverter(
        {
            "image": "float16",  # 50% memory reduction
            "label": "int32",  # 50% reduction from int64
            "attention_mask": "uint8",  # 87.5% reduction from int64
            "token_ids": "int32",  # 50% reduction
        }
    )
    batch = next(iter(DataLoader(OptimizedDataset(Structured(), converter), batch_size=8)))
    dtypes = {name: value.dtype for name, value in batch.items()}
    assert dtypes == {
        "image": torch.float16,
        "label": torch.int32,
        "attention_mask": torch.uint8,
        "token_ids": torch.int32,
    }
    assert batch["token_ids"][3].tolist() == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("original", "converted", "saved"),
    [
        (torch.float32, "float16", 0.5),  # embeddings, images
        (torch.int64, "uint8", 0.875),  # attention masks
        (torch.int64, "int32", 0.5),  # token ids, labels
        (torch.int64, "int16", 0.75),  # positions
    ],
)
def test_memory_savings_reference(original, converted, saved):
    batch = {"data": torch.ones(8, 128, dtype=original)}
    report = KeyBasedDtypeConverter({"data": converted}).report(batch)
    assert report.saved == saved
    assert report.bytes_before == batch["data"].nbytes


def test_automatic_strategy_selection():
    dataset = Points()
    # Automatic detection - recommended approach
    # Automatically uses distributed sampler if torch.distributed is initialized
    dataloader = ResumableDataLoader(dataset, batch_size=32, shuffle=True)
    assert isinstance(dataloader.sampler, ResumableSampler)

    # Or use the factory function
    # Same automatic detection
    dataloader = create_resumable_dataloader(dataset, batch_size=32, shuffle=True)
    assert isinstance(dataloader.sampler, ResumableSampler)


def load_dataset(name, split):
    """Rows like those of imdb, which cannot be downloaded here."""
    assert (name, split) == ("imdb", "train")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    rows = {"text": LINES * 8, "label": [0, 1] * 20}
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.mark.parametrize("tokenises", [False, True])
def test_huggingface_datasets(tokenises):
    # Load HuggingFace dataset
    hf_dataset = load_dataset("imdb", split="train")

    # Wrap with memory optimization
    dataset = HFDatasetWrapper(
        hf_dataset,
        dtype_conversions={
            "input_ids": "int32",  # Token IDs
            "attention_mask": "uint8",  # Binary masks
            "label": "int32",  # Labels
        },
        **({"tokenizer": small_tokenizer()} if tokenises else {}),
    )

    # Create resumable dataloader
    dataloader = create_resumable_dataloader(
        dataset,
        batch_size=16,
        shuffle=True,
        collate_fn=dataset.collate_fn,  # Handles tokenization
    )
    batch = next(iter(dataloader))
    assert batch["label"].dtype is torch.int32
    if tokenises:
        assert batch["input_ids"].dtype is torch.int32
        assert batch["attention_mask"].dtype is torch.uint8
        assert len(batch["input_ids"]) == 16
    else:
        assert len(batch["text"]) == 16


def load_your_data(data_path):
    return [{"input": torch.tensor([n, n]), "target": n % 2} for n in range(64)]


class YourDataset(Dataset):
    def __init__(self, data_path):
        self.data = load_your_data(data_path)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, idx):
        # Return your data sample
        return {"input": self.data[idx]["input"], "target": self.data[idx]["target"]}


def test_custom_datasets():
    # Works with any PyTorch dataset
    dataset = YourDataset("path/to/data")
    dataloader = create_resumable_dataloader(dataset, batch_size=32, shuffle=True)
    batches = list(dataloader)
    assert sorted(flat(plain(batch["input"][:, 0]) for batch in batches)) == list(range(64))


# Common use cases

LONG_RUNNING = """
# Training script that can be safely interrupted
from dataporter import create_resumable_dataloader
import os
import signal
import sys
import torch

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return torch.tensor([float(index)])

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
dataloader = create_resumable_dataloader(Points(), batch_size=4, shuffle=True, num_workers=2)
start_epoch = global_step = 0

def save_checkpoint(signum, frame):
    \"\"\"Save on interrupt\"\"\"
    torch.save({
        'model': model.state_dict(),
        'optimizer': optimizer.state_dict(),
        'dataloader': dataloader.state_dict(),
        'epoch': epoch,
        'global_step': global_step
    }, 'interrupt_checkpoint.pt')
    sys.exit(0)

signal.signal(signal.SIGINT, save_checkpoint)

# Training continues from interruption
if os.path.exists('interrupt_checkpoint.pt'):
    checkpoint = torch.load('interrupt_checkpoint.pt')
    model.load_state_dict(checkpoint['model'])
    optimizer.load_state_dict(checkpoint['optimizer'])
    dataloader.load_state_dict(checkpoint['dataloader'])
    start_epoch = checkpoint['epoch']
    global_step = checkpoint['global_step']

interrupts = [int(step) for step in sys.argv[1:]]
for epoch in range(start_epoch, 3):
    dataloader.set_epoch(epoch)
    for batch in dataloader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        global_step += 1
        print(epoch, *batch[:, 0].int().tolist(), flush=True)
        if global_step in interrupts:
            os.kill(os.getpid(), signal.SIGINT)
"""


def test_long_running_training_jobs(folder):
    script = folder / "train.py"
    script.write_text(LONG_RUNNING)
    command = [sys.executable, str(script), "5", "21"]
    lines = []
    for run in range(3):
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(), check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), run
        lines += done.stdout.splitlines()
        command = [*command[:2], *command[3:]]  # an interrupt that was served does not come again
    delivered = [[int(number) for number in line.split()] for line in lines]
    assert len(delivered) == 45
    for epoch in range(3):
        samples = flat(rest for first, *rest in delivered if first == epoch)
        assert sorted(samples) == list(range(60))


DISTRIBUTED = """
import sys
import torch
import torch.distributed as dist
from dataporter import create_resumable_dataloader

dataset = torch.arange(256)
# Initialize distributed training
dist.init_process_group(backend='gloo', init_method=sys.argv[1], rank=int(sys.argv[2]),
                        world_size=2)
rank = dist.get_rank()
world_size = dist.get_world_size()

# Create distributed resumable dataloader
dataloader = create_resumable_dataloader(
    dataset,
    batch_size=32,
    shuffle=True,
    strategy='distributed',
    rank=rank,
    world_size=world_size,
    drop_last=True  # Recommended for distributed
)
batches = iter(dataloader)
print(*next(batches).tolist())

# Each rank maintains its own state
if rank == 0:
    # Only rank 0 saves checkpoints
    torch.save({
        'dataloader': dataloader.state_dict(),
        # ... other states
    }, 'checkpoint.pt')
dist.barrier()

dataloader.load_state_dict(torch.load('checkpoint.pt')['dataloader'])
for batch in dataloader:
    print(*batch.tolist())
dist.destroy_process_group()
"""


def test_distributed_training(folder):
    outputs = outputs_of_two_ranks(DISTRIBUTED, folder)
    shares = [[int(number) for number in out.split()] for out in outputs]
    assert [len(share) for share in shares] == [128, 128]
    assert sorted(flat(shares)) == list(range(256))


class Large(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, idx):
        return {
            "pixel_values": torch.rand(3, 8, 8),
            "input_ids": torch.full((16,), 31_999 - idx),
            "attention_mask": torch.ones(16, dtype=torch.int64),
            "token_type_ids": torch.zeros(16, dtype=torch.int64),
            "labels": idx,
        }


def test_memory_constrained_environments():
    # Define aggressive memory optimizations
    converter = KeyBasedDtypeConverter(
        {
            "pixel_values": "float16",  # Images
            "input_ids": "int16",  # Token IDs (if vocab < 32k)
            "attention_mask": "uint8",  # Binary masks
            "token_type_ids": "uint8",  # Usually 0 or 1
            "labels": "int16",  # Class labels
        }
    )

    # Wrap dataset with converter
    optimized_dataset = OptimizedDataset(Large(), converter)
    dataloader = create_resumable_dataloader(
        optimized_dataset,
        batch_size=64,  # Can use larger batches with optimization
        num_workers=4,
        pin_memory=True,
    )
    batches = list(dataloader)
    assert flat(plain(batch["labels"]) for batch in batches) == list(range(128))
    dtypes = {name: str(value.dtype) for name, value in batches[0].items()}
    assert dtypes == {
        "pixel_values": "torch.float16",
        "input_ids": "torch.int16",
        "attention_mask": "torch.uint8",
        "token_type_ids": "torch.uint8",
        "labels": "torch.int16",
    }


# Troubleshooting


def test_what_is_to_be_checked_by_hand_there_is_checked_here():
    state = ResumableDataLoader(Points(), batch_size=32, shuffle=True, seed=1).state_dict()
    for changed, name in (
        (ResumableDataLoader(Points(), batch_size=32, seed=1), "shuffle"),
        (ResumableDataLoader(Points(159), batch_size=32, shuffle=True, seed=1), "num_samples"),
        (ResumableDataLoader(Points(), batch_size=32, shuffle=True, seed=2), "seed"),
    ):
        with pytest.raises(ValueError, match=f"{name} changed"):
            changed.load_state_dict(state)
