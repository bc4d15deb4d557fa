"""Random texts: each is parsed into a tree in which every node has a shape, or refused with a reason and position.

`make test` reads the same few thousand texts every time; `python -m campaigns mathematics` reads a million new ones.
"""

import random
import sys

import pytest

# campaigns/ is not part of the package: it is next to the package.
from campaigns.maths_texts import KINDS, SYMBOLS, VALID, check, grown, mutated
from qkv.errors import Unreadable
from qkv.maths.parsing.parse import parse
from qkv.maths.printing import latex, plain


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_text_is_read_or_refused(kind) -> None:
    draw = random.Random(kind.__name__)
    for _ in range(200):
        text = kind(draw)
        try:
            check(text)
        except Exception as failed:
            raise AssertionError(f"parse({text!r}, SYMBOLS) went wrong: {failed!r}") from failed


@pytest.mark.slow
def test_what_was_read_is_written_so_that_it_reads_the_same() -> None:
    draw = random.Random("written")
    shapes = ("", "d", "n", "dd", "nd", "nn")
    made = [grown(draw, draw.choice(shapes), draw.randint(1, 4)) for _ in range(200)]
    for text in [*VALID, *made, *(mutated(draw) for _ in range(200))]:
        node = check(text)
        assert node is not None or text not in made, text
        for write in (latex, plain) if node is not None else ():
            assert parse(write(node), SYMBOLS, expected=node.shape) == node, (text, write(node))


def test_a_million_characters_are_refused_at_once() -> None:
    with pytest.raises(Unreadable, match="1,000,000 characters"):
        parse("(" * 1_000_000, SYMBOLS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_reading_takes_a_bounded_number_of_steps(kind) -> None:
    """Counted in calls of Python functions, which do not depend on the machine."""
    draw = random.Random(f"steps {kind.__name__}")
    texts = [kind(draw) for _ in range(15)] + [(kind(draw) * 400)[:2000] for _ in range(4)]
    parse("x", SYMBOLS)
    for text in texts:
        calls = 0

        def count(frame, event, argument) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            check(text)
        finally:
            sys.setprofile(None)
        assert calls < 3_000_000, text
