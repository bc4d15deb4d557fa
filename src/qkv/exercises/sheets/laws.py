"""Find laws of random vectors and shapes of symbols in a text whose formulas are typed plainly."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..record import Given

_VARIABLE = r"[A-Za-z](?:_[a-z0-9]{1,2})?"
_SAMPLED = re.compile(
    rf"(?P<names>{_VARIABLE}(?:\s*(?:,|and)\s*{_VARIABLE})*)\s*(?:∈\s*(?:ℝ|R)\s*\^?\s*\w+\s*)?"
    r"(?:[,(]?\s*i\.?\s?i\.?\s?d\.?\)?\s*|\\(?:over|stack)\w+\{[^{}]*\}\{?)?\s*(?:∼|~)\}?\s*(?:i\.?i\.?d\.?\s*)?"
    r"(?P<kind>N|𝒩|Normal|Gaussian|U|Unif(?:orm)?|Uniform|Laplace|Bernoulli)\s*(?P<open>[(\[])",
)
_NUMBER = r"-?\d+(?:\.\d+)?(?:/\d+)?"
_TERM = rf"(?:{_NUMBER}|zero|one|unit|(?:mu|sigma|tau|s|m)(?:_\w)?(?:\^2|\s2)?|1/[a-z]\w*)"
_MEAN = re.compile(
    rf"zero[- ]mean|centred|centered|mean(?:s|\s+vector)?(?:\s+(?:of|is|equal to))?\s*(?:=\s*)?(?P<mean>{_TERM})|E\[[^\]]*\]\s*=\s*(?P<expected>{_TERM})",
    re.IGNORECASE,
)
_SPREAD = re.compile(
    rf"(?P<unit>unit[- ](?:variance|standard deviation)|variance one)|variances?(?:\s+(?:of|is|equal to))?\s*(?:=\s*)?(?P<variance>{_TERM})"
    rf"|standard deviations?(?:\s+(?:of|is|equal to))?\s*(?:=\s*)?(?P<deviation>{_TERM})|Var\([^)]*\)\s*=\s*(?P<var>{_TERM})",
    re.IGNORECASE,
)
_UNIFORM = re.compile(
    rf"uniform(?:ly)?(?:\s+distributed|\s+distribution|\s+random)?\s+(?:on|over|in|from|between)\s+(?:the interval\s+)?[\[(]?\s*(?P<low>{_NUMBER}|-?[a-z])\s*(?:,|and|to)\s*(?P<high>{_NUMBER}|[a-z])",
    re.IGNORECASE,
)
_STANDARD = re.compile(r"standard (?:normal|Gaussian)|standard-normal", re.IGNORECASE)
_SIGNS = re.compile(r"Rademacher|random signs|(?:±|\+/-|\\pm)\s*1 (?:with|components|entries)", re.IGNORECASE)
_NORMAL = re.compile(r"\bnormal|gaussian", re.IGNORECASE)
_RANDOM = re.compile(r"independent|i\.?i\.?d|random|distribut|drawn|component|entries|variance", re.IGNORECASE)
_VECTORS = re.compile(
    r"(?:of|vectors?|let|for|and|,|suppose|assume|that)\s*\(?(?P<names>(?:[qkxwuv](?:_[ij])?)(?:\s*(?:,|and)\s*[qkxwuv](?:_[ij])?)*)\b(?!\s*[=(])",
    re.IGNORECASE,
)
_SHAPE = re.compile(
    r"(?P<names>(?:W )?[A-Za-z]\w*(?:\^[A-Z])?(?:\s*(?:,|and)\s*(?:W )?[A-Za-z]\w*(?:\^[A-Z])?)*)\s*∈\s*(?:ℝ|R|IR)\s*\^?\s*[({]?\s*"
    r"(?P<shape>[A-Za-z0-9_]+(?:\s*[×x]\s*[A-Za-z0-9_]+)*|\+)[)}]?"
)


_GREEK = ("mu", "sigma", "tau", "lambda", "beta", "gamma", "alpha", "theta", "Sigma")


def find_laws(text: str) -> Iterator[Given]:
    """The laws that a text states: "q, k ~ N(0, I)", "independent with mean 0 and variance 1"."""
    done: list[tuple[int, int]] = []
    for found in _SAMPLED.finditer(text):
        depth, end = 0, len(text)
        for at in range(found.start("open"), min(len(text), found.start("open") + 80)):
            depth += (text[at] in "([") - (text[at] in ")]")
            if depth == 0:
                end = at
                break
        if end == len(text):
            continue
        inside = _plain(text[found.end() : end])
        kind = "uniform" if found["kind"][0] in "Uu" else "N" if found["kind"][0] in "N𝒩G" else found["kind"].lower()
        shape = next(
            (each.shape for each in find_shapes(text) if each.symbol == found["names"][0] and each.shape), None
        )
        for name in re.findall(_VARIABLE, found["names"].replace("and", ",")):
            yield Given(symbol=name, role="law", law=f"{kind}({inside})", shape=shape, span=(found.start(), end + 1))
        done.append((found.start(), end + 1))
    for sentence in re.finditer(r"(?:i\.\s?i\.\s?d\.|[^.?!\n]|\.(?=\S)|\n(?!\n))+", text):
        if not done and (law := _stated(sentence.group())):
            named = _VECTORS.search(sentence.group())
            names = re.findall(_VARIABLE, named["names"].replace("and", ",")) if named else [""]
            for name in names:
                yield Given(symbol=name, role="law", law=law, span=sentence.span())
            return


def _stated(sentence: str) -> str:
    """The law that a sentence states in words, "" where it states none."""
    if found := _UNIFORM.search(sentence):
        return f"uniform({found['low']}, {found['high']})"
    if _STANDARD.search(sentence):
        return "N(0, I)"
    if _SIGNS.search(sentence):
        return "rademacher"
    mean, spread = _MEAN.search(sentence), _SPREAD.search(sentence)
    if spread is None or not _RANDOM.search(sentence) or "?" in sentence:
        return ""
    if mean is None and spread["unit"] is None:
        return ""
    average = _plain((mean["mean"] or mean["expected"] or "0") if mean else "")
    deviation = _plain(spread["deviation"]) if spread["deviation"] else ""
    variance = "1" if spread["unit"] else _plain(spread["variance"] or spread["var"] or "")
    if _NORMAL.search(sentence) and mean:
        return f"N({average}, {f'{deviation}^2' if deviation else variance})"
    words = f"mean {average} " if mean else ""
    return f"iid {words}" + (f"standard deviation {deviation}" if deviation else f"variance {variance}")


def find_shapes(text: str) -> Iterator[Given]:
    """Symbols that a text declares: "X ∈ ℝ^{n×d}" has the shape (n, d), "q, k ∈ ℝ^d" the shape (d,)."""
    for found in _SHAPE.finditer(text):
        sizes = [] if found["shape"] == "+" else re.split(r"\s*[×x]\s*", found["shape"])
        shape = tuple(int(size) if size.isdigit() else size for size in sizes)
        for name in re.split(r"\s*(?:,|\band\b)\s*", found["names"]):
            # In a PDF a word may be glued to the symbol: "Letx", "matricesWQ".
            name = (
                re.sub(r"^[A-Za-z]?[a-z]{2,}(?=W?[A-Za-z]$)", "", name)
                if name not in _GREEK and "_" not in name
                else name
            )
            name = name if name in _GREEK or len(name) < 4 or "_" in name else name[-1]
            weight = re.fullmatch(r"W[ _^]?([QKVOqkvo])", name)
            yield Given(
                symbol=f"W_{weight[1].upper()}" if weight else name, role="other", shape=shape, span=found.span()
            )


def _plain(text: str) -> str:
    """The parameters of a law as one types them: "σ 2I" of a PDF is sigma^2 I."""
    text = re.sub(r"(?<=[a-z])\s+(?=\d)", "^", " ".join(text.split()))
    text = re.sub(r"(?<=\d)(?=I\b|I_)", " ", text)
    text = re.sub(r"\b(?:I_\w+|I_?\{\w+\}|mathbf I)\b", "I", text)
    words = {"zero": "0", "one": "1", "unit": "1"}
    return ", ".join(words.get(part.strip(), part.strip()) for part in text.split(","))
