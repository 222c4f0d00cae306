"""docs/monitoring.md, run: what its recipes have logged is read back, without a network."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?P<why><!-- not run: [^>]* -->\n)?```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)

BEFORE = """
import sys, json
from pathlib import Path
import torch
from torch.utils.data import TensorDataset

dataset = TensorDataset(torch.zeros(1000, 8))
folder = sys.argv[1]
port = 0

def train_step(batch):
    pass

found = {}
"""

# By section of the page: what it needs, and how to read back what it has logged.
SECTIONS = {
    "The numbers": (None, "found['text'] = str(loader.stats())"),
    "TensorBoard": (
        "tensorboard",
        """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(folder)
events.Reload()
found["scalars"] = [(e.step, e.value) for e in events.Scalars("loader/batches")]
found["waiting"] = [e.value for e in events.Scalars("loader/waiting")]
""",
    ),
    "Weights & Biases": ("wandb", ""),
    "MLflow": (
        "mlflow",
        """
run = mlflow.last_active_run().info.run_id
history = mlflow.MlflowClient().get_metric_history(run, "loader/batches")
found["metrics"] = [(each.step, each.value) for each in history]
""",
    ),
    "Prometheus": (
        "prometheus_client",
        """
from urllib.request import urlopen

answered = urlopen(f"http://127.0.0.1:{server.server_port}/metrics").read().decode()
found["answered"] = answered
found["totals"] = loader.stats().total_batches
server.shutdown()
thread.join()
""",
    ),
    "Logs": (None, "found['level'] = logging.getLogger('dataporter').level"),
}

AFTER = """
(Path(folder) / "found.json").write_text(json.dumps(found))
"""

# A pass has 32 batches, so three times ten are logged.
LOGGED = [[9, 10.0], [19, 10.0], [29, 10.0]]


def script() -> str:
    """The code of the page, each section followed by what reads it back."""
    text = (ROOT / "docs" / "monitoring.md").read_text()
    parts = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    codes = [BEFORE, *code_of(text.partition("\n## ")[0])]
    for heading, (module, read) in SECTIONS.items():
        if module is None or find_spec(module) is not None:
            codes += [*code_of(parts[heading]), read]
    return "\n".join([*codes, AFTER])


def code_of(part: str) -> list[str]:
    codes = [found["code"] for found in BLOCK.finditer(part) if not found["why"]]
    assert codes, part
    return codes


def needs(module: str) -> pytest.MarkDecorator:
    """Skip a test where a module of the dev extra is not installed; it is not imported here."""
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder in which the page was run, by one process of its own."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.py").write_text(script())
    ran = subprocess.run(
        [sys.executable, "page.py", str(folder)],
        cwd=folder,
        env={
            **os.environ,
            "HOME": str(folder),
            # A folder of files is what works without a server or a database.
            "MLFLOW_TRACKING_URI": (folder / "runs").as_uri(),
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "WANDB_SILENT": "true",
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "found.json").read_text())


def test_the_numbers_are_those_of_the_second_pass(found):
    assert found["text"].startswith("epoch 1: 32 batches, 1,000 samples in ")


@needs("tensorboard")
def test_tensorboard_has_the_numbers(found):
    assert found["scalars"] == LOGGED
    assert all(0 <= share <= 1 for share in found["waiting"])


@needs("wandb")
def test_weights_and_biases_has_the_numbers_offline(folder):
    (written,) = folder.rglob("run-*.wandb")
    assert written.read_bytes().count(b"loader/samples_per_second") >= len(LOGGED)


@needs("mlflow")
def test_mlflow_has_the_numbers(found):
    assert found["metrics"] == LOGGED


@needs("prometheus_client")
def test_prometheus_is_answered(found):
    text = found["answered"]
    assert "# TYPE dataporter_delivered_batches_total counter" in text
    assert f"dataporter_delivered_batches_total {found['totals']}.0" in text
    assert "# TYPE dataporter_waiting gauge" in text


def test_logs_are_switched_on(found):
    assert found["level"] == 20
