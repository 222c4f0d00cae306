"""The example of workers on a Ray cluster: one is killed, and local workers continue."""

from tempfile import TemporaryDirectory

from guides import blocks, lines_that_an_example_lacks
from launching import EXAMPLES, RAY, finished, started


def test_batches_of_a_cluster_and_of_this_machine_are_those_of_one_process():
    with (
        TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        started(EXAMPLES / "ray_workers.py", RAY_TMPDIR=folder, **RAY) as process,
    ):
        assert "50 batches, 25 of them from the cluster: all as in one" in finished(process)


def test_the_guide_shows_lines_of_the_example():
    (block,) = blocks("cluster.md", "python")
    assert lines_that_an_example_lacks("ray_workers.py", block) == []
