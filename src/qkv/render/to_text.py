"""Plain text: prose and formulas on one line, and formulas drawn over several lines. Rich is not imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from . import document as d
from . import layout as b
from .escapes import GREEK, line

_BELOW = dict(zip("0123456789aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))
_INDEX = "[0-9aehijklmnoprstuvx]"
_INDICES = rf"(?:[0-9]+|{_INDEX})(?:,(?:[0-9]+|{_INDEX}))*"
_COMMANDS = {
    **dict.fromkeys(("dots", "ldots", "cdots"), "..."), **dict.fromkeys(("left", "right"), ""),
    "cdot": "·", "times": "×", "top": "T", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠",
    "approx": "≈", "sum": "∑", "infty": "∞", "in": "∈", "to": "→", "sim": "~", "pm": "±", "prod": "∏", "neg": "¬",
    "rightarrow": "→", "Rightarrow": "⇒", "implies": "⇒", "Longrightarrow": "⇒", "iff": "⇔", "propto": "∝",
    "ll": "≪", "gg": "≫", "odot": "⊙", "otimes": "⊗", "oplus": "⊕", "partial": "∂", "nabla": "∇", "forall": "∀",
    "langle": "⟨", "rangle": "⟩", "mid": "|", "star": "⋆", "circ": "∘", "lVert": "‖", "rVert": "‖", "equiv": "≡",
    **dict.fromkeys(("quad", "qquad"), "  "), **dict.fromkeys(("displaystyle", "limits", "big", "Big", "bigl",
    "bigr", "Bigl", "Bigr", "nonumber"), ""),
    **{name: name for name in ("exp", "log", "ln", "max", "min", "arg", "softmax", "det", "dim", "cos", "sin", "tanh")},
}  # fmt: skip
_FONTS = r"mathbf|mathrm|text|textbf|textit|mathit|mathsf|mathcal|boldsymbol|bm|operatorname\*?|boxed|hat|tilde|bar"
_GRID = re.compile(
    r"\\begin\{(?:[bpvBV]?matrix|array)\}(?:\{[^{}]{0,20}\})?(.{0,2000}?)\\end\{(?:[bpvBV]?matrix|array)\}", re.DOTALL
)
_ALIGNED = re.compile(r"\\(?:begin|end)\{(?:aligned|align|gather|gathered|equation|cases)\*?\}")
_INSIDE = r"\{((?:[^{}]|\{[^{}]{0,60}\}){1,160})\}"
_FRACTION = re.compile(rf"\\[dt]?frac\s*{_INSIDE}\s*{_INSIDE}")
_SPACES = re.compile(r"(?<!\\)\\[,;:! ]")
_ABOVE = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(maths: d.Maths) -> str:
    """A formula on one line, in Unicode."""
    from ..maths.printing import plain as written

    node = maths.tree()
    return line(maths.text()) if node is None else written(node)


def signs(text: str) -> str:
    r"""LaTeX that could not be read as mathematics, with plain signs for its commands; unknown commands stay.

    >>> signs(r"\phi(q) = [q_1^2, \dots, \sqrt{2} q_{D-1} q_D, 1]")
    'φ(q) = [q₁², ..., √2 q_{D-1} q_D, 1]'
    """
    text = re.sub(r"\\mathbb\s*\{?([REN])\}?", lambda f: {"R": "ℝ", "E": "𝔼", "N": "ℕ"}[f[1]], text)
    for _ in range(4):  # levels of braces within braces
        text = re.sub(rf"\\(?:{_FONTS})\s*\{{([^{{}}]{{1,200}})\}}", r"\1", text)
        text = re.sub(r"\\sqrt\s*\{([^{}]{1,80})\}", lambda f: f"√{f[1]}" if f[1].isalnum() else f"√({f[1]})", text)
        text = _FRACTION.sub(lambda f: f"{_grouped(f[1])}/{_grouped(f[2])}", text)
    text = _GRID.sub(_listed, _SPACES.sub(" ", text))
    if _ALIGNED.search(text):
        text = re.sub(r"\s*\\\\\s*", "\n", _ALIGNED.sub("", text)).replace("&", "")
    text = re.sub(r"\\([A-Za-z]+)(?![A-Za-z])", lambda f: GREEK.get(f[1], _COMMANDS.get(f[1], f[0])), text)
    text = re.sub(r"\^(?:\{([0-9]+)\}|([0-9]+))", lambda f: (f[1] or f[2]).translate(_ABOVE), text)
    text = re.sub(r"\^(?:\{T\}|T)", "ᵀ", text.replace("\\|", "‖"))
    return pretty(text)


def _grouped(text: str) -> str:
    return text.strip() if re.fullmatch(r"\s*√?(?:\\?[\w.]+|\([^()]*\))\s*", text) else f"({text.strip()})"


def _listed(found: re.Match[str]) -> str:
    """A matrix in one line: commas between the entries of a row, semicolons between rows."""
    rows = [", ".join(cell.strip() for cell in row.split("&")) for row in re.split(r"\\\\", found[1]) if row.strip()]
    return f"[{'; '.join(rows)}]"


def pretty(text: str) -> str:
    """Indices as Unicode subscripts where they exist, and very small numbers with a power of ten.

    >>> pretty("z_{3,1} = q_3ᵀk_1, W_Q, x_{i+1}, d_k2, 0.000000000000690")
    'z₃,₁ = q₃ᵀk₁, W_Q, x_{i+1}, d_k2, 6.90×10⁻¹³'
    """
    text = re.sub(rf"_(?:\{{({_INDICES})\}}|([0-9]+|{_INDEX})(?![A-Za-z0-9_{{]))", _lower, text)
    return re.sub(r"(?<![\d.])0\.(0{6,})([1-9])(\d*)", _power, text)


def _lower(found: re.Match[str]) -> str:
    return "".join(_BELOW.get(sign, sign) for sign in found[1] or found[2])


def _power(found: re.Match[str]) -> str:
    zeros, first, rest = found.groups()
    power = str(len(zeros) + 1).translate(_ABOVE)
    return f"{first}.{rest}×10⁻{power}" if rest else f"{first}×10⁻{power}"


def in_text(prose: str, symbols: Mapping[str, str] | None = None) -> str:
    """
    >>> in_text("the mean is $mu^T mu$", {"mu": "vector[d]"})
    'the mean is μᵀμ'
    """
    pieces = d.prose(prose, symbols or {})
    return "".join(pretty(plain(piece)) if isinstance(piece, d.Maths) else piece.text for piece in pieces)


RELATIONS = frozenset("=≤≥<>≠≈")
_TALL = {
    "(": "⎛⎜⎝", ")": "⎞⎟⎠", "[": "⎡⎢⎣", "]": "⎤⎥⎦", "|": "│││", "‖": "‖‖‖",
}  # fmt: skip
_RAISED = dict(zip("0123456789+-−()in⊤′", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁽⁾ⁱⁿᵀ′", strict=True))
_LOWERED = dict(zip("0123456789+-−()aehijklmnoprstuvx,·", "₀₁₂₃₄₅₆₇₈₉₊₋₋₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ,·", strict=True))
_SPACED = RELATIONS | frozenset("+−±·×⊙∈→")


@dataclass(frozen=True)
class Drawing:
    """Lines of equal width; `base` is the index of the line that is aligned with the text next to it."""

    lines: tuple[str, ...]
    base: int = 0

    @property
    def width(self) -> int:
        return len(self.lines[0])

    @property
    def flat(self) -> bool:
        return len(self.lines) == 1


def drawn(box: b.Box) -> Drawing:
    """
    >>> two = b.Grid(((b.Numeral("1"),), (b.Numeral("20"),)))
    >>> print("\\n".join(drawn(b.Row((b.Letter("x"), b.Sign("="), b.Fence("[", two, "]")))).lines))
    x = ⎡  1 ⎤
        ⎣ 20 ⎦
    """
    match box:
        case b.Letter(text=text) | b.Word(text=text) | b.Numeral(text=text):
            return _line(text)
        case b.Sign(text=text, place=place):
            return _line(_sign(text, place))
        case b.Row(parts=parts):
            return joined(_spread(parts))
        case b.Scripts():
            return _scripts(box)
        case b.Over(top=top, bottom=bottom):
            above, below = drawn(top), drawn(bottom)
            wide = max(above.width, below.width)
            lines = (*_centred(above, wide), "─" * wide, *_centred(below, wide))
            return Drawing(lines, len(above.lines))
        case b.Root(body=body):
            return joined((_line("√"), drawn(body if _atom(body) else b.Fence("(", body, ")"))))
        case b.Fence(left=left, body=body, right=right):
            return _fenced(left, drawn(body), right)
        case b.Big(sign=sign, below=below, above=above):
            over = (_tight(above),) if above is not None else ()
            stack = (*over, sign, _tight(below))
            wide = max(map(len, stack))
            lines = tuple(line.center(wide) for line in stack)
            return Drawing(tuple(f"{line} " for line in lines), len(over))
        case b.Grid(rows=rows):
            return _grid(rows)
        case b.Under(body=body, label=label):
            main, beneath = drawn(body), _line(_tight(label))
            wide = max(main.width, beneath.width)
            return Drawing((*_centred(main, wide), *_centred(beneath, wide)), main.base)


def broken(box: b.Box, width: int) -> tuple[Drawing, ...]:
    """The drawing, or several where it is wider than `width`: a chain continues below, from a relation on."""
    whole = drawn(box)
    if whole.width <= width or not isinstance(box, b.Row):
        return (whole,)
    members: list[list[b.Box]] = [[]]
    for part in box.parts:
        if isinstance(part, b.Sign) and part.text in RELATIONS:
            members.append([])
        members[-1].append(part)
    lines: list[list[b.Box]] = []
    for member in members:
        if lines and drawn(b.Row((*lines[-1], *member))).width <= width:
            lines[-1] += member
        else:
            lines.append(list(member))
    return tuple(drawn(b.Row(tuple(parts))) for parts in lines)


def side_by_side(boxes: Sequence[b.Box], width: int, gap: int = 4) -> Iterator[Drawing]:
    """Drawings next to each other, as many as fit into `width`, then the next below."""
    row: list[Drawing] = []
    for box in boxes:
        for each in broken(box, width):
            wide = sum(one.width for one in row) + gap + each.width
            if row and wide > width:
                yield joined(row)
                row = []
            row += [Drawing(tuple(" " * gap for _ in each.lines), each.base), each] if row else [each]
    if row:
        yield joined(row)


def has_grid(box: b.Box) -> bool:
    """Whether the formula needs more than one line."""
    match box:
        case b.Grid() | b.Under():
            return True
        case b.Row(parts=parts):
            return any(map(has_grid, parts))
        case b.Fence(body=body) | b.Root(body=body):
            return has_grid(body)
        case b.Scripts(base=base):
            return has_grid(base)
        case b.Over(top=top, bottom=bottom):
            return has_grid(top) or has_grid(bottom)
    return False


def joined(drawings: Iterable[Drawing]) -> Drawing:
    """Drawings from left to right, aligned at their bases."""
    parts = [part for part in drawings if part.width]
    if not parts:
        return Drawing(("",))
    above = max(part.base for part in parts)
    below = max(len(part.lines) - part.base for part in parts)
    rows = []
    for row in range(above + below):
        places = ((part, row - above + part.base) for part in parts)
        rows.append("".join(part.lines[at] if 0 <= at < len(part.lines) else " " * part.width for part, at in places))
    return Drawing(tuple(rows), above)


def _spread(parts: Sequence[b.Box]) -> Iterator[Drawing]:
    """A space between factors, unless a superscript separates them already."""
    before = ""
    for part in parts:
        drawing = drawn(part)
        if part == b.Sign(b.TIMES) and before.endswith(tuple(_RAISED.values())):
            continue
        yield drawing
        before = drawing.lines[0] if drawing.flat else ""


def _line(text: str) -> Drawing:
    return Drawing((text,))


def _tight(box: b.Box) -> str:
    """The box on one line without spaces, for scripts and labels."""
    return drawn(box).lines[0].replace(" ", "")


def _sign(text: str, place: str) -> str:
    if text == b.TIMES:
        return " "
    if text == b.APPLY:
        return ""
    if text == ",":
        return ", "
    return f" {text} " if place == "infix" and text in _SPACED else text


def _atom(box: b.Box) -> bool:
    return isinstance(box, b.Letter | b.Word | b.Numeral | b.Fence) or (
        isinstance(box, b.Scripts) and isinstance(box.base, b.Letter)
    )


def _scripts(box: b.Scripts) -> Drawing:
    base = drawn(box.base)
    below = drawn(box.below) if box.below is not None else None
    above = drawn(box.above) if box.above is not None else None
    if base.flat and (below is None or below.flat) and (above is None or above.flat):
        lower = _small(below, _LOWERED, "_") if below is not None else ""
        upper = _small(above, _RAISED, "^") if above is not None else ""
        return _line(f"{base.lines[0]}{lower}{upper}")
    lower = tuple(_small_lines(below, _LOWERED)) if below is not None else ()
    upper = tuple(_small_lines(above, _RAISED)) if above is not None else ()
    middle = max(0, len(base.lines) - len(upper) - len(lower))
    wide = max(map(len, (*upper, *lower)))
    side = tuple(line.ljust(wide) for line in (*upper, *([""] * middle), *lower))
    return joined((base, Drawing(side, base.base + max(0, len(side) - len(base.lines)))))


def _small(script: Drawing, signs: dict[str, str], mark: str) -> str:
    text = script.lines[0].replace(" ", "")
    if all(sign in signs for sign in text):
        return "".join(signs[sign] for sign in text)
    return f"{mark}{text}" if len(text) == 1 or text.isalnum() else f"{mark}({text})"


def _small_lines(script: Drawing, signs: dict[str, str]) -> Iterable[str]:
    for each in script.lines:
        text = each.replace(" ", "") if script.flat else each
        yield "".join(signs[sign] for sign in text) if all(sign in signs for sign in text) else text


def _fenced(left: str, body: Drawing, right: str) -> Drawing:
    if body.flat:
        return _line(f"{left}{body.lines[0]}{right}")
    return joined((_tall(left, body), _space(body), body, _space(body), _tall(right, body)))


def _space(body: Drawing) -> Drawing:
    return Drawing(tuple(" " for _ in body.lines), body.base)


def _tall(sign: str, body: Drawing) -> Drawing:
    top, middle, bottom = _TALL.get(sign, sign * 3)
    return Drawing((top, *(middle for _ in body.lines[2:]), bottom), body.base)


def _grid(rows: Sequence[Sequence[b.Box]]) -> Drawing:
    cells = [[drawn(_on_a_line(cell)) for cell in row] for row in rows]
    widths = [max(column) for column in zip(*([cell.width for cell in row] for row in cells), strict=True)]
    lines: list[str] = []
    for row in cells:
        line = joined(
            _padded(cell, wide, bool(place)) for place, (cell, wide) in enumerate(zip(row, widths, strict=True))
        )
        lines += line.lines
    return Drawing(tuple(lines), (len(lines) - 1) // 2)


def _on_a_line(cell: b.Box) -> b.Box:
    """A fraction of numbers as 1/2, since a row of a matrix is one line."""
    match cell:
        case b.Over(top=b.Numeral(text=top), bottom=b.Numeral(text=bottom)):
            return b.Word(f"{top}/{bottom}")
        case b.Row(parts=(b.Sign() as sign, last)):
            return b.Row((sign, _on_a_line(last)))
    return cell


def _padded(cell: Drawing, wide: int, apart: bool) -> Drawing:
    gap = "  " if apart else ""
    return Drawing(tuple(f"{gap}{line.rjust(wide)}" for line in cell.lines), cell.base)


def _centred(drawing: Drawing, wide: int) -> tuple[str, ...]:
    before = (wide - drawing.width) // 2
    return tuple(f"{' ' * before}{line}".ljust(wide) for line in drawing.lines)
