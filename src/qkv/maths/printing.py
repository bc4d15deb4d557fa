"""Trees as text that parses back to the same tree: `latex`, and `plain` in Unicode."""

from __future__ import annotations

import re
from fractions import Fraction

from qkv.maths import tree
from qkv.maths.parsing.words import ACCENTS, GREEK, RAISED, UNIT_NAMES
from qkv.maths.sizes import size_node
from qkv.maths.tree import Add, Contract, Divide, Hadamard, Multiply, Node, Number, PlusMinus, Power, Special, Symbol

# How tightly a text binds: a sum, a product that ends in a Σ, a product, a power, an atom that takes any script.
SUM, OPEN_SUM, PRODUCT, POWER, ATOM = range(5)

_LATEX_SIGNS = {"=": "=", "≈": "\\approx", "<=": "\\le", "<": "<", ">=": "\\ge", ">": ">", "!=": "\\ne", "in": "\\in"}
_NAMES = {"trace": "tr"}


class Latex:
    """Writes LaTeX with as few brackets as possible; each method returns a text and how tightly it binds."""

    signs = _LATEX_SIGNS
    dot, odot = "\\cdot", "\\odot"
    plus_minus = "\\pm "
    braces, reals = ("\\{", "\\}"), "\\mathbb{R}"

    def whole(self, node: Node) -> str:
        if isinstance(node, tree.Relation):
            text = self.at(node.members[0], SUM)
            for sign, member in zip(node.signs, node.members[1:], strict=True):
                shown = self.at(member, SUM)
                if sign == "in" and isinstance(member, tree.Written):
                    shown = self.reals + self.upper(self.times_sign.join(self.at(one, POWER) for one in member.entries))
                text += f" {self.signs[sign]} {shown}"
            return text
        entries = node.entries if isinstance(node, tree.Written) else (node,)
        rounded = all(isinstance(entry, Number) and entry.rounded for entry in entries)
        return f"{self.signs['≈']} {self.at(node, SUM)}" if rounded else self.at(node, SUM)

    def at(self, node: Node, level: int) -> str:
        """The text, in brackets if it binds less tightly than `level`."""
        text, binding = self.text(node)
        return text if binding >= level else f"({text})"

    def text(self, node: Node) -> tuple[str, int]:
        return getattr(self, f"_{type(node).__name__.lower()}")(node)

    def _number(self, node: Number) -> tuple[str, int]:
        text = _digits(abs(node.value), node.unit)
        whole = ATOM if text.replace(".", "").isdigit() else PRODUCT
        if text.count("e"):
            mantissa, _, exponent = text.partition("e")
            text, whole = (self.scientific(mantissa, exponent), PRODUCT) if node.unit else (text, POWER)
        if "/" in text:
            text, whole = self.over(*text.split("/"))
        return (f"-{text}", SUM) if node.value < 0 else (text, whole)

    def scientific(self, mantissa: str, exponent: str) -> str:
        return f"{mantissa} \\times 10^{{{exponent}}}"

    def over(self, top: str, bottom: str) -> tuple[str, int]:
        return f"\\frac{{{top}}}{{{bottom}}}", ATOM

    def _constant(self, node: tree.Constant) -> tuple[str, int]:
        return {"pi": "\\pi", "e": "e", "infinity": "\\infty"}[node.name], POWER if node.name == "e" else ATOM

    def name(self, name: str) -> str:
        name = name.removeprefix("unit ")
        base, _, lower = name.partition("_")
        base, marks = base.rstrip("'"), "'" * (len(base) - len(base.rstrip("'")))
        if lower in ACCENTS.values():
            return f"\\{lower}{{{self.letters(base)}}}{marks}"
        more = "'" * (len(lower) - len(lower.rstrip("'")))
        lower = lower.rstrip("'")
        return self.letters(base) + marks + (self.lower(self.letters(lower)) if lower else "") + more

    def letters(self, word: str) -> str:
        if word in GREEK:
            return f"\\{word}"
        return word if len(word) <= 1 or word.isdigit() else f"\\mathrm{{{word}}}"

    def lower(self, text: str) -> str:
        return f"_{{{text}}}"

    def upper(self, text: str) -> str:
        return f"^{{{text}}}"

    def _symbol(self, node: Symbol) -> tuple[str, int]:
        return self.name(node.name), ATOM

    def _index(self, node: tree.Index) -> tuple[str, int]:
        return self.name(node.name), ATOM

    def size(self, size: tree.Size) -> str:
        return self.at(size_node(size), SUM)

    def _special(self, node: Special) -> tuple[str, int]:
        sign = self.special(node.name)
        sizes = node.shape[:1] if node.name == "identity" else node.shape
        return sign + self.lower(self.times_sign.join(self.at(size_node(s), POWER) for s in sizes)), POWER

    times_sign = " \\times "

    def special(self, name: str) -> str:
        return {"ones": "\\mathbf{1}", "zeros": "\\mathbf{0}", "identity": "I"}[name]

    def _written(self, node: tree.Written) -> tuple[str, int]:
        entries = [self.at(entry, SUM) for entry in node.entries]
        if len(node.shape) == 1 and len(entries) > 1:
            return f"({', '.join(entries)})", ATOM
        width = node.shape[1] if len(node.shape) == 2 else 1
        assert isinstance(width, int)
        return self.rows([entries[at : at + width] for at in range(0, len(entries), width)]), ATOM

    def rows(self, rows: list[list[str]]) -> str:
        return "\\begin{pmatrix} " + " \\\\ ".join(" & ".join(row) for row in rows) + " \\end{pmatrix}"

    def _interval(self, node: tree.Interval) -> tuple[str, int]:
        left, right = "(["[node.closed[0]], ")]"[node.closed[1]]
        return f"{left}{self.at(node.low, SUM)}, {self.at(node.high, SUM)}{right}", ATOM

    def _collection(self, node: tree.Collection) -> tuple[str, int]:
        parts = ", ".join(map(self.whole, node.parts))
        related = any(isinstance(part, tree.Relation) for part in node.parts)
        return (parts, SUM) if related else (f"{self.braces[0]}{parts}{self.braces[1]}", ATOM)

    def _add(self, node: Add) -> tuple[str, int]:
        text = ""
        for term in node.terms:
            piece, binding = self.text(term)
            if isinstance(term, PlusMinus) and text:
                text += f" {self.plus_minus.strip()} {self.at(term.body, OPEN_SUM)}"
            elif isinstance(term, Add | PlusMinus):
                text += f" + ({piece})" if text else f"({piece})"
            elif binding == SUM and text:
                text += f" - {piece[1:]}"
            else:
                text += f" + {piece}" if text else piece
        return text, SUM

    def _multiply(self, node: Multiply) -> tuple[str, int]:
        first, *rest = node.factors
        if isinstance(first, Number) and first.value < 0 and not (first.value == -1 and _begins_with_number(rest[0])):
            if first.value == -1 and first.unit is None:
                inner = rest[0] if len(rest) == 1 else Multiply(node.shape, tuple(rest))
                return f"-{self.at(inner, OPEN_SUM)}", SUM
            positive = Number((), -first.value, first.unit, first.rounded)
            return f"-{self.text(Multiply(node.shape, (positive, *rest)))[0]}", SUM
        if shown := self.with_unit(node):
            return shown, PRODUCT
        text, binding = "", PRODUCT
        for place, factor in enumerate(node.factors):
            piece, binding = self.factor(factor, first=place == 0, last=place == len(node.factors) - 1)
            text = self.side_by_side(text, piece)
        return text, OPEN_SUM if binding == OPEN_SUM else PRODUCT

    def with_unit(self, node: Multiply) -> str:
        """A product that ends in units, such as 0.54 GB/s; "" for any other."""
        units = [unit for factor in node.factors if (unit := _unit(factor))]
        rest, (first, *others) = node.factors[: len(node.factors) - len(units)], units or [("", 0)]
        names = UNIT_NAMES.get((Fraction(1), (first,)), [""])
        if len(rest) > 1 and isinstance(rest[-1], Number) and (rest[-1].value, (first,)) in UNIT_NAMES:
            rest, names = rest[:-1], UNIT_NAMES[rest[-1].value, (first,)]
        below = others if names[0] else units
        if not rest or not units or any(map(_unit, rest)) or any(power != -1 for _, power in below):
            return ""
        lone = rest[0] if len(rest) == 1 else Multiply((), rest)
        name = names[0] if isinstance(lone, Number) else max(names, key=len)
        shown = f" {self.letters(name)}" if name else ""
        return self.at(lone, PRODUCT) + shown + "".join(f"/{self.letters(base)}" for base, _ in below)

    def factor(self, node: Node, *, first: bool, last: bool) -> tuple[str, int]:
        """A factor of a product: a Σ only as the last one, a quotient only as the first."""
        piece, binding = self.text(node)
        loose = binding == SUM or (binding == OPEN_SUM and not last) or isinstance(node, Hadamard | Multiply)
        if loose or (not first and self.divides(node)) or (isinstance(node, Number) and binding == PRODUCT):
            return f"({piece})", ATOM
        return piece, binding

    def divides(self, node: Node) -> bool:
        """Whether this begins with a quotient written with a slash, which would swallow the factors before it."""
        return False

    def side_by_side(self, left: str, right: str) -> str:
        """Two texts side by side, as a product."""
        if not left:
            return right
        mixed = left[-1].isdigit() and right.startswith("\\frac")  # 2 \\frac{1}{2} is a mixed number
        return f"{left} {self.dot} {right}" if mixed or right[0].isdigit() else f"{left} {right}"

    def _divide(self, node: Divide) -> tuple[str, int]:
        bottom = self.no_differential(node.bottom, self.at(node.bottom, SUM))
        return f"\\frac{{{self.at(node.top, SUM)}}}{{{bottom}}}", POWER

    def no_differential(self, node: Node, text: str) -> str:
        """A denominator d x with a dot in it, because d y over d x would be a derivative."""
        if isinstance(node, Multiply) and not text.lstrip("(").startswith(f"d {self.dot}"):
            for head in ("d ", "(d "):
                if text.startswith(head):
                    return f"{head}{self.dot} {text.removeprefix(head)}"
        return text

    def left(self, node: Node) -> str:
        """The left factor of a product of matrices; a product there needs no brackets."""
        text, binding = self.text(node)
        bare = binding >= PRODUCT and not isinstance(node, Hadamard | Multiply)
        return text if bare else f"({text})"

    def _contract(self, node: Contract) -> tuple[str, int]:
        return self.side_by_side(self.left(node.left), self.at(node.right, POWER)), PRODUCT

    def _outer(self, node: tree.Outer) -> tuple[str, int]:
        return self.side_by_side(self.left(node.left), self._transposed(node.right)), PRODUCT

    def _transposed(self, node: Node) -> str:
        return self.at(node, ATOM if not isinstance(node, Special) else POWER) + self.transposed

    transposed = "^\\top"

    def _hadamard(self, node: Hadamard) -> tuple[str, int]:
        left = self.at(node.left, OPEN_SUM if isinstance(node.left, Hadamard) else PRODUCT)
        return f"{left} {self.odot} {self.at(node.right, PRODUCT)}", OPEN_SUM

    def _power(self, node: Power) -> tuple[str, int]:
        return self.at(node.base, ATOM) + self.upper(self.at(node.exponent, SUM)), POWER

    def _transpose(self, node: tree.Transpose) -> tuple[str, int]:
        return self._transposed(node.body), POWER

    def _part(self, node: tree.Part) -> tuple[str, int]:
        base, name = self.at(node.body, ATOM), getattr(node.body, "name", "") if isinstance(node.body, Symbol) else ""
        summed = name in ("Sigma", "Pi") and len(node.indices) == 1  # Σ_i followed by something reads as a sum
        if isinstance(node.body, tree.Part) or "_" in name or summed:
            base = f"({base})"
        indices = ",".join(":" if index is None else self.at(index, SUM) for index in node.indices)
        return base + self.lower(indices), ATOM

    def _call(self, node: tree.Call) -> tuple[str, int]:
        body = ", ".join(self.at(argument, SUM) for argument in node.arguments)
        if node.map is not None:
            return f"{self.name(node.name)}({body})", ATOM
        if node.name == "sqrt":
            return self.root(node.arguments[0], body)
        if node.name.startswith("norm"):
            return self.norm(body, {"norm1": "1", "norm_inf": "\\infty", "norm_F": "F"}.get(node.name, ""))
        if node.name == "abs" and not node.arguments[0].shape:
            return self.bars(body)
        return f"{self.function(node.name)}({body})", ATOM

    def function(self, name: str) -> str:
        name = _NAMES.get(name, name)
        return f"\\{name}" if name in ("exp", "log", "max", "min", "det") else f"\\operatorname{{{name}}}"

    def root(self, argument: Node, body: str) -> tuple[str, int]:
        return f"\\sqrt{{{body}}}", ATOM

    def norm(self, body: str, lower: str) -> tuple[str, int]:
        text = f"\\lVert {body} \\rVert"
        return (text + self.lower(lower) if lower else text), ATOM

    def bars(self, body: str) -> tuple[str, int]:
        return f"\\lvert {body} \\rvert", ATOM

    big = ("\\sum", "\\prod")

    def _sum(self, node: tree.Sum) -> tuple[str, int]:
        sign = self.big[node.product]
        le = self.signs["<="]
        if len(node.indices) == 1 and not node.conditions:
            (index,) = node.indices
            sign += self.lower(f"{self.name(index.name)}=1") + self.upper(self.size(index.size))
        else:
            ranges = [f"1 {le} {self.name(index.name)} {le} {self.size(index.size)}" for index in node.indices]
            ranges += [f"{self.at(a, SUM)} {self.signs[op]} {self.at(b, SUM)}" for op, a, b in node.conditions]
            sign += self.lower(", ".join(ranges))
        return f"{sign} {self.at(node.body, OPEN_SUM)}", OPEN_SUM

    def _delta(self, node: tree.Delta) -> tuple[str, int]:
        return self.letters("delta") + self.lower(f"{self.at(node.left, SUM)},{self.at(node.right, SUM)}"), POWER

    def _expect(self, node: tree.Expect) -> tuple[str, int]:
        return f"{self.expectation}[{self.at(node.body, SUM)}]", ATOM

    expectation = "\\mathbb{E}"

    def _covariance(self, node: tree.Covariance) -> tuple[str, int]:
        left, right = self.at(node.left, SUM), self.at(node.right, SUM)
        if node.left == node.right:
            return f"{self.function('Var')}({left})", ATOM
        return f"{self.function('Cov')}({left}, {right})", ATOM

    def _derivative(self, node: tree.Derivative) -> tuple[str, int]:
        body, target = self.at(node.body, ATOM), self.at(node.target, ATOM)
        return f"\\frac{{\\partial {body}}}{{\\partial {target}}}", POWER

    def _plusminus(self, node: PlusMinus) -> tuple[str, int]:
        return f"{self.plus_minus}{self.at(node.body, OPEN_SUM)}", SUM

    def _order(self, node: tree.Order) -> tuple[str, int]:
        return f"{self.letters(node.kind)}({self.at(node.body, SUM)})", ATOM

    def _relation(self, node: tree.Relation) -> tuple[str, int]:
        return self.whole(node), SUM


def _unit(node: Node) -> tuple[str, int] | None:
    """The base unit that this is and its exponent, or None."""
    base, exponent = (node.base, node.exponent) if isinstance(node, Power) else (node, None)
    if not isinstance(base, Symbol) or not base.name.startswith("unit "):
        return None
    return base.name.removeprefix("unit "), int(exponent.value) if isinstance(exponent, Number) else 1


def _begins_with_number(node: Node) -> bool:
    while isinstance(node, Multiply | Add | Divide):
        node = node.factors[0] if isinstance(node, Multiply) else node.terms[0] if isinstance(node, Add) else node.top
    return isinstance(node, Number)


def _digits(value: Fraction, unit: Fraction | None) -> str:
    """A nonnegative number with the digits that it was written with."""
    if unit is None:
        if value.denominator == 1:
            return str(value.numerator)
        places = _places(value.denominator)
        return f"{value.numerator}/{value.denominator}" if places is None else f"{value * 10**places}e-{places}"
    places = _places(unit.denominator) or 0
    if unit <= 1:
        digits = str(int(value / unit)).rjust(places + 1, "0")
        return f"{digits[: len(digits) - places]}.{digits[len(digits) - places :]}" if places else f"{digits}e0"
    tens = len(str(unit.numerator)) - 1
    digits = str(int(value / unit)).rjust(2, "0")
    return f"{digits[:-1]}.{digits[-1]}e{tens + 1}"


def _places(denominator: int) -> int | None:
    """The least k such that the denominator divides 10^k."""
    for places in range(400):
        if 10**places % denominator == 0:
            return places
    return None


_UNICODE_SIGNS = {"=": "=", "≈": "≈", "<=": "≤", "<": "<", ">=": "≥", ">": ">", "!=": "≠", "in": "∈"}
_UP = {letter: sign for sign, letter in RAISED.items() if letter in "0123456789-"}


class Plain(Latex):
    """Writes Unicode text."""

    signs = _UNICODE_SIGNS
    dot, odot = "·", "⊙"
    plus_minus = "±"
    braces, reals = "{}", "ℝ"
    times_sign = "×"
    transposed = "ᵀ"
    big = ("∑", "∏")
    expectation = "E"

    def scientific(self, mantissa: str, exponent: str) -> str:
        return f"{mantissa}×10{self.upper(exponent)}"

    def over(self, top: str, bottom: str) -> tuple[str, int]:
        return f"{top}/{bottom}", PRODUCT

    def _constant(self, node: tree.Constant) -> tuple[str, int]:
        return {"pi": "π", "e": "e", "infinity": "∞"}[node.name], POWER if node.name == "e" else ATOM

    def name(self, name: str) -> str:
        name = name.removeprefix("unit ")
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
        while isinstance(node, Contract | tree.Outer):
            node = node.left
        return isinstance(node, Divide | tree.Derivative)

    def side_by_side(self, left: str, right: str) -> str:
        if not left:
            return right
        if right[0].isdigit():
            return f"{left}·{right}"
        close = re.search(r"[²³⁰¹⁴-⁹ᵀ)‖|\]]$|^[\d.]+$", left)
        return left + right if close else f"{left} {right}"

    def _divide(self, node: Divide) -> tuple[str, int]:
        top, binding = self.text(node.top)
        top = top if binding >= PRODUCT else f"({top})"
        return f"{top}/{self.no_differential(node.bottom, self.at(node.bottom, POWER))}", PRODUCT

    def function(self, name: str) -> str:
        return _NAMES.get(name, name)

    def root(self, argument: Node, body: str) -> tuple[str, int]:
        simple = isinstance(argument, Symbol | tree.Constant) or (isinstance(argument, Number) and body.isdigit())
        return (f"√{body}" if simple else f"√({body})"), ATOM

    def norm(self, body: str, lower: str) -> tuple[str, int]:
        below = self.lower("∞" if lower == "\\infty" else lower) if lower else ""
        return (f"norm{below}({body})" if re.search(r"[‖|]", body) else f"‖{body}‖{below}"), ATOM

    def bars(self, body: str) -> tuple[str, int]:
        return (f"abs({body})" if re.search(r"[‖|]", body) else f"|{body}|"), ATOM

    def _derivative(self, node: tree.Derivative) -> tuple[str, int]:
        return f"∂{self.at(node.body, ATOM)}/∂{self.at(node.target, ATOM)}", PRODUCT


def latex(node: Node) -> str:
    """A tree in LaTeX.

    Args:
        node: A tree from `parse`.

    Returns:
        Text that parses back to the same tree.

    >>> from qkv.maths import parse
    >>> latex(parse("mu'mu/sqrt(d)", {"mu'": "scalar", "mu": "vector[d]"}))
    "\\\\frac{\\\\mu' \\\\mu}{\\\\sqrt{d}}"
    """
    return Latex().whole(node)


def plain(node: Node) -> str:
    """A tree in Unicode text.

    Args:
        node: A tree from `parse`.

    Returns:
        Text that parses back to the same tree.

    >>> from qkv.maths import parse
    >>> plain(parse(r"d\\sigma^4 + 2\\sigma^2\\|\\mu\\|^2", {"mu": "vector[d]", "sigma": "positive"}))
    'd σ⁴ + 2σ²‖μ‖²'
    """
    return Plain().whole(node)
