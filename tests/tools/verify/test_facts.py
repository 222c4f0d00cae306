"""The user's loader, made with other options and described."""

import planted
import pytest

from dataporter.errors import FactoryError, OptionTypeError
from dataporter.stateful_dataloader import StatefulDataLoader
from dataporter.tools.verify.runs import make_verifiable


def test_a_loader_is_made_with_other_options_whatever_its_class():
    def make():
        return StatefulDataLoader([1, 2, 3], 2, num_workers=2, persistent_workers=True)

    loader, facts = make_verifiable(make, {"num_workers": 0, "batch_size": 3})
    assert [batch.tolist() for batch in loader] == [[1, 2, 3]]
    assert (facts.loader, facts.num_workers, facts.batch_size) == ("StatefulDataLoader", 0, 3)
    assert facts.shares_nothing
    assert make().num_workers == 2


def test_a_misspelled_argument_is_explained_as_by_the_loader_itself():
    with pytest.raises(OptionTypeError, match=r"shufle.*Did you mean 'shuffle'"):
        make_verifiable(lambda: StatefulDataLoader([1, 2], shufle=True), {"num_workers": 0})


def test_a_loader_that_was_made_before_is_refused():
    kept = planted.clean("tensors")
    with pytest.raises(FactoryError, match="had not made"):
        make_verifiable(lambda: kept, {})
