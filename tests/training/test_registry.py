"""The registry: the right collator for a task, and an answer for everything else."""

import pickle
import subprocess
import sys
import threading

import pytest
import torch
from small_tokenizer import small_tokenizer

from dataporter import OptionError, OptionTypeError, ResumableDataLoader
from dataporter.training import (
    CollatorRegistry,
    DefaultCollator,
    LanguageModelingDataCollator,
    TaskSpec,
    VisionDataCollator,
)


@pytest.fixture
def registry():
    return CollatorRegistry()


def audio_spec():
    return TaskSpec(name="speech", modality="audio", task_type="classification")


def test_importing_the_collators_brings_neither_transformers_nor_pil():
    code = "import sys, dataporter.training; assert not {'transformers', 'PIL'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_there_is_one_instance():
    assert CollatorRegistry.get_instance() is CollatorRegistry.get_instance()


def test_one_instance_even_if_many_threads_ask_for_the_first():
    class Fresh(CollatorRegistry):
        _instance = None

    barrier, found = threading.Barrier(8), []

    def ask():
        barrier.wait()
        found.append(Fresh.get_instance())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_registrations_from_many_threads_all_arrive(registry):
    def add(number):
        for turn in range(50):
            registry.register(f"{number} {turn}")(lambda: None)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.list_collators()) == 3 + 8 * 50


def test_without_task_and_name_it_is_the_default(registry):
    assert isinstance(registry.get_collator(), DefaultCollator)


def test_a_task_whose_modality_nobody_serves_gets_the_default(registry):
    spec = TaskSpec(name="shapes", modality="point_cloud", task_type="classification")
    assert isinstance(registry.get_collator(task_spec=spec, tokenizer=len), DefaultCollator)


@pytest.mark.parametrize(
    ("task_type", "mlm", "own_labels_only"),
    [("lm", False, False), ("masked_lm", True, False), ("classification", False, True)],
)
def test_the_text_collator_follows_the_task(registry, task_type, mlm, own_labels_only):
    spec = TaskSpec(name="t", modality="text", task_type=task_type, max_length=7)
    tokenizer = small_tokenizer()
    collator = registry.get_collator(spec, tokenizer=tokenizer)
    assert isinstance(collator, LanguageModelingDataCollator)
    assert (collator.mlm, collator.own_labels_only) == (mlm, own_labels_only)
    assert collator.max_length == 7
    assert collator.tokenizer is tokenizer


def test_what_is_said_explicitly_wins_over_the_task(registry):
    spec = TaskSpec.lm_tiny()
    collator = registry.get_collator(spec, tokenizer=small_tokenizer(), mlm=True, max_length=5)
    assert collator.mlm
    assert collator.max_length == 5


def test_the_name_wins_over_the_task(registry):
    collator = registry.get_collator(task_spec=TaskSpec.lm_tiny(), collator_name="vision")
    assert isinstance(collator, VisionDataCollator)


def test_a_maker_gets_of_task_and_tokenizer_what_it_names(registry):
    got = {}
    registry.register("bare")(lambda: got.update(bare=True))
    registry.register("task")(lambda task_spec: got.update(task=task_spec))
    registry.register("both")(lambda tokenizer, *, task_spec: got.update(both=tokenizer))
    registry.register("any")(lambda **options: got.setdefault("any", options))
    for name in ("bare", "task", "both", "any"):
        registry.get_collator(audio_spec(), name, tokenizer=len)
    assert got == {
        "bare": True,
        "task": audio_spec(),
        "both": len,
        "any": {"task_spec": audio_spec(), "tokenizer": len},
    }


def test_a_class_is_a_maker_too(registry):
    @registry.register("mine", modality="audio")
    class Mine:
        def __init__(self, rate=1):
            self.rate = rate

    assert registry.get_collator(audio_spec(), rate=3).rate == 3
    assert isinstance(registry.get_collator(audio_spec()), Mine)


def test_an_option_that_a_collator_does_not_know_is_an_error_that_lists_what_it_knows(registry):
    with pytest.raises(OptionTypeError, match=r"no option 'nrmalize'\. Did you mean 'normalize'\?"):
        registry.get_collator(collator_name="vision", nrmalize=True)
    with pytest.raises(OptionTypeError, match=r"no option 'sample_rate'.*pad_to_multiple_of"):
        registry.get_collator(task_spec=TaskSpec.lm_tiny(), sample_rate=1)
    with pytest.raises(OptionTypeError, match="'default' has no option 'sample_rate'"):
        registry.get_collator(task_spec=audio_spec(), sample_rate=1)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(registry):
    with pytest.raises(
        OptionError,
        match=r"no collator 'visoin'\. Did you mean 'vision'\? Known names: default, text, ",
    ):
        registry.get_collator(collator_name="visoin")
    with pytest.raises(OptionError, match=r"no collator 'q'\. Known names: default, text, vis"):
        registry.get_collator(collator_name="q")


def test_a_misspelt_modality_is_an_error_and_not_the_default(registry):
    spec = TaskSpec(name="a", modality="txt", task_type="lm")
    with pytest.raises(OptionError, match=r"modality 'txt'\. Did you mean 'text'\? Known names: "):
        registry.get_collator(task_spec=spec)


def test_what_is_no_task_is_an_error(registry):
    with pytest.raises(OptionTypeError, match="must be a TaskSpec, found str 'vision'"):
        registry.get_collator("vision")


def test_the_first_of_a_modality_is_chosen_and_the_second_goes_by_name(registry):
    registry.register("other", modality="vision")(lambda: "other")
    assert isinstance(registry.get_collator(TaskSpec.vision_tiny()), VisionDataCollator)
    assert registry.get_collator(collator_name="other") == "other"


def test_a_name_that_is_taken_is_not_taken_over_by_accident(registry):
    with pytest.raises(OptionError, match=r"'vision' is already registered, for .* vision"):
        registry.register("vision")(lambda: None)
    registry.register("vision", modality="vision", replace=True)(lambda: "mine")
    assert registry.get_collator(TaskSpec.vision_tiny()) == "mine"


def test_a_function_without_a_name_never_replaces_another(registry):
    def add(start):
        registry.register("sum")(lambda: start)

    add(1)
    with pytest.raises(OptionError, match="'sum' is already registered"):
        add(2)


def test_a_maker_that_does_not_tell_its_options_is_given_all(registry):
    registry.register("plain")(dict)
    made = registry.get_collator(collator_name="plain", size=3)
    assert made == {"task_spec": None, "tokenizer": None, "size": 3}


def test_a_definition_that_is_run_again_replaces_itself(registry):
    for rate in (1, 2):

        @registry.register("audio", modality="audio")
        def create(rate=rate):
            return rate

    assert registry.get_collator(audio_spec()) == 2


@pytest.mark.parametrize(
    ("name", "factory"), [("", DefaultCollator), (None, DefaultCollator), ("a", 1)]
)
def test_what_cannot_be_registered_is_refused(registry, name, factory):
    with pytest.raises(OptionTypeError):
        registry.register(name)(factory)


def test_collators_are_listed_with_modality_and_description_and_forgotten_at_reset(registry):
    registry.register("audio", modality="audio", description="spectra")(DefaultCollator)
    assert registry.list_collators()["audio"] == {"modality": "audio", "description": "spectra"}
    registry.reset()
    assert sorted(registry.list_collators()) == ["default", "text", "vision"]


def test_a_list_that_was_given_out_changes_nothing(registry):
    registry.list_collators().clear()
    assert registry.list_collators()


def test_a_pickled_registry_is_a_copy(registry):
    registry.register("more", modality="audio")(DefaultCollator)
    again = pickle.loads(pickle.dumps(registry))
    assert again.list_collators() == registry.list_collators()
    again.reset()
    assert "more" in registry.list_collators()
    again.register("more")(DefaultCollator)


class Asks:
    """A collate function that asks the registry at each batch, in the worker."""

    def __init__(self, registry):
        self.registry = registry

    def __call__(self, rows):
        return self.registry.get_collator(task_spec=TaskSpec.lm_tiny())(rows)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_a_registry_serves_in_worker_processes(registry, method):
    loader = ResumableDataLoader(
        [[1, 2], [3], [4]],
        batch_size=3,
        collate_fn=Asks(registry),
        num_workers=1,
        multiprocessing_context=method,
    )
    (batch,) = loader
    assert torch.equal(batch["input_ids"], torch.tensor([[1, 2], [3, 0], [4, 0]]))
