"""A configuration is checked when it is made, and the same after a trip through a file."""

import copy
import dataclasses
import json
import math
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataporter.errors import OptionError, OptionTypeError
from dataporter.training import TrainingConfig

configs = st.builds(
    TrainingConfig,
    batch_size=st.integers(1),
    epochs=st.integers(1),
    learning_rate=st.floats(0, exclude_min=True, allow_infinity=False),
    random_seed=st.integers(0, 2**64 - 1),
    weight_decay=st.floats(0, 1),
    max_grad_norm=st.none() | st.floats(0, 10, exclude_min=True),
    val_split=st.floats(0, 1, exclude_max=True),
    num_workers=st.none() | st.integers(0),
)


def test_the_document_s_snippet_runs():
    config = TrainingConfig(batch_size=32, epochs=10, learning_rate=5e-5, random_seed=42)
    assert (config.batch_size, config.random_seed) == (32, 42)
    config.validate()


@given(configs)
def test_a_configuration_is_the_same_after_a_file_a_dict_a_pickle_and_a_copy(
    tmp_path_factory, config
):
    path = tmp_path_factory.getbasetemp() / "config.json"
    assert TrainingConfig.load(config.save(path)) == config
    assert TrainingConfig.load(str(path)) == config
    assert TrainingConfig(**config.to_dict()) == config
    assert json.loads(json.dumps(config.to_dict())) == config.to_dict()
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


def test_saving_leaves_one_file_and_takes_a_string(tmp_path):
    TrainingConfig().save(str(tmp_path / "config.json"))
    TrainingConfig(epochs=3).save(tmp_path / "config.json")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert TrainingConfig.load(tmp_path / "config.json").epochs == 3


def test_what_a_file_leaves_out_has_its_default(tmp_path):
    (tmp_path / "config.json").write_text('{"epochs": 3}')
    assert TrainingConfig.load(tmp_path / "config.json") == TrainingConfig(epochs=3)


def test_it_is_changed_by_making_another():
    config = TrainingConfig(epochs=3)
    assert dataclasses.replace(config, epochs=4).epochs == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.epochs = 4
    with pytest.raises(OptionError):
        dataclasses.replace(config, epochs=0)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("batchsize", "batch_size"), ("lr_rate", None), ("learning_rat", "learning_rate"),
     ("seed", "random_seed"), ("epoch", "epochs"), ("xyz", None)],
)  # fmt: skip
def test_an_unknown_name_is_an_error_that_says_which_was_meant(tmp_path, name, meant):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: 1}))
    for make in (lambda: TrainingConfig(**{name: 1}), lambda: TrainingConfig.load(path)):
        with pytest.raises(OptionTypeError, match=f"has no '{name}'") as error:
            make()
        assert "batch_size, epochs, learning_rate" in str(error.value)
        if meant:
            assert f"Did you mean '{meant}'?" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("batch_size", 0, OptionError),
        ("batch_size", 1.5, OptionTypeError),
        ("batch_size", True, OptionTypeError),
        ("epochs", -1, OptionError),
        ("learning_rate", 0.0, OptionError),
        ("learning_rate", math.nan, OptionError),
        ("learning_rate", math.inf, OptionError),
        ("learning_rate", "fast", OptionTypeError),
        ("random_seed", -1, OptionError),
        ("random_seed", None, OptionTypeError),
        ("weight_decay", -0.1, OptionError),
        ("warmup_steps", -1, OptionError),
        ("gradient_accumulation_steps", 0, OptionError),
        ("max_grad_norm", 0, OptionError),
        ("val_split", 1.0, OptionError),
        ("num_workers", -1, OptionError),
    ],
)
def test_a_value_that_cannot_work_is_named_with_what_was_found(name, value, error):
    with pytest.raises(error, match=f"^{name} must be .*found.*{value}"):
        TrainingConfig(**{name: value})


@pytest.mark.parametrize(("text", "words"), [("{", "is not JSON"), ("[1]", "found list")])
def test_a_file_that_is_no_configuration_is_said_to_be_none(tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=f"{re.escape(str(path))}.*{words}"):
        TrainingConfig.load(path)
