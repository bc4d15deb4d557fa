"""No text makes a recogniser raise: the bank's own statements cut, doubled, shuffled and broken."""

import random

import pytest

from qkv.problems.catalogue import bank, names, recognise

NOISE = (
    "(",
    ")",
    "[",
    "\\",
    "$$",
    "\\begin{bmatrix}",
    "\\frac{",
    "(i)",
    "(a)",
    "^",
    "_{",
    "|",
    "1e999",
    "²",
    "\x00",
    "(*",
)


def told(problem) -> str:
    blocks = [f"${block.maths.source}$" if hasattr(block, "maths") else "".join(
        f"${word.source}$" if hasattr(word, "source") else getattr(word, "text", str(word)) for word in block.words)
        for block in problem.statement if hasattr(block, "maths") or hasattr(block, "words")]  # fmt: skip
    return "\n".join([*blocks, *(f"({part.name}) {part.ask}" for part in problem.parts)])


@pytest.fixture(scope="module")
def statements():
    return [told(problem) for problem in bank().values()]


def broken(draw: random.Random, text: str, other: str) -> str:
    pieces = text.split(draw.choice((" ", "\n", "$", ".")))
    kind = draw.randrange(5)
    if kind == 0:
        return text[draw.randrange(len(text)) :][: draw.randrange(1, len(text))]
    if kind == 1:
        return text + "\n" + other
    if kind == 2:
        draw.shuffle(pieces)
        return " ".join(pieces)
    if kind == 3:
        place = draw.randrange(len(text))
        return text[:place] + draw.choice(NOISE) * draw.randrange(1, 4) + text[place:]
    return "".join(draw.choice(NOISE) if draw.random() < 0.02 else sign for sign in text)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_nothing_raises_whatever_the_text(statements, seed):
    draw = random.Random(seed)
    for text in statements:
        for match in recognise(broken(draw, text, draw.choice(statements))):
            assert match.problem.name in names()
            assert 0 < match.score <= 1


@pytest.mark.parametrize(
    "text", ["", "(", "(i) x\n(ii) y\n", "\\", "$" * 50, "(i) layer norm depends on\n(a) select all"]
)
def test_small_texts(text):
    assert isinstance(recognise(text), list)
