"""A state that was damaged is refused, with the field, what it holds and what it must be."""

import pytest
from support import SEQUENTIAL as SAVED

from dataporter.errors import StateFormatError
from dataporter.law.state import Progress, build_state, parse_state


@pytest.mark.parametrize("number", [0, -1, 2**63, 1.5, True])
@pytest.mark.parametrize("field", ["batch_size", "world_size"])
def test_a_number_that_cannot_be_is_refused(field, number):
    state = {**build_state(SAVED, Progress()), field: number}
    with pytest.raises(StateFormatError, match=f"{field}.*an int of at least 1 and below 2..63"):
        parse_state(state)
