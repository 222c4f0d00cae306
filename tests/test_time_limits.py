"""A run of pytest whose tests hang ends, shows where, and leaves no process behind."""

import shutil
import subprocess
import sys
from pathlib import Path

from watching import environment, is_running, until

CONFTEST = """
from time_limits import TimeLimits
from second_tries import SecondTries

def pytest_configure(config):
    config.addinivalue_line("markers", "long(seconds, reason): ")
    config.addinivalue_line("markers", "upset_by_load(reason): ")
    config.pluginmanager.register(TimeLimits(config))
    config.pluginmanager.register(SecondTries())
"""


def run_pytest(folder: Path, tests: str, *options: str) -> str:
    """Run tests in a folder of their own with the plugins of these tests, and return the output."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_made_up.py").write_text(tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return f"{done.stdout}{done.stderr}\nstatus {done.returncode}"


HANGS = """
import ctypes, pytest, signal, subprocess, sys, threading, time
from pathlib import Path

def start():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with Path("pids").open("a") as pids:
        pids.write(f"{child.pid} ")

def other_thread():
    time.sleep(1000)

@pytest.mark.timeout(4)
def test_in_python():
    start()
    threading.Thread(target=other_thread, daemon=True).start()
    threading.Event().wait()

@pytest.mark.timeout(2)
def test_outside_python():
    start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    ctypes.PyDLL(None).sleep(1000)

def test_the_next():
    pass
"""


def test_a_test_that_hangs_fails_with_all_stacks_and_leaves_no_process(tmp_path):
    said = run_pytest(tmp_path, HANGS, "-n", "1", "--timeout=60")
    assert "2 failed, 1 passed" in said, said
    assert "threading.Event().wait()" in said, said  # where the main thread was
    assert "in other_thread" in said, said
    assert "in test_outside_python" in said, said  # though it cost a worker of pytest
    until(lambda: not any(map(is_running, map(int, (tmp_path / "pids").read_text().split()))))
    assert "left behind" not in said, said


LEAVES = """
import subprocess, sys

def test_leaves_a_daemon():
    daemon = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {!r}])"
    sleeper = "import time; time.sleep(1000)"
    subprocess.run([sys.executable, "-c", daemon.format(sleeper)], check=True)
"""


def test_a_run_that_leaves_a_process_behind_fails_and_ends_it(tmp_path):
    plugin = Path(__file__).parent / "time_limits.py"
    shutil.copy(plugin, tmp_path)
    patched = (tmp_path / "time_limits.py").read_text().replace("_GRACE = 20", "_GRACE = 0.5")
    (tmp_path / "time_limits.py").write_text(patched)
    said = run_pytest(tmp_path, LEAVES, "-n", "1", "--timeout=60")
    assert "1 passed" in said, said
    assert "status 1" in said, said
    left = int(said.partition("left behind: ")[2].split()[0])
    until(lambda: not is_running(left))


def test_a_longer_limit_says_why(tmp_path):
    marked = "import pytest\n@pytest.mark.long(300)\ndef test_it(): pass\n"
    assert "long takes seconds and reason=" in run_pytest(tmp_path, marked, "--timeout=60")
