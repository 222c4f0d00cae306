"""Names of tokenizers: equal for copies, different for others."""

import functools
import pickle

import pytest
from small_tokenizer import small_tokenizer

from dataporter.errors import OptionError
from dataporter.views.code_names import code_name


class FirstLetters:
    """Tokenises the first letters of a text."""

    def __init__(self, count):
        self.count = count

    def __call__(self, text):
        return self.ids(text)

    def ids(self, text):
        return list(text[: self.count].encode())


def called(tokenizer):
    """Give it to a `partial`, as tokenizers with options are passed."""
    return functools.partial(tokenizer, add_special_tokens=False)


def test_objects_are_named_by_their_contents():
    assert code_name(FirstLetters(3)) == code_name(FirstLetters(3))
    assert code_name(FirstLetters(3)) != code_name(FirstLetters(4))
    assert code_name(FirstLetters(3).ids) != code_name(FirstLetters(4).ids)


@pytest.mark.parametrize("given", [lambda each: each, called, lambda each: each.backend_tokenizer])
def test_tokenizers_of_hugging_face_are_named_by_their_words(given):
    tokenizer = small_tokenizer()
    copy = pickle.loads(pickle.dumps(tokenizer))
    before = code_name(given(tokenizer))
    assert code_name(given(copy)) == before
    copy.add_tokens("elastic")
    assert code_name(given(copy)) != before


def test_what_cannot_be_told_from_others_needs_a_name():
    tokenizer = FirstLetters(3)
    tokenizer.cache = (each for each in "abc")
    with pytest.raises(OptionError, match=r"FirstLetters cannot be told from others .* Pass name="):
        code_name(tokenizer)
