"""The example of data in files: killed in mid-epoch, resumed with other workers and batches."""

from launching import EXAMPLES, finished, started


def test_a_killed_run_over_files_resumes_and_sees_every_sample_once(tmp_path):
    with started(EXAMPLES / "data_in_files.py", "--folder", tmp_path / "run") as process:
        printed = finished(process)
    assert printed.splitlines() == [
        "Killed after 13 steps, at sample 416.",
        "Resumed at sample 320 of 2000.",
        "2000 of 2000 samples seen, 0 more than once.",
    ]
