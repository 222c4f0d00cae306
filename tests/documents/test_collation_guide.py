"""The guide to data loading and collation: every snippet runs, on small data of the same shape."""

import pickle
import pydoc
import time

import datasets
import pytest
import torch
from PIL import Image
from small_tokenizer import LINES, small_tokenizer
from support import flat, plain
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dataporter import OptionTypeError, ResumableDataLoader
from dataporter.training import (
    CheckpointManager,
    CollatorRegistry,
    DataLoaderConfig,
    DataLoaderFactory,
    DataModuleProtocol,
    LanguageModelingDataCollator,
    TaskSpec,
    TrainingConfig,
    UniversalDataModule,
    VisionDataCollator,
)


def load_dataset(name, *configuration, split):
    """Rows like those of the datasets that the guide downloads."""
    if name == "wikitext":
        return datasets.Dataset.from_dict({"text": [*LINES, "", " = Title = "] * 20})
    assert name == "cifar10"
    count = {"train": 96, "test": 32}[split]
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)}
    )
    images = [Image.new("RGB", (32, 32), (n, 2 * n % 256, 0)) for n in range(count)]
    rows = {"img": images, "label": [n % 10 for n in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


@pytest.fixture
def registry():
    shared = CollatorRegistry.get_instance()
    yield shared
    shared.reset()


factory = DataLoaderFactory()


# Core components


def test_data_module_protocol():
    train_dataset = val_dataset = list(range(64))

    class MyDataModule:
        def train_dataloader(self) -> DataLoader:
            return DataLoader(train_dataset, batch_size=32)

        def val_dataloader(self) -> DataLoader:
            return DataLoader(val_dataset, batch_size=32)

    # Automatically satisfies protocol
    dm: DataModuleProtocol = MyDataModule()
    assert isinstance(dm, DataModuleProtocol)
    assert len(dm.train_dataloader()) == 2


def test_auto_selection_from_task_spec(tokenizer):
    registry = CollatorRegistry.get_instance()

    # Vision task - automatically selects VisionDataCollator
    task_spec = TaskSpec.vision_tiny()
    collator = registry.get_collator(task_spec=task_spec)
    assert isinstance(collator, VisionDataCollator)

    # Text task - automatically selects LanguageModelingDataCollator
    task_spec = TaskSpec.lm_tiny()
    collator = registry.get_collator(task_spec=task_spec, tokenizer=tokenizer)
    assert isinstance(collator, LanguageModelingDataCollator)


def test_explicit_collator_selection(registry):
    # Use specific collator by name
    collator = registry.get_collator(
        collator_name="vision",
        normalize=True,
        mean=[0.5, 0.5, 0.5],  # CIFAR-10 normalization
        std=[0.5, 0.5, 0.5],
    )
    batch = collator([{"pixel_values": torch.ones(3, 4, 4)}])
    assert torch.equal(batch["pixel_values"], torch.ones(1, 3, 4, 4))


class Spectrogram:
    """torchaudio's transform of this name, by torch's own."""

    def __init__(self, n_fft):
        self.n_fft = n_fft

    def __call__(self, waveforms):
        window = torch.hann_window(self.n_fft)
        return torch.stft(waveforms, self.n_fft, window=window, return_complex=True).abs() ** 2


def test_custom_collator_registration(registry):
    # Register custom audio collator
    @registry.register("audio", modality="audio", description="Audio collator with spectrogram")
    def create_audio_collator(task_spec=None, sample_rate=16000, n_fft=512):
        """Create audio collator for speech recognition."""

        class AudioCollator:
            def __init__(self, sample_rate, n_fft):
                self.sample_rate = sample_rate
                self.n_fft = n_fft

            def __call__(self, batch):
                # Stack audio waveforms
                waveforms = torch.stack([item["waveform"] for item in batch])

                # Convert to spectrogram
                spectrogram_transform = Spectrogram(n_fft=self.n_fft)
                spectrograms = spectrogram_transform(waveforms)

                # Stack labels
                labels = torch.tensor([item["label"] for item in batch])

                return {"spectrograms": spectrograms, "labels": labels}

        return AudioCollator(sample_rate, n_fft)

    # Use custom collator
    audio_task_spec = TaskSpec(
        name="speech_recognition",
        modality="audio",
        task_type="classification",
        # ... other fields
    )
    collator = registry.get_collator(task_spec=audio_task_spec, sample_rate=22050)
    assert (collator.sample_rate, collator.n_fft) == (22050, 512)
    rows = [{"waveform": torch.rand(2000), "label": n} for n in range(8)]
    # A module whose task is of that modality uses it too.
    module = UniversalDataModule(rows, task_spec=audio_task_spec, batch_size=4, val_split=0.5)
    (batch,) = module.train_dataloader()
    assert batch["spectrograms"].shape[:2] == (4, 257)


def test_multi_modal_collator(registry):
    @registry.register("multimodal", modality="vision", description="Vision-language collator")
    def create_multimodal_collator(task_spec=None, tokenizer=None, normalize=True):
        """Create collator for vision-language tasks (e.g., image captioning)."""
        vision_collator = VisionDataCollator(normalize=normalize)
        text_collator = LanguageModelingDataCollator(tokenizer=tokenizer)

        def multimodal_collate_fn(batch):
            # Separate vision and text components
            vision_batch = [{"pixel_values": item["pixel_values"]} for item in batch]
            text_batch = [{"input_ids": item["input_ids"]} for item in batch]

            # Apply collators
            vision_out = vision_collator(vision_batch)
            text_out = text_collator(text_batch)

            # Merge outputs
            return {
                "pixel_values": vision_out["pixel_values"],
                "input_ids": text_out["input_ids"],
                "attention_mask": text_out["attention_mask"],
                "labels": text_out["labels"],
            }

        return multimodal_collate_fn

    collator = registry.get_collator(collator_name="multimodal")
    batch = collator([{"pixel_values": torch.rand(3, 8, 8), "input_ids": [7] * n} for n in (2, 3)])
    assert batch["labels"].tolist() == [[7, 7, -100], [7, 7, 7]]


# DataLoaderFactory


def test_basic_usage():
    factory = DataLoaderFactory()

    # Create dataset
    dataset = TensorDataset(torch.randn(100, 32))

    # Configure DataLoader
    config = DataLoaderConfig(
        batch_size=32,
        shuffle=True,
        num_workers=2,
        pin_memory=True,  # Auto-detected if None
        prefetch_factor=2,
        seed=42,  # Reproducible shuffling
    )

    # Create DataLoader
    loader = factory.create_dataloader(dataset, config)

    # Iterate
    sizes = []
    for batch in loader:
        # Training step
        sizes.append(len(batch[0]))  # noqa: PERF401  the loop is the guide's
    assert sizes == [32, 32, 32, 4]


def test_automatic_gpu_optimizations():
    dataset = TensorDataset(torch.randn(100, 32))
    # Factory auto-detects CUDA and optimizes accordingly
    config = DataLoaderConfig(
        batch_size=32,
        pin_memory=None,  # Auto: True if CUDA available, False otherwise
        prefetch_factor=2,  # Pre-load 2 batches per worker
        persistent_workers=None,  # Auto: True if num_workers > 0
    )

    loader = factory.create_dataloader(dataset, config)

    # On GPU: pin_memory=True, prefetch_factor=2
    # On CPU: pin_memory=False, prefetch_factor=None
    expected = (True, 2) if torch.cuda.is_available() else (False, None)
    assert (loader.pin_memory, loader.prefetch_factor) == expected


def test_reproducibility():
    dataset = TensorDataset(torch.randn(100, 32))
    # Same seed guarantees identical batch order
    config = DataLoaderConfig(batch_size=32, shuffle=True, seed=42, num_workers=0)

    loader1 = factory.create_dataloader(dataset, config)
    loader2 = factory.create_dataloader(dataset, config)

    # Batches will be identical
    batch1 = next(iter(loader1))
    batch2 = next(iter(loader2))
    assert torch.equal(batch1[0], batch2[0])  # True


# UniversalDataModule


def test_from_huggingface_dataset(tokenizer):
    # Load dataset
    dataset = load_dataset("wikitext", "wikitext-2-raw-v1", split="train")

    # Create data module
    data_module = UniversalDataModule(
        train_data=dataset,
        task_spec=TaskSpec.lm_tiny(),
        tokenizer=tokenizer,
        batch_size=32,
        val_split=0.1,  # 10% validation split
        num_workers=2,
        seed=42,
    )

    # Get DataLoaders
    train_loader = data_module.train_dataloader()
    val_loader = data_module.val_dataloader()

    # Use in training loop
    seen = 0
    for batch in train_loader:
        # batch automatically collated with text collator
        input_ids = batch["input_ids"]
        labels = batch["labels"]
        assert torch.equal(labels[labels != -100], input_ids[batch["attention_mask"] == 1])
        seen += len(input_ids)
    assert seen == 126
    assert sum(len(batch["labels"]) for batch in val_loader) == 14


class MyDataset(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, idx):
        return {"pixel_values": torch.randn(3, 224, 224), "labels": idx % 10}


def test_from_pytorch_dataset():
    dataset = MyDataset()

    data_module = UniversalDataModule(
        train_data=dataset,
        task_spec=TaskSpec.vision_tiny(),
        batch_size=32,
        val_split=0.2,
        seed=42,
    )

    # Automatically uses VisionDataCollator
    train_loader = data_module.train_dataloader()
    assert isinstance(train_loader.collate_fn, VisionDataCollator)
    assert next(iter(train_loader))["pixel_values"].shape == (32, 3, 224, 224)


def test_with_external_validation_set():
    train_dataset = load_dataset("cifar10", split="train")
    val_dataset = load_dataset("cifar10", split="test")

    data_module = UniversalDataModule(
        train_data=train_dataset,
        val_data=val_dataset,  # External val set
        task_spec=TaskSpec.vision_tiny(),
        batch_size=64,
        val_split=0.0,  # Ignored when val_data provided
        seed=42,
    )
    shapes = [tuple(batch["pixel_values"].shape) for batch in data_module.train_dataloader()]
    assert shapes == [(64, 3, 32, 32), (32, 3, 32, 32)]
    (batch,) = data_module.val_dataloader()
    assert batch["labels"].tolist() == [n % 10 for n in range(32)]


def test_legacy_list_of_tensors_support():
    # Backward compatibility with legacy code
    train_data = [torch.randint(0, 1000, (128,)) for _ in range(500)]

    data_module = UniversalDataModule(
        train_data=train_data,  # List[Tensor] automatically converted
        batch_size=32,
        val_split=0.2,
        seed=42,
    )
    assert sum(len(batch) for batch in data_module.train_dataloader()) == 400
    assert sum(len(batch) for batch in data_module.val_dataloader()) == 100


# Performance optimization


@pytest.mark.parametrize(
    "options",
    [
        # CPU: Use 0 workers (multiprocessing overhead not worth it)
        {"batch_size": 32, "num_workers": 0 if not torch.cuda.is_available() else 2},
        # GPU: Use 2-4 workers for async loading
        {
            "batch_size": 32,
            "num_workers": 4,
            "pin_memory": True,  # Faster CPU->GPU transfer
            "prefetch_factor": 2,  # Pre-load 2 batches
            "persistent_workers": True,  # Keep workers alive between epochs
        },
        {"pin_memory": None},  # Auto-detect CUDA
        {"pin_memory": torch.cuda.is_available()},
        {"num_workers": 2, "prefetch_factor": 2},
        {"num_workers": 4, "prefetch_factor": 4},
        {"shuffle": True, "seed": 42},
        {"shuffle": True},  # Random seed each run
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 8},
        {"num_workers": 2, "persistent_workers": False},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "persistent_workers": None},
        {"num_workers": 1},
    ],
    ids=str,
)
def test_every_configuration_of_the_guide_delivers(options):
    loader = factory.create_dataloader(torch.arange(80), DataLoaderConfig(**options))
    assert sorted(flat(plain(batch) for batch in loader)) == list(range(80))


# Integration examples


def test_with_training_config(tokenizer):
    dataset, task_spec = load_dataset("wikitext", split="train"), TaskSpec.lm_tiny()

    # Define training config
    training_config = TrainingConfig(
        batch_size=32,
        epochs=10,
        learning_rate=5e-5,
        random_seed=42,
    )

    # Create data module with config parameters
    data_module = UniversalDataModule(
        train_data=dataset,
        task_spec=task_spec,
        tokenizer=tokenizer,
        batch_size=training_config.batch_size,
        seed=training_config.random_seed,
        num_workers=2,
    )
    assert data_module.seed == 42
    assert len(next(iter(data_module.train_dataloader()))["input_ids"]) == 32


def test_with_checkpoint_manager(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = torch.arange(80)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    data_module = UniversalDataModule(train_data=dataset, seed=7)
    train_loader, epoch, step = data_module.train_dataloader(), 5, 1

    # Save checkpoint
    manager = CheckpointManager(checkpoint_dir="./checkpoints")
    path = manager.save(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        epoch=5,
        metrics={"val_loss": 0.38},
        custom_state={
            "data_module_seed": data_module.seed,
            "epoch_step": epoch * len(train_loader) + step,
        },
    )

    # Resume
    state = manager.load(path)
    # Recreate data module with same seed for reproducible resume
    recreated = UniversalDataModule(
        train_data=dataset,
        seed=state["custom_state"]["data_module_seed"],
        # ... other params
    )
    assert state["custom_state"]["epoch_step"] == 11
    assert plain(list(recreated.train_dataloader())) == plain(list(train_loader))


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_with_pytorch_lightning(tmp_path):
    pl = pytest.importorskip("pytorch_lightning")

    class MyLightningModule(pl.LightningModule):
        def __init__(self, data_module: DataModuleProtocol):
            super().__init__()
            self.data_module = data_module

        def train_dataloader(self):
            return self.data_module.train_dataloader()

        def val_dataloader(self):
            return self.data_module.val_dataloader()

    class Trained(MyLightningModule):
        """The part that the snippet omits: a model."""

        def __init__(self, data_module):
            super().__init__(data_module)
            self.layer = torch.nn.Linear(1, 1)
            self.trained, self.validated = [], []

        def training_step(self, batch):
            self.trained += batch.tolist()
            return self.layer(batch[:, None].float()).mean()

        def validation_step(self, batch):
            self.validated += batch.tolist()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    # Works with both UniversalDataModule and Lightning's LightningDataModule
    module = Trained(UniversalDataModule(torch.arange(80), batch_size=8))
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module)
    assert sorted(module.trained[:64] + module.validated[:16]) == list(range(80))
    assert module.trained[:64] != module.trained[64:]
    assert sorted(module.trained[:64]) == sorted(module.trained[64:])
    data_module = UniversalDataModule(torch.arange(8))
    with pytest.raises(OptionTypeError, match=r"datamodule= must be a .* trainer\.fit\(model, "):
        trainer.fit(Trained(data_module), datamodule=data_module)


# Best practices


def test_use_task_spec_for_auto_collator_selection(tokenizer):
    dataset, task_spec = load_dataset("wikitext", split="train"), TaskSpec.lm_tiny()
    # Good: Auto-selects correct collator
    data_module = UniversalDataModule(
        train_data=dataset,
        task_spec=task_spec,  # Collator auto-selected
        tokenizer=tokenizer,
    )
    collator = data_module.train_dataloader().collate_fn
    assert isinstance(collator, LanguageModelingDataCollator)

    def my_custom_collator(rows):
        return [row["text"].upper() for row in rows]

    # Acceptable: Explicit collator (for custom requirements)
    factory = DataLoaderFactory()
    config = DataLoaderConfig(collate_fn=my_custom_collator)
    batch = next(iter(factory.create_dataloader(dataset, config)))
    assert batch[2] == LINES[2].upper()


def test_profile_dataloader_overhead():
    config = DataLoaderConfig(batch_size=32, shuffle=True, seed=42, num_workers=0)
    train_loader = factory.create_dataloader(torch.arange(640), config)

    # Measure DataLoader iteration time, of the processor: the machine may be busy.
    start = time.process_time()
    for _batch in train_loader:
        pass
    dataloader_time = time.process_time() - start

    # Measure total training time
    start = time.time()
    for _batch in train_loader:
        # ... training step ...
        time.sleep(0.01)  # Simulated step
    total_time = time.time() - start

    overhead_ratio = dataloader_time / total_time
    # Target: <2% overhead for efficient training; the benchmarks measure it.
    assert overhead_ratio < 0.5


# Troubleshooting


def test_local_classes_work_with_workers():
    # Bad: Local class not picklable
    class LocalDataset(Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, idx):
            return idx

    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(LocalDataset())
    # Not bad here, where workers are forked.
    config = DataLoaderConfig(num_workers=2, batch_size=5)
    batches = list(factory.create_dataloader(LocalDataset(), config))
    assert flat(map(plain, batches)) == list(range(10))


def test_non_reproducible_batch_order():
    dataset = torch.arange(100)
    # Bad: No seed
    loader = DataLoader(dataset, shuffle=True)
    assert len(loader) == 100

    # Good: With seed
    config = DataLoaderConfig(shuffle=True, seed=42)
    loader = factory.create_dataloader(dataset, config)
    again = factory.create_dataloader(dataset, config)
    assert plain(list(loader)) == plain(list(again))
    assert isinstance(loader, ResumableDataLoader)


def test_profile_collator():
    dataset, collator = MyDataset(), VisionDataCollator()
    # Profile collator
    batch = [dataset[i] for i in range(32)]
    start = time.process_time()
    result = collator(batch)
    collator_time = time.process_time() - start
    assert result["pixel_values"].shape == (32, 3, 224, 224)
    assert collator_time < 30  # ms are usual, minutes would be a mistake


# API reference


def test_help_on_any_component():
    # Get help on any component
    assert "val_split" in pydoc.render_doc(UniversalDataModule)
