"""Find laws of random vectors and shapes of symbols in a text whose formulas are typed plainly."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from ..record import Given
from .literals import closing


@cache
def _pattern(name: str) -> re.Pattern[str]:
    data = tomllib.loads(files("qkv.exercises.sheets").joinpath("laws.toml").read_text(encoding="utf-8"))
    pattern = data["patterns"][name] if name in data["patterns"] else data["parts"][name]
    for part, put in data["parts"].items():
        pattern = pattern.replace(f"{{{part}}}", put)
    return re.compile(pattern)


def find_laws(text: str) -> Iterator[Given]:
    """The laws that a text states: "q, k ~ N(0, I)", "independent with mean 0 and variance 1"."""
    sampled = False
    for found in _pattern("sampled").finditer(text):
        end = closing(text[: found.end() + 80], found.start("open"))
        if end > 0:
            sampled = True
            kind = {"U": "uniform", "L": "laplace", "B": "bernoulli"}.get(found["kind"][0], "N")
            shapes = {each.symbol: each.shape for each in find_shapes(text)}
            for name in _names(found["names"]):
                yield Given(symbol=name, role="law", law=f"{kind}({_plain(text[found.end() : end])})",
                            shape=shapes.get(name[0]), span=(found.start(), end + 1))  # fmt: skip
    for sentence in re.finditer(r"(?:i\.\s?i\.\s?d\.|[^.?!\n]|\.(?=\S)|\n(?!\n))+", text):
        if not sampled and (law := _stated(sentence.group())):
            named = _pattern("vectors").search(sentence.group())
            for name in _names(named["names"]) if named else [""]:
                yield Given(symbol=name, role="law", law=law, span=sentence.span())
            return


def _names(text: str) -> list[str]:
    return _pattern("variable").findall(re.sub(r"\band\b", ",", text))


def _stated(sentence: str) -> str:
    """The law that a sentence states in words, "" where it states none."""
    if found := _pattern("uniform").search(sentence):
        return f"uniform({found['low']}, {found['high']})"
    if _pattern("standard").search(sentence):
        return "N(0, I)"
    if _pattern("signs").search(sentence):
        return "rademacher"
    mean, spread = _pattern("mean").search(sentence), _pattern("spread").search(sentence)
    if spread is None or not _pattern("random").search(sentence) or (mean is None and spread["unit"] is None):
        return ""
    average = _plain(mean["mean"] or mean["expected"] or "0") if mean else ""
    deviation = _plain(spread["deviation"] or "")
    variance = "1" if spread["unit"] else _plain(spread["variance"] or spread["var"] or "")
    if _pattern("normal").search(sentence) and mean:
        return f"N({average}, {f'{deviation}^2' if deviation else variance})"
    words = f"mean {average} " if mean else ""
    return f"iid {words}" + (f"standard deviation {deviation}" if deviation else f"variance {variance}")


def find_shapes(text: str) -> Iterator[Given]:
    """Symbols that a text declares: "X ∈ ℝ^{n×d}" has the shape (n, d), "q, k ∈ ℝ^d" the shape (d,)."""
    for found in _pattern("shape").finditer(text):
        sizes = [] if found["shape"] == "+" else re.split(r"\s*[×x]\s*", found["shape"])
        shape = tuple(int(size) if size.isdigit() else size for size in sizes)
        for name in re.split(r"\s*(?:,|\band\b)\s*", found["names"]):
            if not _pattern("greek").fullmatch(name) and "_" not in name:
                # In a PDF a word may be glued to the symbol: "Letx", "matricesWQ".
                name = re.sub(r"^[A-Za-z]?[a-z]{2,}(?=W?[A-Za-z]$)", "", name)
                name = name if len(name) < 4 else name[-1]
            weight = re.fullmatch(r"W[ _^]?([QKVOqkvo])", name)
            name = f"W_{weight[1].upper()}" if weight else name
            yield Given(symbol=name, role="other", shape=shape, span=found.span())


def _plain(text: str) -> str:
    """The parameters of a law as one types them: "σ 2I" of a PDF is sigma^2 I."""
    text = re.sub(r"(?<=[a-z])\s+(?=\d)", "^", " ".join(text.split()))
    text = re.sub(r"(?<=\d)(?=I\b|I_)", " ", text)
    text = re.sub(r"\bI_\w+", "I", text)
    words = {"zero": "0", "one": "1", "unit": "1"}
    return ", ".join(words.get(part.strip(), part.strip()) for part in text.split(","))
