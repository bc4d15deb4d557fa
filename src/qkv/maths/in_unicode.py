"""The tree in Unicode text."""

from __future__ import annotations

import re

from qkv.maths.in_latex import ATOM, PRODUCT, RAISED_UP, Latex, short
from qkv.maths.text.words import GREEK, RAISED
from qkv.maths.tree import (
    Constant,
    Contract,
    Derivative,
    Divide,
    Node,
    Number,
    Outer,
    Symbol,
)

_SIGNS = {"=": "=", "≈": "≈", "<=": "≤", "<": "<", ">=": "≥", ">": ">", "!=": "≠"}
_UP = {letter: sign for sign, letter in RAISED.items() if letter in "0123456789-"}


class Plain(Latex):
    signs = _SIGNS
    dot, odot = "·", "⊙"
    plus_minus = "±"
    times_sign = "×"
    transposed = "ᵀ"
    big = ("∑", "∏")
    expectation = "E"

    def scientific(self, mantissa: str, exponent: str) -> str:
        return f"{mantissa}×10{self.upper(exponent)}"

    def over(self, top: str, bottom: str) -> tuple[str, int]:
        return f"{top}/{bottom}", PRODUCT

    def _constant(self, node: Constant) -> tuple[str, int]:
        return {"pi": "π", "e": "e", "infinity": "∞"}[node.name], RAISED_UP if node.name == "e" else ATOM

    def name(self, name: str) -> str:
        base, mark, lower = name.partition("_")
        bare = base.rstrip("'")
        return self.letters(bare) + base[len(bare) :] + mark + self.letters(lower)

    def letters(self, word: str) -> str:
        return GREEK.get(word, word)

    def lower(self, text: str) -> str:
        return f"_{text}" if re.fullmatch(r"[A-Za-z]|\d+|∞", text) else f"_{{{text}}}"

    def upper(self, text: str) -> str:
        if all(letter in _UP for letter in text):
            return "".join(_UP[letter] for letter in text)
        return f"^{text}" if re.fullmatch(r"[A-SU-Za-z]", text) else f"^{{{text}}}"

    def special(self, name: str) -> str:
        return {"ones": "𝟏", "zeros": "𝟎", "identity": "I"}[name]

    def rows(self, rows: list[list[str]]) -> str:
        if rows == [rows[0][:1]]:
            return super().rows(rows)
        return "[" + ", ".join(f"[{', '.join(row)}]" for row in rows) + "]"

    def divides(self, node: Node) -> bool:
        while isinstance(node, Contract | Outer):
            node = node.left
        return isinstance(node, Divide | Derivative)

    def beside(self, left: str, right: str) -> str:
        if not left:
            return right
        if right[0].isdigit():
            return f"{left}·{right}"
        close = re.search(r"[²³⁰¹⁴-⁹ᵀ)‖|\]]$|^[\d.]+$", left)
        return left + right if close else f"{left} {right}"

    def _divide(self, node: Divide) -> tuple[str, int]:
        top, holds = self.text(node.top)
        top = top if holds >= PRODUCT else f"({top})"
        return f"{top}/{self.no_differential(node.bottom, self.at(node.bottom, RAISED_UP))}", PRODUCT

    def function(self, name: str) -> str:
        return short(name)

    def root(self, argument: Node, body: str) -> tuple[str, int]:
        simple = isinstance(argument, Symbol | Constant) or (isinstance(argument, Number) and body.isdigit())
        return (f"√{body}" if simple else f"√({body})"), ATOM

    def norm(self, body: str, lower: str) -> tuple[str, int]:
        text = f"norm({body})" if re.search(r"[‖|]", body) else f"‖{body}‖"
        lower = "∞" if lower == "\\infty" else lower
        if lower and text.startswith("norm"):
            text = f"norm{self.lower(lower)}({body})"
            return text, ATOM
        return (text + self.lower(lower) if lower else text), ATOM

    def bars(self, body: str) -> tuple[str, int]:
        return (f"abs({body})" if re.search(r"[‖|]", body) else f"|{body}|"), ATOM

    def _derivative(self, node: Derivative) -> tuple[str, int]:
        return f"∂{self.at(node.body, ATOM)}/∂{self.at(node.target, ATOM)}", PRODUCT
