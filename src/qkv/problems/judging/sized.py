"""Answers that are products of matrices with their sizes: "Q = X W_Q, 3 × 3"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...maths import compare
from ..outcome import Outcome, joined
from ..reading.literals import split_outside
from .answers import Value, squeezed, unreadable
from .doubts import held
from .pieces import cleaned, labelled, name_pattern, tidy

_SIDE = r"(?:[0-9]{1,4}|[A-Za-z](?:_?\{?[A-Za-z0-9]{1,6}\}?)?)"
_CROSS = r"\s?(?:\\times|×|x|-?by-?|\*)\s?"
_SIZE = re.compile(
    rf"(?<![\w\\]){{?({_SIDE}){_CROSS}({_SIDE})(?![\w(])"
    rf"|(?:shape|size|dimensions?)\s?(?:of\s?)?(?:is|are|=|:)?\s?[(\[]\s?({_SIDE})\s?,\s?({_SIDE})\s?[)\]]"
)
_TWICE = re.compile(rf"(?<![\w\\]){_SIDE}{_CROSS}{_SIDE}\s?=\s?(?={_SIDE}{_CROSS}{_SIDE})")
_SPACE = re.compile(rf"\\mathbb\s?\{{?\s?R\s?\}}?\s?\^\s?\{{\s?({_SIDE}){_CROSS}({_SIDE})\s?\}}")
_END = re.compile(
    rf"\\in\b|∈|[,;:\n]|\.\s|\s(?:of|with|which|is|are|both|each|has|have|and|where|in|size|shape|dimensions?)\b|[(\[]\s?{_SIDE}(?:{_CROSS}|\s?,)"
    r"|\\q?quad|\\text"
)


@dataclass(frozen=True)
class Products:
    """A product and a size for each name.

    `sizes` gives for each name what its two sides may be called, numbers and letters alike; `numbers` are the symbols
    with their values, by which numbers in place of the product are known for what they are.
    """

    items: Mapping[str, Value] = field(hash=False)
    sizes: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(hash=False)
    numbers: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        return "; ".join(
            f"{name} = {value.text}, {self.sizes[name][0][0]} × {self.sizes[name][1][0]}"
            for name, value in self.items.items()
        )

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        products, sizes = self.read(answer)
        if not products and not sizes:
            wanted = f"{next(iter(self.items))} = …, rows × columns"
            return Outcome("unread", f"no product and no size could be found; write {wanted}")
        return joined({name: self._judged(name, products.get(name), sizes.get(name)) for name in self.items})

    def _judged(self, name: str, product: str | None, size: tuple[str, str] | None) -> Outcome:
        said = Outcome("unread", "the product is missing") if product is None else self._product(name, product)
        if said.kind in ("wrong", "conditional"):
            return said
        if size is not None and not all(_side(a) in map(_side, b) for a, b in zip(size, self.sizes[name], strict=True)):
            right = " × ".join(sides[0] for sides in self.sizes[name])
            return Outcome("wrong", f"the size is not {size[0]} × {size[1]} but {right}")
        if said.kind == "right" and size is None:
            return Outcome("incomplete", "the product is right, its size is missing")
        if said.kind == "unread" and size is not None:
            return Outcome("incomplete", f"the size is right, but {said.reason}")
        return said

    def _product(self, name: str, product: str) -> Outcome:
        outcome = self.items[name].check(product)
        if outcome.kind != "right" and self.numbers and compare(name, product, self.numbers):
            return Outcome("incomplete", "the numbers are right; write the product of matrices that gives them")
        return outcome

    def same(self, wrong: str, answer: str) -> bool:
        (products, sizes), (given, measured) = self.read(wrong), self.read(answer)
        told = bool(products) and all(
            name in given and (squeezed(given[name]) == squeezed(text) or self.items[name].same(text, given[name]))
            for name, text in products.items()
        )
        return told and all(measured.get(name, size) == size for name, size in sizes.items())

    def read(self, answer: str) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        """Name to product, and name to size."""
        answer = tidy(held(answer))
        products: dict[str, str] = {}
        for name, texts in labelled(answer, list(self.items), {}).items():
            # A chain may begin with the stacked rows and end with the product.
            chains = [split_outside(text, "=") for text in texts]
            members = [member for chain in chains for member in dict.fromkeys((chain[0], chain[-1]))]
            cut = [text[: end.start()] if (end := _END.search(text)) else text for text in members]
            kept = [text for text in map(cleaned, cut) if text and not re.fullmatch(_SIZE, text)]
            if kept:
                products[name] = next((text for text in kept if self.items[name].check(text)), kept[0])
        for name, value in self.items.items():
            if name not in products and re.search(_product_pattern(value.gold), answer):
                products[name] = value.gold  # "X W_Q is 3 × 3": the product is told without its name
        # Sizes after ℝ are meant; others may be a label beneath a factor, and count where nothing else is told.
        sizes = self._sizes(answer, _SPACE)
        others = {name: size for name, size in self._sizes(answer, _SIZE).items() if not sizes or name in products}
        return products, others | sizes

    def _sizes(self, answer: str, pattern: re.Pattern[str]) -> dict[str, tuple[str, str]]:
        """Sizes belong to the names before them: "Q and K are 3×3, V is 3×2", or one after the other."""
        marks: list[tuple[int, str, tuple[str, str] | None]] = [
            (found.start(), name, None)
            for name in self.items
            for found in re.finditer(r"(?<![_{])" + name_pattern(name), answer)
        ]
        if not marks:
            marks = [
                (found.end(), name, None)
                for name, value in self.items.items()
                for found in re.finditer(_product_pattern(value.gold), answer)
            ]
        # Letters and numbers for one size: "N × D_k = 3 × 3".
        answer = _TWICE.sub(lambda found: " " * len(found[0]), answer)
        for found in pattern.finditer(answer):
            first, second = filter(None, found.groups())
            marks.append((found.start(), "", (first, second)))
        marks += [(found.start(), "", None) for found in re.finditer(r"[;\n]|\.\s", answer)]
        sizes: dict[str, tuple[str, str]] = {}
        names: list[str] = []
        before: list[str] = []
        run: list[tuple[str, str]] = []
        for _, name, size in [*sorted(marks, key=lambda mark: mark[0]), (len(answer), "end", None)]:
            if size is not None:
                run.append(size)
                continue
            if run:
                owners = list(dict.fromkeys(names or before)) or list(self.items)
                pairs = zip(owners, run, strict=False) if len(run) == len(owners) else ((n, run[0]) for n in owners)
                for owner, one in pairs:
                    sizes.setdefault(owner, one)
                names, before, run = [], [], []
            if name:
                names.append(name)
            elif names:
                names, before = [], names  # a clause ends
        return sizes


def _product_pattern(gold: str) -> str:
    """A product of named matrices as people write it."""
    bold = r"(?:\\(?:mathbf|boldsymbol|bm)\s*\{?\s*)?"
    factors = []
    for factor in gold.split():
        letter, _, below = factor.partition("_")
        below = below.strip("{}")
        turned = below.endswith("^T") or letter.endswith("^T")
        mark = r"\s?(?:\^\s?\{?\s?(?:T|\\top)\s?\}?|ᵀ)" if turned else r"(?!\s?[\^ᵀ])"
        script = rf"_?\{{?{re.escape(below.removesuffix('^T'))}\}}?" if below else ""
        factors.append(rf"{bold}{re.escape(letter.removesuffix('^T'))}\}}?{script}{mark}")
    return r"(?<![A-Za-z\\])" + r"\s?(?:\\cdot|[·*])?\s?".join(factors) + r"(?![A-Za-z])"


def _side(text: str) -> str:
    """A side as it is compared: D_k, d_K and D_{k} are one."""
    return re.sub(r"[_{}\s]", "", text).lower()
