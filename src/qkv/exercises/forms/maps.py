"""Feature maps: two lists of features are the same map where their inner products are equal.

Features may be listed with dots, "q_1^2, \\dots, q_D^2": the list is written out for a small width.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

from ...maths import compare
from ..findings import Finding
from ..outcome import Outcome, right, unread, wrong
from ..solving import Answer
from .statement import PATTERNS, split_outside, stated
from .values import Context, Judge

_TRANSPOSED = r"(?P<turned>\s*(?:\^\s*(?:\{\s*(?:T|\\top|\\intercal)\s*\}|T|\\top|\\intercal)|ᵀ|⊤))?"
_FEATURES = re.compile(
    rf"(?P<name>(?:\\(?:var)?phi|[φϕ])\s*\(\s*[QK]\s*(?:_\s*(?:\{{\s*[ij]\s*\}}|[ij])|[ᵢⱼ])\s*\)){_TRANSPOSED}"
)
_VALUES = re.compile(rf"(?P<name>(?<![A-Za-z])V\s*(?:_\s*(?:\{{\s*j\s*\}}|j)|ⱼ)){_TRANSPOSED}")
_ROW = re.compile(r"(?<=_)\{\s*([ij])\s*,?\s*(?:\\cdot|·|:)\s*\}|(?<=[ᵢⱼ])·")  # "row i" as an index
_BLOCK = (
    r"(?P<factor>(?:\\sqrt\s*\{?\d+\}?|[\d./\s])*)(?:(?P<pairs>NAME\s*(?:\\otimes|⊗)\s*NAME"
    r"|(?:\\(?:operatorname|text|mathrm)\s*\{vec\}|vec)\s*\(\s*NAME\s*NAME\s*(?:\^\s*\{?\s*(?:T|\\top)\s*\}?|ᵀ|⊤)\s*\))|NAME)"
)
SIZE = 3  # the width for which a list with dots is written out


def judge_map(answer: Answer, text: str, context: Context) -> Outcome:
    """Whether a list of features has the inner product of the right ones, in any order."""
    formula = stated(text)
    if isinstance(formula, Finding):
        return Outcome("unread", (formula,))
    vectors = [name for name, kind in answer.symbols.items() if kind.startswith("vector")][:2]
    width = next((name for name, kind in answer.symbols.items() if kind == "natural"), "")
    listed = _listed(str(formula).strip(), vectors)
    products = [_product(each, vectors, width) for each in (answer.text, listed)]
    running = re.search(
        r"_\s*\{?\s*(?!" + (re.escape(width) or "$") + r"\b)[a-z](?![A-Za-z])", listed
    )  # "x_i^2 for all i"
    small = width and not any(
        PATTERNS["dots"].fullmatch(each.strip()) or (vectors and _block(each, vectors[0], vectors[-1]))
        for each in [listed, *split_outside(listed[1:-1], ",")]
    )
    if None in products or len(vectors) != 2 or running or (small and "\\dots" in answer.text):
        return unread("unreadable", given=text.strip())
    size = SIZE if width else int(answer.symbols[vectors[0]].strip("vector[]"))
    symbols = dict.fromkeys(vectors, f"vector[{size}]")
    kind = compare(str(products[0]), str(products[1]), symbols).kind
    if kind == "different":
        return wrong("different", given=text.strip(), right=answer.text)
    return right() if kind == "equal" else unread("unreadable", given=text.strip())


def _listed(formula: str, vectors: list[str]) -> str:
    """The features of an equation "phi(x) = [...]" as a list, by the name of the question's vector."""
    text = re.sub(r"\\left(?![A-Za-z])|\\right(?![A-Za-z])|\\[,;!]|[$]", "", formula)
    text = re.sub(r"\\sqrt\s*(\d)", r"\\sqrt{\1} ", text)  # \sqrt2x is the root of 2, times x
    named = re.match(r"\s*(?:\\(?:var)?phi|[φϕ])\s*\(\s*([a-z])\s*\)\s*=\s*", text)
    text = text[named.end() :] if named else re.sub(r"^.*?=\s*(?=[(\[\\])", "", text)
    if column := re.fullmatch(r"\s*\\begin\{[bp]matrix\}(.*)\\end\{[bp]matrix\}(.*)", text, re.DOTALL):
        rows = re.sub(r",?\s*\\\\\s*(?:\[[^\]]*\])?", ", ", column[1].strip()).replace(r"\vdots", r"\dots")
        text = f"[{rows}]{column[2]}"
    other = named[1] if named and vectors and named[1] not in vectors else ""
    return re.sub(rf"(?<![A-Za-z\\]){other}(?=\s*_|[₀-₉])", vectors[0], text).strip() if other else text.strip()


def judge_attention(answer: Answer, text: str, context: Context, judge: Judge) -> Outcome:
    """Attention with a feature map, of vectors as columns; right also where features, values or both are rows."""
    text = re.sub(
        r"V\s*_\s*(?:\{\s*i\s*\}|i)\s*(?:'|′|\^\s*(?:\{\s*\\prime\s*\}|\\prime))", "V'_i", _ROW.sub(r"\1", text)
    )
    outcome = judge(answer, text, context)
    row = replace(answer, text=f"({answer.text})^T", value=None, also=())
    values = _VALUES.sub(_turned, text)
    for each in () if outcome else (text, values, _FEATURES.sub(_turned, values)):
        if judge(row, each, context):
            return right()
    return outcome


def _turned(found: re.Match[str]) -> str:
    return found["name"] if found["turned"] else f"{found['name']}^T"


def _product(text: str, vectors: list[str], width: str) -> str | None:
    """The inner product of the features of two vectors, as a sum."""
    if not vectors:
        return None
    if alone := _block(text, vectors[0], vectors[-1]):
        return alone
    listed = re.fullmatch(r"[(\[](.*)[)\]](?:\^\{?(?:T|\\top)\}?)?", text.strip(), re.DOTALL)
    features = listed and written_out(split_outside(listed[1], ",;"), vectors[0], width)
    if not features:
        return None
    terms: list[str] = []
    for each in features:
        other = re.sub(rf"(?<![A-Za-z\\]){vectors[0]}(?=_)", vectors[-1], each)
        terms.append(_block(each, vectors[0], vectors[-1]) or f"({each}) ({other})")
    return " + ".join(terms)


def _block(feature: str, name: str, other: str) -> str | None:
    r"""The inner product of features that are a whole vector, or all products of two of its components.

    >>> _block(r"\sqrt{2} q", "q", "k"), _block("vec(q q^T)", "q", "k"), _block("q_1", "q", "k")
    ('(\\sqrt{2})^2 (q^T k)', '(1)^2 (q^T k)^2', None)
    """
    found = re.fullmatch(_BLOCK.replace("NAME", re.escape(name)), feature.strip())
    if found is None:
        return None
    return f"({found['factor'].strip() or '1'})^2 ({name}^T {other}){'^2' if found['pairs'] else ''}"


def written_out(features: list[str], name: str, width: str) -> list[str] | None:
    """Features with dots written out: one index runs over all components, two over all pairs.

    >>> written_out(["q_1", r"\\dots", "q_D", "1"], "q", "D")
    ['q_1', 'q_2', 'q_3', '1']
    """
    found: list[str] = []
    indices = re.compile(rf"{name}_(?:\{{([^{{}}]*)\}}|(\w))")
    for place, feature in enumerate(features):
        if not PATTERNS["dots"].fullmatch(feature.strip()):
            found.append(feature.strip())
            continue
        if not found or place + 1 >= len(features):
            return None
        first = found.pop()
        count = len(dict.fromkeys(indices.findall(first)))
        alike = [re.sub(r"\s+", "", indices.sub("#", each)) for each in (first, features[place + 1])]
        if count not in (1, 2) or not width or alike[0] != alike[1]:
            return None  # what is left out between two features of different kinds is not known
        found += [_at(first, indices, chosen) for chosen in combinations(range(1, SIZE + 1), count)]
        features[place + 1] = ""
    return [each for each in found if each]


def _at(feature: str, indices: re.Pattern[str], chosen: tuple[int, ...]) -> str:
    order = {index: place for place, index in enumerate(dict.fromkeys(a or b for a, b in indices.findall(feature)))}
    return indices.sub(lambda found: f"{found[0].split('_')[0]}_{chosen[order[found[1] or found[2]]]}", feature)
