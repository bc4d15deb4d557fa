"""What texts settle is read in a time that does not grow out of hand with their words."""

import time

import pytest

from qkv.exercises.sheets.conventions import settled


@pytest.mark.parametrize("word", ["æ", "q", "3", "a ", "æ^"])
def test_a_long_text_without_conventions_is_read_at_once(word):
    started = time.process_time()
    assert settled(word * 1009).conventions == {}
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Round the result correct to three decimal places.", "Round the result correct to three decimal"),
        ("It is rounded to the nearest, with 3 decimals", "with 3 decimal"),
    ],
)
def test_words_before_decimals_are_among_the_spans(text, words):
    found = settled(text)
    assert found.conventions == {"digits": 6}
    assert [text[start:end] for start, end in found.spans] == [words]
