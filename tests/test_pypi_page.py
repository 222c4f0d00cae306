"""The page on PyPI, as the built wheel brings it: it has no folder that links could lead into."""

import email.message
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def metadata(tmp_path_factory) -> email.message.Message:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(files.read(name))


def targets(text: str) -> list[tuple[str, str]]:
    """The links and pictures of a text: "!" for a picture, and where it leads."""
    marks = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", text)
    return marks + [
        ("!", target) for target in re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", text)
    ]


def test_links_and_pictures_of_the_page_lead_to_files_of_this_release(metadata):
    text = metadata.get_payload(decode=True).decode()
    assert metadata["Description-Content-Type"] == "text/markdown"
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    files = addresses["Repository"] + f"/blob/v{metadata['Version']}/"
    host = "https://raw.githubusercontent.com"
    pictures = files.replace("https://github.com", host).replace("/blob/", "/")
    of_readme = targets((ROOT / "README.md").read_text())
    assert {mark for mark, _ in of_readme} == {"", "!"}
    found = targets(text)
    assert len(found) == len(of_readme)
    for mark, target in found:
        start = pictures if mark else files
        assert target.startswith(start), target
        path, _, heading = target.removeprefix(start).partition("#")
        assert (ROOT / path).exists(), target
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
        assert not heading or heading in {name.lower().replace(" ", "-") for name in headings}


def test_the_page_says_what_the_readme_says(metadata):
    text = metadata.get_payload(decode=True).decode()
    bare = re.compile(r"\]\([^)]*\)")
    assert bare.sub("]", text).strip() == bare.sub("]", (ROOT / "README.md").read_text()).strip()
