"""Refuse to release a version that the repository does not agree on.

The tag, the package's version, the changelog, the golden states and the addresses in
pyproject.toml have to say the same. `python .github/release_check.py v1.2.3`
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """List what keeps a tag from being released."""
    package = (root / "src/dataporter/__init__.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.*)"$', package, re.MULTILINE)[0]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    found = []
    if tag != f"v{version}":
        found.append(f"The tag is {tag}, the package has version {version}. Tag it v{version}.")
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE
    ):
        found.append(f"CHANGELOG.md has no heading '## [{version}] - YYYY-MM-DD'. Add the date.")
    if not (root / "tests" / "golden" / version / "batches.json").exists():
        found.append(f"tests/golden/{version} is missing. Run python tests/golden/make.py.")
    if "OWNER" in re.sub(r"^#.*$", "", project, flags=re.MULTILINE):
        found.append(
            "pyproject.toml says OWNER in project.urls or the README's addresses on PyPI. "
            "Put in who hosts the repository."
        )
    return found


if __name__ == "__main__":
    said = problems(sys.argv[1])
    sys.stderr.write("".join(f"{one}\n" for one in said))
    sys.exit(1 if said else 0)
