"""The package as a whole: its surface, its rooms, and what importing it does."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import dataporter
from dataporter import errors

SOURCE = Path(dataporter.__file__).parent
ROOT = SOURCE.parents[1]


def test_the_public_surface_is_this():
    assert sorted(dataporter.__all__) == [
        "DataPorterError",
        "DataPorterWarning",
        "Order",
        "OrderedDataset",
        "PatchedDataLoader",
        "ResumableDataLoader",
        "ResumableDistributedSampler",
        "ResumableSampler",
        "StateError",
        "StatefulDataLoader",
        "WorkerError",
        "__version__",
        "create_resumable_dataloader",
        "sample_rng",
    ]
    assert all(hasattr(dataporter, name) for name in dataporter.__all__)


def test_an_editor_is_shown_what_is_public_and_nothing_else():
    rooms = [
        *("converters", "datasets", "errors", "patched_dataloader", "profiling", "samplers"),
        *("shards", "stateful_dataloader", "strategies", "testing", "trainers", "training"),
        *("utils", "views"),
    ]
    assert dir(dataporter) == sorted([*dataporter.__all__, *rooms])
    assert all(hasattr(dataporter, room) for room in rooms)


def test_every_error_is_in_errors_and_can_still_be_imported_from_the_package():
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {"StateMismatchError", "WorkerRestartWarning", "CheckpointDamagedError"} <= classes
    for name in classes:
        assert getattr(dataporter, name) is getattr(errors, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'dataporter' has no attribute 'nonsense'"):
        _ = dataporter.nonsense
    with pytest.raises(ImportError, match="cannot import name 'add_note'"):
        from dataporter import add_note  # noqa: F401


def test_submodules_are_attributes_of_the_package():
    code = (
        "import dataporter; dataporter.samplers.ResumableSampler(3); dataporter.training.TaskSpec"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_surface_of_each_room_with_one_is_this():
    surfaces = {
        "converters": ["ConversionReport", "DtypeConverter", "KeyBasedDtypeConverter", "ReportRow"],
        "datasets": ["HFDatasetWrapper"],
        "profiling": [
            "Advice",
            "Figures",
            "Profile",
            "Settings",
            "Spread",
            "Trial",
            "Tuning",
            "Verdict",
            "WorkerFigures",
            "profile",
        ],
        "testing": ["Cause", "Check", "Present", "Report", "assert_resumes_exactly", "verify"],
        "training": [
            "CheckpointManager",
            "CollatorRegistry",
            "DataLoaderConfig",
            "DataLoaderFactory",
            "DataModuleProtocol",
            "DefaultCollator",
            "LanguageModelingDataCollator",
            "TaskSpec",
            "TextCollator",
            "TrainingConfig",
            "UniversalDataModule",
            "VisionCollator",
            "VisionDataCollator",
        ],
    }
    for room, names in surfaces.items():
        module = importlib.import_module(f"dataporter.{room}")
        assert sorted(module.__all__) == names
        assert all(hasattr(module, name) for name in names)


def test_every_file_has_its_line_in_the_architecture_and_says_what_it_is_for():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
        if path.name != "__init__.py":
            assert path.name in text, path


FRAMEWORKS = {
    *("accelerate", "datasets", "lightning", "pyarrow", "pytorch_lightning", "ray"),
    *("transformers", "typer", "rich", "matplotlib", "grain", "spdl", "torchdata"),
}
IMPORT = """
import random, sys
import numpy, torch, torch.utils.data
def fingerprint():
    return {
        (module, name): id(value)
        for module in ("torch", "torch.utils.data", "torch.utils.data.dataloader",
                       "torch.utils.data.sampler", "numpy.random", "random")
        for name, value in vars(sys.modules[module]).items()
    } | {("class", name): id(value) for cls in (torch.utils.data.DataLoader,
        torch.utils.data.RandomSampler, torch.utils.data.BatchSampler, torch.Generator)
        for name, value in vars(cls).items()}
state = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state())
before, modules = fingerprint(), set(sys.modules)
import dataporter
assert fingerprint() == before, set(fingerprint().items()) ^ set(before.items())
after = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state())
assert torch.equal(after[0], state[0]) and after[1:] == state[1:]
print(" ".join(sorted(m.split(".")[0] for m in set(sys.modules) - modules)))
"""


def torchs_private_imports(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in found if name.startswith("torch.") and "._" in name]


def test_one_file_imports_a_private_module_of_torchs():
    imports = {
        path.relative_to(SOURCE).as_posix(): torchs_private_imports(path.read_text())
        for path in SOURCE.rglob("*.py")
    }
    assert {path for path, found in imports.items() if found} == {"fetch/worker_info.py"}


def test_importing_the_package_changes_nothing_in_torch_and_brings_no_framework():
    answer = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    brought = set(answer.stdout.split())
    assert not brought & FRAMEWORKS
