"""Lightning's DDP with two processes: data shared exactly once, resumed on two ranks and others."""

import contextlib
import json
from pathlib import Path

import pytest
import torch
from forked_scripts import LIGHTNING, started_to_files
from lightning_training import SAMPLES, Module, SaveAt, Shards, make_loader, make_trainer
from ports import reserved_port

from dataporter.trainers.lightning import ResumeCallback

RANKS = Path(__file__).with_name("lightning_ranks.py")
BATCHES = 4  # of a rank, in an epoch


def fit(folder, callbacks, path=None, seed=1, make=make_loader):
    module = Module()
    torch.manual_seed(seed)
    trainer = make_trainer(folder, [ResumeCallback(), *callbacks])
    trainer.fit(module, make(), ckpt_path=path)
    return module.steps


def run_both(folder, path, port):
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    with contextlib.ExitStack() as started:
        ranks = [
            started.enter_context(
                started_to_files(
                    RANKS,
                    folder,
                    path,
                    imports=LIGHTNING,
                    **shared,
                    WORLD_SIZE="2",
                    LOCAL_RANK=str(rank),
                )
            )
            for rank in range(2)
        ]
        for rank in ranks:
            ended = rank.ended(100)
            assert ended.status == 0, ended.err


def run_ranks(folder):
    """Return the answers of two ranks, and of one rank that continues their run."""
    saver = SaveAt(folder / "one", ["on_train_batch_end"])
    alone = fit(folder, [saver])
    _, made, path = saver.saved[2]
    with reserved_port() as port:
        run_both(folder, path, port)
    answers = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    return {"ranks": answers, "alone": alone[:made], "folder": folder}


def ids(*steps):
    return sorted(index for each in steps for step in each for index in step["ids"])


def of_epoch(steps, epoch):
    return [step for step in steps if step["epoch"] == epoch]


def check_that_each_epoch_is_shared_exactly_once_however_the_loader_is_made(runs):
    first, second = (rank["runs"] for rank in runs["ranks"])
    assert len(first) == 4
    for one, other in zip(first, second, strict=True):
        for epoch in (0, 1):
            shares = [of_epoch(run["steps"], epoch) for run in (one, other)]
            assert ids(*shares) == list(range(SAMPLES)), one["how"]


def check_that_both_ranks_resume_to_the_steps_that_were_left(runs):
    for rank in runs["ranks"]:
        for run in rank["runs"]:
            assert [resumed["from"] for resumed in run["resumed"]] == [2, 4, 6, 8]
            for resumed in run["resumed"]:
                assert resumed["steps"] == run["steps"][resumed["from"] :], run["how"]


def check_that_the_state_of_the_loader_is_the_same_on_all_ranks(runs):
    path = runs["ranks"][0]["runs"][0]["resumed"][0]["path"]
    record = torch.load(path, weights_only=True)["dataporter"]
    one, other = (rank["loaders"] for rank in record["ranks"])
    assert one == other
    assert (one[0]["world_size"], one[0]["samples_processed"]) == (2, 12)


def check_that_one_rank_finishes_what_two_began(runs):
    began = [rank["runs"][0] for rank in runs["ranks"]]
    for number, steps in ((0, 2), (1, 4)):  # in mid-epoch, and at the epoch's last batch
        path = began[0]["resumed"][number]["path"]
        rest = fit(runs["folder"], [], path, seed=2)
        before = [run["steps"][:steps] for run in began]
        assert ids(*before, of_epoch(rest, 0)) == list(range(SAMPLES))
        assert ids(of_epoch(rest, 1)) == list(range(SAMPLES))


def check_that_two_ranks_finish_what_one_began(runs):
    rest = [rank["from_one_rank"] for rank in runs["ranks"]]
    assert [len(steps) for steps in rest] == [3 + BATCHES] * 2
    # 13 samples are left, and both ranks have 7: one of the epoch's first comes again.
    found = ids(runs["alone"], *(of_epoch(steps, 0) for steps in rest))
    assert sorted(set(found)) == list(range(SAMPLES))
    assert len(found) == SAMPLES + 1
    assert ids(*(of_epoch(steps, 1) for steps in rest)) == list(range(SAMPLES))


LANES = sorted(10 * lane + at for lane in range(4) for at in range(6))


def check_that_ranks_that_read_lanes_of_their_own_get_their_own_states_back(runs):
    whole = [rank["lanes"]["whole"] for rank in runs["ranks"]]
    assert ids(*(of_epoch(steps, 0) for steps in whole)) == LANES
    for rank in runs["ranks"]:
        assert [resumed["from"] for resumed in rank["lanes"]["resumed"]] == [1, 4, 7]
        for resumed in rank["lanes"]["resumed"]:
            assert resumed["steps"] == rank["lanes"]["whole"][resumed["from"] :]


def check_that_one_rank_reads_the_lanes_of_two_to_their_ends(runs):
    whole = [rank["lanes"]["whole"] for rank in runs["ranks"]]
    path = runs["folder"] / "lanes" / "2-on_train_batch_end.ckpt"
    rest = fit(runs["folder"], [], path, make=lambda: make_loader(Shards(), lanes=4))
    assert ids(*(steps[:3] for steps in whole), of_epoch(rest, 0)) == LANES
    assert ids(of_epoch(rest, 1)) == LANES


def check_that_an_accumulation_goes_on_with_the_mean_of_the_ranks_gradients(runs):
    for rank in runs["ranks"]:
        whole, resumed = rank["accumulating"]["whole"], rank["accumulating"]["resumed"]
        assert [step["ids"] for step in resumed] == [step["ids"] for step in whole]
        losses = [[float.fromhex(step["loss"]) for step in steps] for steps in (whole, resumed)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def check_that_a_signal_to_one_rank_pauses_both_and_both_go_on(runs):
    for rank in runs["ranks"]:
        first, rest = rank["paused"]["parts"]
        assert rank["paused"]["status"] == 0
        assert len(first) == 3
        assert first + rest == rank["paused"]["whole"]


def test_two_ranks_share_the_data_once_resume_exactly_and_pause_together(tmp_path):
    """One start of two processes for all that there is to see of them."""
    runs = run_ranks(tmp_path)
    check_that_each_epoch_is_shared_exactly_once_however_the_loader_is_made(runs)
    check_that_both_ranks_resume_to_the_steps_that_were_left(runs)
    check_that_the_state_of_the_loader_is_the_same_on_all_ranks(runs)
    check_that_one_rank_finishes_what_two_began(runs)
    check_that_two_ranks_finish_what_one_began(runs)
    check_that_ranks_that_read_lanes_of_their_own_get_their_own_states_back(runs)
    check_that_one_rank_reads_the_lanes_of_two_to_their_ends(runs)
    check_that_an_accumulation_goes_on_with_the_mean_of_the_ranks_gradients(runs)
    check_that_a_signal_to_one_rank_pauses_both_and_both_go_on(runs)
