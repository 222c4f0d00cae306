"""Children of a command end with it, with all that they have started."""

import os
import signal
import sys

import pytest
from watching import is_running, until

from dataporter.tools.demo import runs
from dataporter.tools.demo.runs import started

# Leaves a process behind that does not listen to SIGTERM.
CHILD = """
import signal, subprocess, sys
left = subprocess.Popen([sys.executable, "-c", '''
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write("ready")
time.sleep(1000)
''', sys.argv[1]])
open(sys.argv[2], "w").write(str(left.pid))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_process_whose_parent_has_ended_belongs_to_the_session_and_ends_with_it(
    tmp_path, monkeypatch
):
    (tmp_path / "leaving.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(runs, "_MOMENT", 0.2)
    ready, pid = tmp_path / "ready", tmp_path / "pid"
    with started([["leaving", str(ready), str(pid)]], tmp_path) as (child,):
        assert child.wait() == 0
        until(lambda: ready.exists() and ready.read_text(), seconds=60)
        left = int(pid.read_text())
        assert os.getsid(left) == child.pid
        os.kill(left, signal.SIGSTOP)  # one that is stopped ends as well
    until(lambda: not is_running(left), seconds=60)
