"""`dataporter show`: a batch of a run, by a state or a position, as training saw it."""

import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from chromium import opened
from PIL import Image
from ranks_in_step import ranks, run, state_of
from shown_loaders import by_length, pictures, stream, torchdatas, without_seed
from support import Augmented, plain

from dataporter.tools.cli.main import run as run_command

LOADERS = Path(__file__).parent


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_loaders(monkeypatch):
    monkeypatch.chdir(LOADERS)
    # Other processes find `support` by it too; the command adds the current folder.
    monkeypatch.setattr(sys, "path", [*sys.path])


def ran(*arguments):
    """Run the command in this process; its status, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run_command(["show", *map(str, arguments)])
    return ended.value.code, out.getvalue(), " ".join(err.getvalue().split())


def found(*arguments):
    status, out, err = ran(*arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


@pytest.fixture
def checkpoint(tmp_path):
    """Write a checkpoint of 5 batches of `pictures`; its path, and the batches."""
    loader = pictures()
    seen = []
    for batch in loader:
        seen.append((loader.delivered, batch))
        if len(seen) == 5:
            break
    torch.save({"model": torch.zeros(3), "loader": loader.state_dict()}, tmp_path / "last.pt")
    return tmp_path / "last.pt", seen


def test_the_batch_delivered_last_is_shown_with_its_samples_and_parts(checkpoint):
    path, seen = checkpoint
    status, out, err = ran("shown_loaders:pictures", "--state", path)
    assert (status, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    delivered, batch = seen[-1]
    assert "position  16 of 50\n" in out
    assert "4 samples of Pictures, rank 0 of 1" in out
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+)$", out, re.MULTILINE)
    expected = zip(delivered.positions.tolist(), delivered.indices.tolist(), strict=True)
    assert [tuple(map(int, row[1:])) for row in rows] == list(expected)
    low, high = batch["image"].min(), batch["image"].max()
    assert f"torch.float32 [4, 3, 8, 8]; {low:.4g} to {high:.4g}, mean" in out
    assert f"'{batch['text'][0]}'" in out


def test_batches_are_counted_back_or_found_by_their_position(checkpoint):
    path, seen = checkpoint
    for arguments, wanted in (
        (["--back", 3], seen[1]),
        (["--position", 4], seen[1]),
        (["--epoch", 0], seen[0]),
    ):
        shown = found("shown_loaders:pictures", "--state", path, *arguments)
        assert shown["indices"] == wanted[0].indices.tolist()
        parts = {part["path"]: part for part in shown["parts"]}
        assert parts["image"]["mean"] == pytest.approx(wanted[1]["image"].mean().item())
    status, _, err = ran("shown_loaders:pictures", "--state", path, "--back", 5)
    assert status == 2
    assert "--back 5 is before the beginning of the run: only 5 batches were delivered" in err


def test_a_state_of_other_ranks_and_batches_shows_each_ranks_batch(tmp_path):
    loaders = ranks(40, 2, 3, Augmented, shuffle=True)
    run(loaders, 1)
    batches = run(loaders, 2)  # of the next epoch
    (tmp_path / "state.json").write_text(json.dumps(state_of(loaders)))
    for rank in (0, 1):
        shown = found("shown_loaders:augmented", "--state", tmp_path / "state.json", "--rank", rank)
        assert (shown["epoch"], shown["position"], shown["world_size"]) == (1, 6, 2)
        assert shown["indices"] == plain(batches[rank][1][0])
    status, _, err = ran("shown_loaders:augmented", "--state", tmp_path / "state.json", "--rank", 2)
    assert (status, err) == (
        2,
        "dataporter: --rank must be below 2, the ranks of the state, found 2.",
    )


def test_padding_and_excluded_samples_are_marked(tmp_path):
    loaders = ranks(40, 3, 4, Augmented, shuffle=True)
    loaders[0].exclude(0, 12, 15)
    state = loaders[0].state_dict()
    (tmp_path / "state.json").write_text(json.dumps(state))
    arguments = ["shown_loaders:augmented", "--state", tmp_path / "state.json"]
    status, out, _ = ran(*arguments, "--position", 12)
    assert status == 0
    assert re.search(r"^ +0 +12 +\d+  excluded$", out, re.MULTILINE)
    assert "excluded  positions 12 to 14 of this epoch are left out from now on" in out
    status, out, _ = ran(*arguments, "--position", 39, "--rank", 2)
    assert re.search(r"^ +0 +\d+ +\d+  padding$", out, re.MULTILINE)
    assert "1 sample comes a second time" in out


def test_batches_by_length_are_shown_whole(tmp_path):
    loader = by_length()
    batches = iter(loader)
    seen = [next(batches).tolist(), next(batches).tolist()]
    loader.exclude(0, 1, 2)
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    for position, wanted in enumerate(seen):
        arguments = ["--state", tmp_path / "state.pt", "--position", position]
        shown = found("shown_loaders:by_length", *arguments)
        assert shown["indices"] == wanted
        assert shown["left_out"] == [position == 1] * len(wanted)


def test_a_page_shows_images_and_text_and_a_png_the_images(checkpoint, tmp_path):
    path, seen = checkpoint
    page = tmp_path / "batch.html"
    status, out, err = ran("shown_loaders:pictures", "--state", path, "--out", page)
    assert (status, err) == (0, "")
    assert f"The page is in {page}." in out.replace("\n", " ")
    html = page.read_text()
    assert html.count('<img src="data:image/png;base64,') == 4
    index = int(seen[-1][0].indices[0])
    assert f"<pre>&lt;b&gt;{index}&lt;/b&gt;</pre>" in html
    assert f"<figcaption>{index}</figcaption>" in html
    assert "http" not in html
    picture = tmp_path / "batch.png"
    assert ran("shown_loaders:pictures", "--state", path, "--out", picture)[0] == 0
    with Image.open(picture) as image:
        assert image.size == (780, 195)


def test_the_page_fits_narrow_and_wide_screens(checkpoint, tmp_path):
    page = tmp_path / "batch.html"
    assert ran("shown_loaders:pictures", "--state", checkpoint[0], "--out", page)[0] == 0
    for width, (scrolled, _, figures) in opened(page, tmp_path).items():
        assert scrolled <= width
        assert figures[""][0] > 100  # pixels of an image


def test_without_a_state_a_position_is_enough():
    shown = found("shown_loaders:augmented", "--epoch", 2, "--position", 7)
    assert (shown["epoch"], shown["positions"]) == (2, list(range(7, 14)))
    assert shown["notes"] == []
    (note,) = found("shown_loaders:without_seed")["notes"]
    assert note == "The loader has no seed=, so a run has another order. Name its --state."


def test_a_state_without_a_seed_given_brings_its_own(tmp_path):
    loader = without_seed()
    next(iter(loader))
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    shown = found("shown_loaders:without_seed", "--state", tmp_path / "state.pt")
    assert shown["indices"] == loader.delivered.indices.tolist()
    assert shown["notes"] == []


def test_a_loader_with_torchdatas_defaults_is_shown(tmp_path):
    loader = torchdatas()
    next(iter(loader))
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    assert found("shown_loaders:torchdatas", "--state", tmp_path / "state.pt")["indices"] == [
        *range(4)
    ]


def test_a_change_of_the_batch_size_within_the_epoch_is_said(checkpoint):
    path, _ = checkpoint
    state = torch.load(path)["loader"] | {"batch_size": 8}
    torch.save(state, path)
    shown = found("shown_loaders:pictures", "--state", path)
    assert shown["positions"] == list(range(12, 20))
    assert "Batch size or ranks changed within this epoch." in shown["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shown_loaders:pictures", "--back", 1], "Name a checkpoint by --state"),
        (["shown_loaders:pictures", "--state", "no.pt"], "there is no no.pt"),
        (["shown_loaders:pictures", "--out", "batch.pdf"], "--out must be a file .html or .png"),
        (["shown_loaders:pictures", "--position", 50], "must be in [0, 50), found 50"),
        (["shown_loaders:torchs"], "returned a DataLoader, which finds no batch by its position"),
        (["shown_loaders:stream"], "the loader reads an iterable, or has a sampler of your own"),
        (["shown_loaders:sampled"], "the loader reads an iterable, or has a sampler of your own"),
        (["shown_loaders:augmented", "--out", "batch.png"], "the batch has no images"),
    ],
)
def test_what_cannot_be_shown_says_why(arguments, words, tmp_path):
    arguments = [tmp_path / each if str(each).startswith("batch.") else each for each in arguments]
    status, _, err = ran(*arguments)
    assert status == 2
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_a_state_of_several_is_named_by_its_place_and_must_fit(checkpoint):
    path, seen = checkpoint
    other = stream()
    next(iter(other))
    state = torch.load(path)["loader"]
    torch.save({"train": state, "val": other.state_dict()}, path)
    status, _, err = ran("shown_loaders:pictures", "--state", path)
    assert status == 2
    assert "has 2 loader states, of which 2 fit: ['train'], ['val']. Name one by --place" in err
    assert (
        "none of them at 'test'"
        in ran("shown_loaders:pictures", "--state", path, "--place", "test")[2]
    )
    shown = found("shown_loaders:pictures", "--state", path, "--place", "train")
    assert shown["indices"] == seen[-1][0].indices.tolist()
    status, _, err = ran("shown_loaders:augmented", "--state", path, "--place", "train")
    assert status == 2
    assert "saved over 50 samples, this dataset has 40" in err
