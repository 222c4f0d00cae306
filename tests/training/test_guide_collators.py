"""The guide's snippets on collators, their registry and task specs, as users write them."""

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from small_tokenizer import LINES, small_tokenizer
from torch.utils.data import Dataset

from dataporter import OptionTypeError, ResumableDataLoader
from dataporter.training import (
    CollatorRegistry,
    DefaultCollator,
    LanguageModelingDataCollator,
    TaskSpec,
    VisionDataCollator,
)


@pytest.fixture
def registry():
    shared = CollatorRegistry.get_instance()
    yield shared
    shared.reset()


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


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
    assert collator.tokenizer is tokenizer


def test_explicit_collator_selection(registry):
    # Use specific collator by name
    collator = registry.get_collator(
        collator_name="vision",
        normalize=True,
        mean=[0.5, 0.5, 0.5],  # CIFAR-10 normalization
        std=[0.5, 0.5, 0.5],
    )
    white = np.full((32, 32, 3), 255, dtype=np.uint8)
    assert torch.equal(collator([{"img": white}])["pixel_values"], torch.ones(1, 3, 32, 32))


def register_audio(registry):
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

                # Convert to spectrogram; torch's own transform in place of torchaudio's
                window = torch.hann_window(self.n_fft)
                spectra = torch.stft(waveforms, self.n_fft, window=window, return_complex=True)
                spectrograms = spectra.abs() ** 2

                # Stack labels
                labels = torch.tensor([item["label"] for item in batch])

                return {"spectrograms": spectrograms, "labels": labels}

        return AudioCollator(sample_rate, n_fft)


def test_custom_collator_registration(registry, tokenizer):
    register_audio(registry)

    # Use custom collator
    audio_task_spec = TaskSpec(
        name="speech_recognition",
        modality="audio",
        task_type="classification",
    )
    collator = registry.get_collator(task_spec=audio_task_spec, sample_rate=22050)
    assert collator.sample_rate == 22050
    assert collator.n_fft == 512
    batch = collator([{"waveform": torch.rand(2000), "label": n} for n in range(3)])
    assert batch["spectrograms"].shape[:2] == (3, 257)
    assert batch["labels"].tolist() == [0, 1, 2]

    # It names no tokenizer, and so is given none; an argument that it does not know is an error.
    assert registry.get_collator(task_spec=audio_task_spec, tokenizer=tokenizer).n_fft == 512
    with pytest.raises(OptionTypeError, match="'audio' has no option 'hop'"):
        registry.get_collator(task_spec=audio_task_spec, hop=3)


def test_an_unsupported_modality_falls_back_to_the_default(registry):
    spec = TaskSpec(name="speech_recognition", modality="audio", task_type="classification")
    assert isinstance(registry.get_collator(task_spec=spec), DefaultCollator)


def test_multi_modal_collator(registry):
    @registry.register("multimodal", modality="vision", description="Vision-language collator")
    def create_multimodal_collator(task_spec=None, tokenizer=None, normalize=True):
        """Create collator for vision-language tasks (e.g., image captioning)."""
        from dataporter.training import LanguageModelingDataCollator, VisionDataCollator

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

    # A second collator for a modality goes by its name.
    assert isinstance(registry.get_collator(task_spec=TaskSpec.vision_tiny()), VisionDataCollator)
    collator = registry.get_collator(collator_name="multimodal")
    rows = [{"pixel_values": torch.rand(3, 8, 8), "input_ids": [5] * n} for n in (1, 3)]
    batch = collator(rows)
    assert batch["pixel_values"].shape == (2, 3, 8, 8)
    assert batch["labels"].tolist() == [[5, -100, -100], [5, 5, 5]]
    assert batch["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]


def test_a_hugging_face_dataset_of_lines_with_empty_ones_among_them(registry, tokenizer):
    dataset = datasets.Dataset.from_dict({"text": [*LINES, "the run " * 500]})
    collator = registry.get_collator(task_spec=TaskSpec.lm_tiny(), tokenizer=tokenizer)
    for batch in ResumableDataLoader(dataset, batch_size=3, shuffle=True, collate_fn=collator):
        # batch automatically collated with text collator
        input_ids = batch["input_ids"]
        labels = batch["labels"]
        assert input_ids.shape == labels.shape
        assert input_ids.shape[1] <= 128
        assert torch.equal(labels == -100, batch["attention_mask"] == 0)


class MyDataset(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, idx):
        return {"pixel_values": torch.randn(3, 224, 224), "labels": idx % 10}


def test_a_torch_dataset_of_images(registry):
    collator = registry.get_collator(task_spec=TaskSpec.vision_tiny())
    batch = next(iter(ResumableDataLoader(MyDataset(), batch_size=32, collate_fn=collator)))
    assert batch["pixel_values"].shape == (32, 3, 224, 224)
    assert batch["labels"].tolist() == [idx % 10 for idx in range(32)]


def test_a_hugging_face_dataset_of_images(registry):
    images = [Image.new("RGB", (32, 32), (n, n, n)) for n in range(6)]
    features = datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")})
    dataset = datasets.Dataset.from_dict(
        {"img": images, "label": list(range(6))}, features=features
    )
    collator = registry.get_collator(task_spec=TaskSpec.vision_tiny())
    (batch,) = ResumableDataLoader(dataset, batch_size=6, collate_fn=collator)
    assert batch["labels"].tolist() == list(range(6))
    assert batch["pixel_values"].shape == (6, 3, 32, 32)
    back = (batch["pixel_values"][:, 0, 0, 0] * 0.229 + 0.485) * 255
    assert back.round().tolist() == list(range(6))


def test_lists_of_tensors_ragged_or_not(registry):
    # Backward compatibility with legacy code
    train_data = [torch.randint(0, 1000, (100 + n % 28,)) for n in range(50)]
    collator = registry.get_collator(collator_name="text")
    loader = ResumableDataLoader(train_data, batch_size=32, collate_fn=collator)
    lengths = [int(n) for batch in loader for n in batch["attention_mask"].sum(1)]
    assert lengths == [len(row) for row in train_data]


def test_profile_collator(registry):
    # Profile collator
    dataset, collator = MyDataset(), registry.get_collator(task_spec=TaskSpec.vision_tiny())
    batch = [dataset[i] for i in range(32)]
    result = collator(batch)
    assert result["pixel_values"].shape[0] == 32
