"""Puts the fixtures of other packages' formats within reach."""

import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures"
sys.path.append(str(FIXTURES))


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return FIXTURES
