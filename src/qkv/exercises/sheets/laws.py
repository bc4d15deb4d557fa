"""Find laws of random vectors and shapes of symbols in a text whose formulas are typed plainly."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...documents.patterns import Table
from ..forms.statement import closing
from ..record import Given

_TABLE = Table("qkv.exercises.sheets", "laws.toml", 0)


def find_laws(text: str) -> Iterator[Given]:
    """The laws that a text states: "q, k ~ N(0, I)", "independent with mean 0 and variance 1"."""
    sampled, stated = False, set[str]()
    shapes = {each.symbol: each.shape for each in find_shapes(text)}
    for found in _TABLE["sampled"].finditer(text):
        end = closing(text[: found.end() + 80], found.start("open"))
        if end > 0:
            sampled = True
            law = f"{_TABLE.data['kinds'].get(found['kind'][0], 'N')}({_typed(text[found.end() : end])})"
            for name in _names(found["names"]):
                yield Given(symbol=name, role="law", law=law, shape=shapes.get(name[0]), span=(found.start(), end + 1))
    for sentence in _TABLE["sentence"].finditer(text):
        if len({_typed(each.group()) for each in _TABLE["spread"].finditer(sentence.group())}) > 1:
            return  # two laws in one sentence: it is not certain which is whose
        if not sampled and not _TABLE["asking"].match(sentence.group()) and (law := _stated(sentence.group())):
            named = _TABLE["vectors"].search(sentence.group())
            names = _names(named["names"]) if named else [""]
            for name in names:
                yield Given(symbol=name, role="law", law=law, shape=shapes.get(name), span=sentence.span())
            if stated & {*names, ""} or "" in names:
                return
            stated |= {*names}  # another sentence may state the law of another vector


def _names(text: str) -> list[str]:
    return _TABLE["variable"].findall(re.sub(r"\band\b", ",", text))


def _stated(sentence: str) -> str:
    """The law that a sentence states in words, "" where it states none."""
    if found := _TABLE["uniform"].search(sentence):
        return f"uniform({found['low']}, {found['high']})"
    if _TABLE["standard"].search(sentence):
        return "N(0, I)"
    if _TABLE["signs"].search(sentence):
        return "rademacher"
    mean, spread = _TABLE["mean"].search(sentence), _TABLE["spread"].search(sentence)
    if spread is None or not _TABLE["random"].search(sentence) or (mean is None and spread["unit"] is None):
        return ""
    average = _typed(mean["mean"] or mean["expected"] or "0") if mean else ""
    deviation = _typed(spread["deviation"] or "")
    variance = "1" if spread["unit"] else _typed(spread["variance"] or spread["var"] or "")
    if _TABLE["normal"].search(sentence) and mean:
        return f"N({average}, {f'{deviation}^2' if deviation else variance})"
    words = f"mean {average} " if mean else ""
    return f"iid {words}" + (f"standard deviation {deviation}" if deviation else f"variance {variance}")


def find_shapes(text: str) -> Iterator[Given]:
    """Symbols that a text declares: "X ∈ ℝ^{n×d}" has the shape (n, d), "q, k ∈ ℝ^d" the shape (d,)."""
    for found in _TABLE["spoken"].finditer(text):
        size = found["shape"] or found["count"]
        for name in re.split(r"\s*(?:,|\band\b)\s*", found["names"]):
            yield Given(symbol=name, role="other", shape=(int(size) if size.isdigit() else size,), span=found.span())
    for found in _TABLE["shape"].finditer(text):
        sizes = [] if found["shape"] == "+" else re.split(r"\s*[×x]\s*", found["shape"])
        shape = tuple(int(size) if size.isdigit() else size for size in sizes)
        for name in re.split(r"\s*(?:,|\band\b)\s*", found["names"]):
            if not _TABLE["greek"].fullmatch(name) and "_" not in name:
                name = _TABLE["glued"].sub("", name)
                name = name if len(name) < 4 else name[-1]
            weight = _TABLE["weight"].fullmatch(name)
            name = f"W_{weight[1].upper()}" if weight else name
            yield Given(symbol=name, role="other", shape=shape, span=found.span())


def _typed(text: str) -> str:
    for pattern, put in _TABLE.data["typed"].items():
        text = re.sub(pattern, put, text)
    return text.strip()
