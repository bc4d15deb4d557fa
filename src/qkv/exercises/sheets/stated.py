"""Givens that only a way of speaking states: torn letters, shapes in words, numbers without names, rules of thumb."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..findings import Finding
from ..record import Definition, Given, shape_of
from .asked import TABLE, AskedFor, data
from .literals import array_at, read_array

_LETTERS = {"n": "length", "T": "length", "b": "batch", "B": "batch", "d": "width", "d_h": "head_width"}
_SIZE = r"(?:[A-Za-z]\w{0,8}|\d+)"
SHAPED = TABLE["shaped"]
_LITERAL = TABLE["literal"]
_UPSTREAM = TABLE["upstream"]
_LISTED = TABLE["listed"]
_NAMED = {"position": "positions", "query": "quer", "key": "keys?", "value": "values?", "tokens": "tokens|embeddings",
          "scores": "scores|logits"}  # fmt: skip
_NORMS = frozenset({"layer_norm", "rms_norm", "batch_norm", "group_norm"})
RULE = TABLE["rule"]
_RULES = {"parameters": "N", "flops": "C", "training_flops": "C", "cache_bytes": "M", "training_bytes": "M"}


def with_usual_letters(givens: Sequence[Given]) -> list[Given]:
    """Sizes that only a letter names, by what the letter stands for as a rule: n tokens, a batch of b, width d."""
    roles = {given.role for given in givens}
    found: list[Given] = []
    for given in givens:
        role = _LETTERS.get(given.symbol, "") if given.role == "other" else ""
        free = role and role not in roles and not shape_of(given.value)
        found.append(given.model_copy(update={"role": role}) if free else given)
        roles |= {role} if free else set()
    return found


def by_words(givens: Sequence[Given], text: str) -> list[Given]:
    """Givens without a role, by the words of the text that say what their letter stands for."""
    found: list[Given] = []
    for given in givens:
        rows = [
            row
            for row in data()["letter"]
            if given.role in ("other", "vector", "input") and re.fullmatch(row["symbol"], given.symbol)
        ]
        role = next((row["role"] for row in rows if re.search(row["words"], text, re.IGNORECASE | re.DOTALL)), "")
        taken = role and any(each.role == role and each.value is not None for each in givens)
        found.append(given.model_copy(update={"role": role}) if role and not taken else given)
    if len({given.value for given in found if given.role == "dtype"}) == 1:  # one format is that of everything
        found = [given.model_copy(update={"of": ""}) if given.role == "dtype" else given for given in found]
    valued = {given.role for given in found if given.value is not None} - {"other"}
    return [given for given in found if given.value is not None or given.role not in valued or given.shape or given.law]


def upstream(text: str) -> Iterator[Given]:
    """The gradient that arrives from above: "dL/dO = [[1, 0], [0, 1]]"."""
    for match in _UPSTREAM.finditer(text):
        value = array_at(text, match.end())
        if value is not None and isinstance(value[0], list):
            yield Given(
                symbol=f"d{match['of']}",
                role="upstream",
                value=value[0],
                of=match["of"],
                span=(match.start(), value[1]),
            )


def torn_sizes(givens: Sequence[Given], text: str) -> Iterator[Given]:
    """Sizes whose letter has lost the spaces around it, and degrees of kernels that are said in words."""
    kernel = re.search(
        r"\(\s*(?P<first>1\s*\+\s*)?q\s?(?:\^?\{?(?:T|\\top)\}?|·|\\cdot|ᵀ|\.)?\s?k(?:\s*\+\s*(?P<last>\d+|c))?\s*\)\s*"
        r"(?:\^\s*\{?(?P<degree>\d)|(?P<raised>[²³⁴]))",
        text,
    )
    worded = re.search(r"\b(quadratic|cubic)\b", text, re.IGNORECASE)
    if not any(given.role == "degree" for given in givens) and (kernel or worded):
        power = (kernel["degree"] or "".join(str("²³⁴".index(sign) + 2) for sign in kernel["raised"])) if kernel else ""
        degree = int(power) if power else {"quadratic": 2, "cubic": 3}[worded[1].lower()] if worded else 2
        yield Given(role="degree", value=degree)
        if kernel and not any(given.role == "offset" for given in givens):
            yield Given(role="offset", value=1 if kernel["first"] else kernel["last"] or 0)
    for role, pattern in (("batch", r"batch\s?of\s?([bB])\s?sequences"), ("heads", r"\bthe\s?([hH])\s?heads")):
        match = re.search(pattern, text)
        if match and not any(given.role == role for given in givens):
            yield Given(symbol=match[1], role=role)  # pyright: ignore[reportArgumentType]


def shapes(givens: Sequence[Given], text: str) -> Iterator[Given]:
    """Shapes that words say: "Q and K have shape [b, n, d]", "X is an n × d matrix"."""
    known = {given.symbol for given in givens if given.shape}
    unnamed = iter("ABCDEF")
    for match in SHAPED.finditer(text.replace("$", "")):
        written = match["sizes"] or match["matrix"] or match["unnamed"]
        sizes = tuple(
            int(size) if size.isdigit() else size
            for size in re.findall(_SIZE, written)
            if size not in ("x", "by", "times")
        )
        names = re.split(r",? and |, ", match["names"]) if match["names"] else [match["name"] or next(unnamed, "")]
        for name in names:
            if name and name not in known:
                known.add(name)
                yield Given(symbol=name, role="other", shape=sizes)


def unnamed_numbers(asks: AskedFor, givens: Sequence[Given], text: str) -> Iterator[Given]:
    """Numbers that stand in the question without a name: "apply softmax to [2, 1, 0]", "with keys [[1, 0], [0, 1]]"."""
    spans = [given.span for given in givens if given.span is not None]
    free = (match for match in _LITERAL.finditer(text) if not any(a <= match.start("array") < b for a, b in spans))
    found = list(free)
    roles = {given.role for given in givens}
    for match in _LISTED.finditer(text):
        role = next(role for role, word in _NAMED.items() if re.match(word, match["name"], re.IGNORECASE))
        if role not in roles and not any(a <= match.start("list") < b for a, b in spans):
            value = read_array("[" + re.sub(r",?\s+and\s+", ", ", match["list"]) + "]")
            if value is not None:
                yield Given(role=role, value=value, span=match.span())  # pyright: ignore[reportArgumentType]
                roles.add(role)
    for match in found:
        named = (
            role for role, word in _NAMED.items() if match["name"] and re.match(word, match["name"], re.IGNORECASE)
        )
        role = next(named, "")
        if role and role not in roles and (value := read_array(match["array"])) is not None:
            yield Given(role=role, value=value, span=match.span())  # pyright: ignore[reportArgumentType]
            roles.add(role)
    wanted = {each.quantity for each in asks.wanted}
    alone = "scores" if wanted & {"softmax", "log_softmax", "logsumexp"} else "input" if wanted & _NORMS else ""
    alone = alone or ("vector" if "rotary" in wanted else "")
    nameless = [match for match in found if not match["name"]]
    if alone and len(wanted) == 1 and len(nameless) == 1 and not roles & {"scores", "vector", "input", "tokens"}:
        value = read_array(nameless[0]["array"])
        if value is not None:
            yield Given(role=alone, value=value, span=nameless[0].span())  # pyright: ignore[reportArgumentType]


def rules_of_thumb(asks: AskedFor, text: str) -> Iterator[Definition]:
    """A rule of thumb that a question says to use, as the definition of what it asks for."""
    letter = next((_RULES[each.quantity] for each in asks.wanted if each.quantity in _RULES), "")
    if letter and (match := RULE.search(text)):
        yield Definition(text=f"{letter} = {match['formula'].strip()}")


def centred(givens: tuple[Given, ...]) -> tuple[tuple[Given, ...], tuple[Finding, ...]]:
    """Laws that say a variance and no mean, with mean 0, which is an assumption."""
    found = tuple(
        given.model_copy(update={"law": given.law.replace("iid variance", "iid mean 0 variance")})
        if given.law and given.law.startswith("iid variance ")
        else given
        for given in givens
    )
    assumed = (Finding("assumed", {"convention": "the mean of the components", "value": "0"}),)
    return found, assumed if found != givens else ()
