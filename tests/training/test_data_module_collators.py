"""The data module's collators: which is chosen, and the batches that it makes."""

import datasets
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_tokenizer import LINES, small_tokenizer
from support import Ids, flat, one_pass
from torch.utils.data import Dataset, TensorDataset, default_collate

from dataporter import (
    CollationError,
    ConversionError,
    OptionError,
    OptionTypeError,
)
from dataporter.datasets import HFDatasetWrapper
from dataporter.training import (
    CollatorRegistry,
    LanguageModelingDataCollator,
    TaskSpec,
    UniversalDataModule,
    VisionDataCollator,
)


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


def ids_of(loader):
    return flat(one_pass(loader))


def collator_of(data, **options):
    module = UniversalDataModule(data, batch_size=4, **options)
    train, val = module.train_dataloader(), module.val_dataloader()
    assert val is None or val.collate_fn is train.collate_fn
    return train.collate_fn


def test_the_task_chooses_the_collator(tokenizer):
    rows = Ids(10)
    assert isinstance(collator_of(rows, task_spec=TaskSpec.vision_tiny()), VisionDataCollator)
    text = collator_of(rows, task_spec=TaskSpec.lm_tiny(), tokenizer=tokenizer)
    assert isinstance(text, LanguageModelingDataCollator)
    assert (text.tokenizer, text.max_length) == (tokenizer, 128)
    assert isinstance(collator_of(rows, tokenizer=tokenizer), LanguageModelingDataCollator)


def test_a_registered_collator_is_chosen_by_its_modality():
    registry = CollatorRegistry.get_instance()

    @registry.register("loud", modality="sound")
    def create(task_spec=None):
        return max

    try:
        spec = TaskSpec(name="hear", modality="sound", task_type="classification")
        assert collator_of(Ids(10), task_spec=spec) is max
    finally:
        registry.reset()


def test_default_collation_is_left_to_the_loader_which_can_gather():
    spec = TaskSpec(name="x", modality="table", task_type="regression")
    default = UniversalDataModule(torch.arange(10), task_spec=spec).train_dataloader()
    assert default._fetch._may_gather
    assert len(ids_of(default)) == 8
    assert collator_of(Ids(10)) is collator_of(Ids(10), task_spec=spec) is default_collate


def test_a_collate_fn_of_ones_own_comes_first(tokenizer):
    options = {"task_spec": TaskSpec.lm_tiny(), "tokenizer": tokenizer}
    assert collator_of(Ids(10), collate_fn=sum, **options) is sum


def test_a_dataset_that_collates_itself_does_so():
    rows = datasets.Dataset.from_dict({"text": ["a"] * 10, "label": list(range(10))})
    wrapped = HFDatasetWrapper(rows, dtype_conversions={"label": "int16"})
    module = UniversalDataModule(wrapped, batch_size=4)
    batch = next(iter(module.train_dataloader()))
    assert batch["label"].dtype is torch.int16
    assert batch["text"] == ["a"] * 4


shapes = st.integers(0, 3).flatmap(
    lambda dimensions: st.lists(
        st.tuples(*[st.integers(0, 4)] * dimensions), min_size=2, max_size=12
    )
)


@given(
    shapes,
    st.sampled_from([torch.int64, torch.uint8, torch.float32, torch.bfloat16, torch.bool]),
    st.booleans(),
    st.integers(1, 5),
)
@settings(max_examples=60)
def test_of_a_list_of_tensors_every_batch_is_one_tensor_of_their_dtype(
    shapes, dtype, as_arrays, batch_size
):
    rows = [torch.full(shape, number % 2).to(dtype) for number, shape in enumerate(shapes)]
    if as_arrays and dtype is not torch.bfloat16:
        rows = [row.numpy() for row in rows]
    module = UniversalDataModule(rows, val_data=rows, batch_size=batch_size)
    seen = 0
    for batch in module.val_dataloader():
        wanted = [torch.as_tensor(row) for row in rows[seen : seen + len(batch)]]
        assert type(batch) is torch.Tensor
        assert batch.dtype is dtype
        assert list(batch.shape[1:]) == [
            max(sizes) for sizes in zip(*(row.shape for row in wanted), strict=True)
        ]
        for row, expected in zip(batch, wanted, strict=True):
            assert torch.equal(row[tuple(map(slice, expected.shape))], expected)
            assert row.sum() == expected.sum()  # all else is 0
        seen += len(batch)
    assert seen == len(rows)


def test_ragged_lists_of_ids_are_padded_by_what_is_asked_for_in_what_is_asked_for():
    ragged = [torch.full((1 + n % 7,), 1 + n) for n in range(20)]
    (batch,) = UniversalDataModule(ragged, batch_size=16).train_dataloader()
    assert batch.shape == (16, 7)
    lengths = [1 + (n - 1) % 7 for n in batch[:, 0].tolist()]
    assert (batch != 0).sum(1).tolist() == lengths
    (other,) = UniversalDataModule(ragged, batch_size=16, pad_token_id=99).train_dataloader()
    assert torch.equal(other.masked_fill(other == 99, 0), batch)
    module = UniversalDataModule(ragged, task_spec=TaskSpec.lm_tiny(), batch_size=16)
    (masked,) = module.train_dataloader()
    assert torch.equal(masked["input_ids"], batch)
    assert masked["attention_mask"].sum(1).tolist() == lengths
    # One side of unequal length is enough.
    even = [torch.full((5,), n) for n in range(20)]
    mixed = UniversalDataModule(even, val_data=ragged, batch_size=20)
    assert next(iter(mixed.train_dataloader())).shape == (20, 5)
    assert next(iter(mixed.val_dataloader())).shape == (20, 7)


def test_tensors_with_another_number_of_dimensions_are_named_and_a_collate_fn_helps():
    rows = [torch.zeros(2), torch.zeros(2, 1)] * 5
    module = UniversalDataModule(rows, val_data=rows, batch_size=2)
    message = r"row 1 has shape \(2, 1\), row 0 has shape \(2,\).* or pass collate_fn="
    with pytest.raises(CollationError, match=message):
        next(iter(module.val_dataloader()))
    own = UniversalDataModule(rows, val_data=rows, batch_size=2, collate_fn=list)
    assert len(next(iter(own.val_dataloader()))) == 2


@pytest.mark.parametrize("by", ["task_spec", "tokenizer"])
def test_each_remedy_for_a_missing_padding_token_works(by):
    def module_of(tokenizer, **options):
        chosen = {"task_spec": TaskSpec.lm_tiny()} if by == "task_spec" else {}
        rows = [{"text": line} for line in LINES]
        return UniversalDataModule(rows, tokenizer=tokenizer, val_data=rows, **chosen, **options)

    without = small_tokenizer("pad_token")
    with pytest.raises(
        OptionError, match=r"no padding token, .* Pass pad_token_id=, or set tokeniz"
    ):
        next(iter(module_of(without).val_dataloader()))
    (wanted,) = module_of(small_tokenizer()).val_dataloader()
    (given,) = module_of(without, pad_token_id=0).val_dataloader()
    assert torch.equal(given["input_ids"], wanted["input_ids"])
    without.pad_token = small_tokenizer().pad_token
    (set_later,) = module_of(without).val_dataloader()
    assert torch.equal(set_later["input_ids"], wanted["input_ids"])


def test_each_remedy_for_a_missing_mask_token_works():
    def module_of(**options):
        return UniversalDataModule(LINES, val_data=LINES, **options)

    spec = TaskSpec(name="bert", modality="text", task_type="masked_lm")
    without = small_tokenizer("mask_token")
    message = (
        r"requires a mask token.* tokenizer= that .* or pass mask_token_id= to Lang.*collate_fn="
    )
    with pytest.raises(OptionError, match=message):
        module_of(task_spec=spec, tokenizer=without)
    own = LanguageModelingDataCollator(without, mlm=True, mask_token_id=4)
    for options in (
        {"task_spec": spec, "tokenizer": small_tokenizer()},
        {"collate_fn": own},
    ):
        (batch,) = module_of(**options).val_dataloader()
        assert batch["labels"].shape == batch["input_ids"].shape


def test_each_remedy_for_what_is_no_task_works():
    rows = [torch.arange(1, 2 + n % 3) for n in range(10)]
    message = r"must be a TaskSpec.* such as TaskSpec.lm_tiny\(\), or pass collate_fn=(.*)\."
    with pytest.raises(OptionTypeError, match=message):
        UniversalDataModule(rows, task_spec="text")
    named = CollatorRegistry.get_instance().get_collator(collator_name="text")
    for options in ({"task_spec": TaskSpec.lm_tiny()}, {"collate_fn": named}):
        (batch,) = UniversalDataModule(rows, **options).train_dataloader()
        assert batch["attention_mask"].sum() == (batch["input_ids"] > 0).sum()


def test_each_remedy_for_images_of_unequal_channels_works():
    def module_of(rows, **options):
        return UniversalDataModule(rows, val_data=rows, **options).val_dataloader()

    def image(channels):
        return {"image": torch.rand(channels, 5, 6)}

    spec = {"task_spec": TaskSpec.vision_tiny()}
    coloured = VisionDataCollator(channels=3)
    three = {"mean": [0.5] * 3, "std": [0.5] * 3}
    for rows, options in (
        ([image(1), image(3)], spec),
        ([image(1)], {"collate_fn": VisionDataCollator(**three)}),
    ):
        with pytest.raises(
            CollationError, match=r"Use collate_fn=VisionDataCollator\(channels=3\)"
        ):
            next(iter(module_of(rows, **options)))
        (batch,) = module_of(rows, collate_fn=coloured)
        assert batch["pixel_values"].shape == (len(rows), 3, 5, 6)
    for channels in (4, 5):
        with pytest.raises(CollationError, match=r"[Uu]se collate_fn=Vis.*\(mean=\[...\], std"):
            next(iter(module_of([image(channels)], **spec)))
        own = VisionDataCollator(mean=[0.5] * channels, std=[0.5] * channels)
        (batch,) = module_of([image(channels)], collate_fn=own)
        assert batch["pixel_values"].shape == (1, channels, 5, 6)
    with pytest.raises(CollationError, match="Convert them in the dataset"):
        next(iter(module_of([image(3), image(4)], **spec)))


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Ids(10), {}, "neither a tokenizer= nor a task_spec="),
        (Ids(10), {"collate_fn": list}, "collate_fn= makes the batches"),
        (HFDatasetWrapper([{"x": 1}] * 10), {}, "the dataset's own collate_fn"),
    ],
)
def test_a_padding_token_that_nobody_pads_with_is_refused(data, options, message):
    with pytest.raises(OptionError, match=rf"pad_token_id=0 .*{message}.* Remove pad_token_id"):
        UniversalDataModule(data, pad_token_id=0, **options)
    with pytest.raises(OptionTypeError, match="collator 'vision' has no option 'pad_token_id'"):
        UniversalDataModule(data, pad_token_id=0, task_spec=TaskSpec.vision_tiny())


def test_batches_are_delivered_on_the_device_that_is_named():
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    for named in (device, device.type):
        module = UniversalDataModule(torch.arange(10.0), batch_size=4, device=named)
        for loader in (module.train_dataloader(), module.val_dataloader()):
            assert loader.device == named
            assert next(iter(loader)).device.type == device.type
    with pytest.raises(OptionError, match="device must be one that torch has"):
        UniversalDataModule(Ids(10), device="gpu")


def test_rows_of_text_are_tokenised_cut_and_may_be_empty(tokenizer):
    rows = datasets.Dataset.from_dict({"text": [*LINES, "", "the run " * 300] * 4})
    module = UniversalDataModule(
        rows, task_spec=TaskSpec.lm_tiny(), tokenizer=tokenizer, batch_size=8, val_split=0.25
    )
    widths = [batch["labels"].shape[1] for batch in module.train_dataloader()]
    assert max(widths) == 128
    assert sum(len(batch["input_ids"]) for batch in module.val_dataloader()) == 7


class Images(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"pixel_values": torch.randn(3, 224, 224), "labels": index % 10}


def test_images_of_224_by_224(tokenizer):
    module = UniversalDataModule(Images(), task_spec=TaskSpec.vision_tiny(), batch_size=8)
    batch = next(iter(module.train_dataloader()))
    assert batch["pixel_values"].shape == (8, 3, 224, 224)
    assert batch["labels"].shape == (8,)


def test_images_of_pil_in_a_hugging_face_dataset_are_scaled_and_normalised():
    features = datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")})
    images = [Image.new("RGB", (32, 32), (n, n, n)) for n in range(10)]
    rows = datasets.Dataset.from_dict({"img": images, "label": list(range(10))}, features=features)
    module = UniversalDataModule(
        rows, val_data=rows, task_spec=TaskSpec.vision_tiny(), batch_size=10, val_split=0.0
    )
    (batch,) = module.train_dataloader()
    back = (batch["pixel_values"][:, 0, 0, 0] * 0.229 + 0.485) * 255
    assert back.round().int().tolist() == batch["labels"].tolist()


def test_a_dataset_of_tensors_of_ids_makes_batches_of_ids():
    ids = torch.randint(0, 100, (10, 7))
    module = UniversalDataModule(TensorDataset(ids), task_spec=TaskSpec.lm_tiny(), val_split=0)
    (batch,) = module.train_dataloader()
    assert sorted(batch["input_ids"].tolist()) == sorted(ids.tolist())
    labelled = TensorDataset(ids, ids)
    module = UniversalDataModule(labelled, task_spec=TaskSpec.lm_tiny(), val_split=0)
    with pytest.raises(CollationError, match=r"is a tuple of 2 sequences, .* a dict of columns"):
        next(iter(module.train_dataloader()))


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_ragged_lists_of_numbers_are_padded_without_a_task(batch_size):
    rows = [[1, 2, 3], [4], [], [5, 6]]
    module = UniversalDataModule(rows, batch_size=batch_size, val_split=0, pad_token_id=9)
    found = [row for batch in module.train_dataloader() for row in batch.tolist()]
    assert sorted([each for each in row if each != 9] for row in found) == sorted(rows)
    floats = UniversalDataModule([[0.5], [1.5, 2.5]], val_split=0)
    (batch,) = floats.train_dataloader()
    assert sorted(batch.tolist()) == [[0.5, 0], [1.5, 2.5]]
    assert batch.dtype is torch.float64


def test_rows_of_unequal_dtypes_are_padded_without_rounding():
    rows = [torch.tensor([2**24 + 1]), torch.ones(2)]
    module = UniversalDataModule(rows, val_split=0)
    with pytest.raises(
        ConversionError, match=r"the rows, row .: 16777217 does not fit into float32"
    ):
        next(iter(module.train_dataloader()))
