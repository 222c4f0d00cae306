"""The script that changes code and lists the changes that no test notices."""

import json

import mutants
import pytest
from mutations import changes

SUMS = '''
"""Two functions, of which one is tested."""

def add(a: int, b: int) -> int:
    return a + b

def subtract(a: int, b: int) -> int:
    return a - b
'''
# The child shows that processes started by exec see the change too.
TEST_SUMS = """
import subprocess, sys

def test_a_child_adds():
    code = "from dataporter.sums.sums import add; print(add(2, 3))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout == "5\\n"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose package hides the installed one of the same name."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # saves a second a run
    files = {
        "pyproject.toml": "",
        "src/dataporter/__init__.py": "",
        "src/dataporter/sums/__init__.py": "",
        "src/dataporter/sums/sums.py": SUMS,
        "tests/sums/test_sums.py": TEST_SUMS,
    }
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shown(tmp_path, code):
    """The changes to some code, as they would be shown."""
    (tmp_path / "x.py").write_text(code)
    return [each.shown[1] for each in changes(tmp_path / "x.py", tmp_path) if each.is_real()]


def test_changes_that_no_test_notices_are_listed(project, tmp_path, capsys):
    before, report = contents(project), tmp_path / "report.json"
    mutants.main(["--root", str(project), "--rooms", "sums", "--jobs", "2", "--out", str(report)])
    rows = json.loads(report.read_text())["changes"]
    noticed = {(row["before"], row["after"]): row["noticed_by"] for row in rows}
    by = "tests/sums/test_sums.py::test_a_child_adds"
    assert noticed == {
        ("return a + b", "return a - b"): by,
        ("return a + b", "return None"): by,
        ("return a - b", "return a + b"): None,
        ("return a - b", "return None"): None,
    }
    said = capsys.readouterr().out
    assert "sums             4        2     50%" in said
    assert (
        "src/dataporter/sums/sums.py:8  return a - b -> return a + b"
        in said.split("Not noticed")[1]
    )
    assert contents(project) == before


def test_tests_that_fail_without_a_change_stop_the_script(project):
    (project / "tests/sums/test_more.py").write_text("def test_it():\n    assert False\n")
    with pytest.raises(SystemExit, match=r"test_more\.py fails without a change"):
        mutants.main(["--root", str(project), "--rooms", "sums", "-n", "1"])


def test_every_kind_of_statement_is_changed(tmp_path):
    code = (
        "if a < 1 and not (b):\n    go(\n        c\n    )\nd = (a) * 2 if (e := True) else d is f\n"
    )
    assert shown(tmp_path, code) == [
        "if not (a < 1 and not (b)):",
        "if a < 1 or not (b):",
        "if a <= 1 and not (b):",
        "if a < 2 and not (b):",
        "if a < 1 and (b):",
        "pass",
        "d = (a) * 2 if (not (e := True)) else d is f",
        "d = (a) * 2 if (e := False) else d is f",
        "d = (a) // 2 if (e := True) else d is f",
        "d = (a) * 3 if (e := True) else d is f",
        "d = (a) * 2 if (e := True) else d is not f",
    ]


def test_what_is_for_readers_is_left_alone(tmp_path):
    code = '''"""Number 1."""
@dataclass(frozen=True)
class A:
    x: Literal[1]
    def __repr__(self):
        return 1
    def check(self, y: Literal[2]) -> Literal[3]:
        msg = "a" + "b"
        raise ValueError(f"{y + 1}", 1)
if TYPE_CHECKING:
    z = 1
'''
    assert shown(tmp_path, code) == []
