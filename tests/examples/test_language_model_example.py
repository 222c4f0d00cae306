"""The example of a language model: a packed mixture, killed on two ranks, resumed on three."""

from launching import EXAMPLES, finished, started


def test_a_mixture_that_is_packed_gives_the_same_losses_on_other_ranks(tmp_path):
    with started(EXAMPLES / "language_model.py", "--folder", tmp_path / "run") as process:
        printed = finished(process).splitlines()
    assert printed[0].startswith("One rank: 30 steps, loss 4.")
    assert printed[1:] == [
        "Two ranks: killed after 13 steps, 10 of them saved.",
        "Three ranks: went on to 30 steps.",
        "All losses are the same.",
    ]
