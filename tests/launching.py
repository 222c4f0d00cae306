"""Examples started by torchrun, or as they are, in real processes of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from watching import environment

EXAMPLES = Path(__file__).parents[1] / "examples"

# With the store of the launcher's own rendezvous, ranks that are started again may be given the
# addresses of those that died (github.com/pytorch/pytorch/issues/135712).
_OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}

# No network, nothing in the home folder, and a controller that looks often.
RAY = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
}


@contextmanager
def started(*command: Any, **environment: str) -> Iterator[subprocess.Popen]:
    """Run a command as a process group of its own, of which nothing is left at the end."""
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # a launcher ends its ranks; nothing happens if all have ended
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def torchrun(launch: str, example: str, *arguments: Any) -> Iterator[subprocess.Popen]:
    """Launch an example with torchrun's arguments and its own."""
    command = ["-m", "torch.distributed.run", "--monitor-interval", "0.1", *launch.split()]
    with started(*command, EXAMPLES / example, *arguments, **_OWN_STORE) as process:
        yield process


def finished(process: subprocess.Popen) -> str:
    """What a process has written, after it ended well."""
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return out


def outputs_of_two_ranks(code: str, folder: Path) -> list[str]:
    """Run code on two ranks, with a store and its rank as arguments, and return their outputs."""
    store = f"file://{folder / 'store'}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, store, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for rank in range(2)
    ]
    written = [process.communicate(timeout=90) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], written
    return [out for out, _ in written]
