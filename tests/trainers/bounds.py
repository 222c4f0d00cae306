"""The versions that are asked for and tried: bounds of extras in pyproject.toml, constraints."""

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
CONSTRAINTS = PROJECT.with_name("constraints.txt")


def least(extra: str, distribution: str) -> str:
    """The oldest version of a distribution that an extra installs."""
    [declared] = re.findall(rf"^{extra} = \[(.*)\]$", PROJECT.read_text(), re.MULTILINE)
    [version] = re.findall(rf'"{distribution}(?:\[.*?\])?>=([\d.]+)"', declared)
    return version


def newest(distribution: str) -> str:
    """The version of a distribution that the suite is run with."""
    [version] = re.findall(rf"^{distribution}==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    return version
