"""The lower version bounds of extras in pyproject.toml."""

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def least(extra: str, distribution: str) -> str:
    """The oldest version of a distribution that an extra installs."""
    [declared] = re.findall(rf"^{extra} = \[(.*)\]$", PROJECT.read_text(), re.MULTILINE)
    [version] = re.findall(rf'"{distribution}(?:\[.*?\])?>=([\d.]+)"', declared)
    return version
