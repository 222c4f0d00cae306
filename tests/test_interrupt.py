"""A training script that saves in its SIGINT handler, interrupted for real and run again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support import Ids, passes

from dataporter import ResumableDataLoader

SCRIPT = """
import json, os, signal, sys, time
import torch
from support import Ids
from dataporter import create_resumable_dataloader

folder = sys.argv[1]
checkpoint_path = folder + "/interrupt_checkpoint.pt"
dataloader = create_resumable_dataloader(Ids(200), batch_size=4, shuffle=True, seed=3)
start_epoch, seen = 0, open(folder + "/seen.jsonl", "a", buffering=1)

def save_checkpoint(signum, frame):
    torch.save({"dataloader": dataloader.state_dict(), "epoch": epoch}, checkpoint_path)
    sys.exit(0)

signal.signal(signal.SIGINT, save_checkpoint)
if os.path.exists(checkpoint_path):
    checkpoint = torch.load(checkpoint_path)
    dataloader.load_state_dict(checkpoint["dataloader"])
    start_epoch = checkpoint["epoch"]

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
for epoch in range(start_epoch, 2):
    dataloader.set_epoch(epoch)
    for batch in dataloader:
        seen.write(json.dumps([epoch, batch.tolist()]) + chr(10))
        # A step is made whole, and the batch after it is not begun before this is done.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        time.sleep(0.005)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
"""


def test_a_script_that_saves_on_sigint_goes_on_with_the_next_batch(tmp_path: Path):
    log = tmp_path / "seen.jsonl"
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    for interrupt_after in (7, 60, None):
        with subprocess.Popen(command, env=environment) as child:
            deadline = time.monotonic() + 60
            while interrupt_after is not None and (
                not log.exists() or len(log.read_text().splitlines()) < interrupt_after
            ):
                assert time.monotonic() < deadline
                assert child.poll() is None
                time.sleep(0.002)
            if interrupt_after is not None:
                child.send_signal(signal.SIGINT)
            assert child.wait(60) == 0
    seen = [json.loads(line) for line in log.read_text().splitlines()]
    reference = passes(ResumableDataLoader(Ids(200), 4, shuffle=True, seed=3), 2)
    expected = [[epoch, batch] for epoch in range(2) for batch in reference[epoch]]
    assert seen == expected
