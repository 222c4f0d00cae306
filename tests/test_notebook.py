"""Cells of a notebook, run by a real Jupyter kernel."""

import json
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from watching import environment

DEFINITIONS = """
import multiprocessing, os, time
import torch
from dataporter import ResumableDataLoader
from dataporter.testing import verify

class Squares(torch.utils.data.Dataset):
    def __init__(self, gate=None):
        self.gate = gate
    def __len__(self):
        return 40
    def __getitem__(self, index):
        while self.gate and index >= 20 and not os.path.exists(self.gate):
            time.sleep(0.01)
        return torch.tensor(index * index)

def make_loader(workers=2, gate=None, **options):
    return ResumableDataLoader(Squares(gate), 4, seed=1, num_workers=workers, **options)

def workers():
    return [each for each in multiprocessing.active_children() if "worker" in each.name]

def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


class Shown(NamedTuple):
    """What came out of a cell."""

    printed: str
    result: dict[str, str]  # by MIME type
    error: str


class Notebook:
    """A kernel, to which cells are sent one by one."""

    def __init__(self, kernel: KernelManager, client: BlockingKernelClient) -> None:
        self._kernel = kernel
        self._client = client

    def run(self, cell: str, *, interrupt_at: str = "") -> Shown:
        """Run a cell to its end. It is interrupted as soon as it has printed a certain word."""
        printed, result, errors = "", dict[str, str](), list[str]()
        was_interrupted = not interrupt_at

        def hear(message: dict[str, Any]) -> None:
            nonlocal printed, was_interrupted
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                printed += content["text"]
                if not was_interrupted and interrupt_at in printed:
                    was_interrupted = True
                    self._kernel.interrupt_kernel()
            elif message["msg_type"] == "execute_result":
                result.update(content["data"])
            elif message["msg_type"] == "error":
                errors.append(f"{content['ename']}: {content['evalue']}")

        self._client.execute_interactive(cell, timeout=120, output_hook=hear)
        return Shown(printed, result, "".join(errors))

    def value(self, expression: str) -> Any:
        """Run an expression, and return what it is."""
        shown = self.run(f"import json; print(json.dumps({expression}))")
        assert not shown.error
        return json.loads(shown.printed)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Notebook]:
    # A short path, for sockets: ports that were free a moment ago may be taken by now.
    with tempfile.TemporaryDirectory(prefix="kernel") as folder:
        manager = KernelManager(
            transport="ipc", ip=f"{folder}/socket", connection_file=f"{folder}/connection.json"
        )
        # Nothing of the user's: neither settings nor history.
        manager.start_kernel(env={**environment(), "IPYTHONDIR": folder}, cwd=folder)
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=120)
            yield Notebook(manager, client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(kernel: Notebook) -> Notebook:
    assert not kernel.run(DEFINITIONS).error
    return kernel


def test_workers_that_are_forked_know_the_classes_of_cells(notebook):
    notebook.run("loader = make_loader(shuffle=False, multiprocessing_context='fork')")
    assert notebook.value("[b.tolist() for b in loader]")[-1] == [n * n for n in range(36, 40)]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_are_refused_at_once(notebook, method):
    shown = notebook.run(f"list(make_loader(4, multiprocessing_context='{method}'))")
    assert shown.error.startswith("OptionError")
    assert "class Squares is defined in a notebook" in shown.error
    assert "module" in shown.error
    assert "multiprocessing_context='fork'" in shown.error
    assert not notebook.value("len(workers())")


def test_an_explanation_is_shown_as_a_table(notebook):
    shown = notebook.run("make_loader().explain()").result
    assert "<table>" in shown["text/html"]
    assert "40 samples" in shown["text/html"]
    assert shown["text/plain"].startswith("epoch      0\nposition ")


def test_a_factory_of_a_cell_is_verified_and_its_report_shown(notebook):
    shown = notebook.run("verify(make_loader, batches=8, points=1, workers=[0, 2])").result
    assert "<td" in shown["text/html"]
    assert "EXACT: all" in shown["text/html"]
    assert "EXACT: all" in shown["text/plain"]


def test_a_pass_that_is_interrupted_goes_on_with_the_next_batch(notebook):
    notebook.run("loader, seen = make_loader(shuffle=True), []")
    notebook.run("expected = [batch.tolist() for batch in make_loader(0, shuffle=True)]")
    cell = """
for batch in loader:
    seen.append(batch.tolist())
    while len(seen) == 3:
        print("third", flush=True)
        time.sleep(0.05)
"""
    assert notebook.run(cell, interrupt_at="third").error.startswith("KeyboardInterrupt")
    notebook.run("until(lambda: not workers())")
    notebook.run("loader.load_state_dict(loader.state_dict())")
    notebook.run("seen += [batch.tolist() for batch in loader]")
    assert notebook.value("seen == expected")


def test_a_wait_for_a_batch_that_is_interrupted_goes_on_with_that_batch(notebook, tmp_path):
    gate = str(tmp_path / "gate")
    notebook.run(f"loader, seen = make_loader(shuffle=False, gate={gate!r}), []")
    cell = """
for batch in loader:
    seen += batch.tolist()
    if len(seen) == 20:
        print("next", flush=True)
"""
    assert notebook.run(cell, interrupt_at="next").error.startswith("KeyboardInterrupt")
    notebook.run(f"open({gate!r}, 'w').close()")
    notebook.run("until(lambda: not workers())")
    notebook.run("loader.load_state_dict(loader.state_dict())")
    assert not notebook.run(cell).error
    assert notebook.value("seen == [n * n for n in range(40)]")


def test_a_cell_that_is_run_again_leaves_no_workers_of_its_first_run(notebook):
    cell = "loader = make_loader(persistent_workers=True); batches = iter(loader); next(batches)"
    for _ in range(3):
        assert not notebook.run(cell).error
    assert not notebook.run("until(lambda: len(workers()) == 2)").error
    notebook.run("del loader, batches")
    assert not notebook.run("until(lambda: not workers())").error
