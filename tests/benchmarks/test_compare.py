"""The table of changes between two stored runs."""

import compare
from measure import AT_ONCE, BARE, Row, Run, Turns


def run(ours, *, peak=100.0, warnings=(), more=()):
    """A run whose loaders took so many seconds in each turn."""
    turns = {
        BARE: Turns(amount=100, seconds=(1.0,) * 5),
        AT_ONCE: Turns(amount=200, seconds=(1.25,) * 5),
        "torch": Turns(amount=100, seconds=(2.0,) * 5, peak_mb=300.0),
        "dataporter": Turns(
            amount=100, batches=10, seconds=ours, consumer=(0.001,) * 5, peak_mb=peak
        ),
    }
    row = Row(work="tokens", workers=2, unit="samples/s", turns=turns, warnings=warnings)
    machine = {"processor": "some", "cores": 4}
    return Run(versions={"torch": "2"}, machine=machine, rows=[row, *more])


def lines(text, title):
    """Cells of the first row of a table."""
    rows = text.split(f"## {title}\n\n")[1].splitlines()
    return [cell.strip() for cell in rows[2].split("|")[1:-1]]


def test_a_change_is_marked_if_it_is_outside_the_noise_of_both_runs(tmp_path):
    slow, fast = (0.98, 0.99, 1.0, 1.01, 1.02), (0.78, 0.79, 0.8, 0.81, 0.82)
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, ours in zip(paths, (slow, fast), strict=True):
        run(ours).write(path)
    found = compare.compared(*map(Run.read, paths))
    assert lines(found, "Speed as a ratio to torch") == [
        *("tokens", "2", "2.00x (1.98-2.02)", "2.50x (2.47-2.53)", "+25.0%", "BETTER")
    ]
    assert lines(found, "Share of the limit")[2:5] == [
        *("0.500 (0.495-0.505)", "0.625 (0.617-0.633)", "+25.0%")
    ]
    assert lines(found, "Share of bare loops at once")[3] == "0.781 (0.772-0.791)"
    assert lines(found, "Consumer µs a batch")[2] == "100.0 (100.0-100.0)"
    assert lines(found, "Peak MB")[-1] == "within noise"
    back = compare.compared(*map(Run.read, reversed(paths)))
    assert lines(back, "Share of the limit")[-1] == "WORSE"


def test_a_change_within_the_noise_and_a_busy_machine_are_named():
    old, new = run((0.9, 1.0, 1.1, 1.2, 1.3)), run((0.8, 1.0, 1.0, 1.1, 1.2), warnings=("busy",))
    found = compare.compared(old, new)
    assert lines(found, "Share of the limit")[-1] == "within noise, too busy to trust"


def test_less_memory_is_better_and_rows_of_one_run_are_counted():
    other = Row(work="images", workers=2, unit="samples/s", turns={})
    found = compare.compared(run((1.0,) * 5), run((1.0,) * 5, peak=50.0, more=[other]))
    assert lines(found, "Peak MB")[2:] == ["100 (100-100)", "50 (50-50)", "-50.0%", "BETTER"]
    assert found.endswith("Rows that only one of the runs has: 1.")


def test_the_command_prints_the_changes_of_chosen_rows(tmp_path, capsys):
    run((1.0,) * 5).write(tmp_path / "run.json")
    path = str(tmp_path / "run.json")
    compare.main([path, path, "--rows", "tok"])
    assert "| tokens | 2 " in capsys.readouterr().out
    compare.main([path, path, "--rows", "images"])
    assert "tokens" not in capsys.readouterr().out


def test_rows_without_a_limit_are_compared_by_their_own_time():
    def started(seconds):
        turns = {who: Turns(seconds=(seconds,) * 3) for who in ("torch", "dataporter")}
        return run((1.0,) * 5, more=[Row(work="start", workers=2, unit="ms", turns=turns)])

    found = compare.compared(started(0.5), started(0.25))
    shown = lines(found, "Own time, in ms")
    assert shown == [
        "start",
        "2",
        "500.00 (500.00-500.00)",
        "250.00 (250.00-250.00)",
        "-50.0%",
        "BETTER",
    ]
    assert "Own speed" not in found
