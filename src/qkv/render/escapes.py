"""Escapes for each output format: whatever a text holds is shown, and never interpreted."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

# Control characters, marks of the direction of text, and what UTF-8 cannot encode.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "zeta": "ζ", "eta": "η", "theta": "θ",
    "iota": "ι", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ",
    "tau": "τ", "upsilon": "υ", "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ",
    "Theta": "Θ", "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π", "Sigma": "Σ", "Upsilon": "Υ", "Phi": "Φ", "Psi": "Ψ",
    "Omega": "Ω", "ell": "ℓ",
}  # fmt: skip
_LATEX = {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}", "-": "-{}",
    **{sign: f"\\{sign}" for sign in "{}$&#_%"},
}  # fmt: skip
# Letters and signs that LaTeX's text fonts lack and its mathematics has.
_LATEX_MATHS = {
    **{sign: f"\\{name}" for name, sign in GREEK.items()},
    "ε": r"\varepsilon", "φ": r"\varphi",
    **{sign: f"^{digit}" for sign, digit in zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)},
    **{sign: f"_{digit}" for sign, digit in zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True)},
    "ᵀ": r"^\top", "⊤": r"\top", "⁻": "^-", "ᵢ": "_i", "ⱼ": "_j", "ₖ": "_k", "≤": r"\le", "≥": r"\ge", "≠": r"\ne",
    "≈": r"\approx", "∞": r"\infty", "√": r"\surd", "‖": r"\|", "×": r"\times", "·": r"\cdot", "±": r"\pm", "−": "-",
    "→": r"\to", "∂": r"\partial", "∑": r"\sum", "∏": r"\prod", "⊙": r"\odot", "∈": r"\in", "ℝ": r"\mathbb{R}",
    "𝔼": r"\mathbb{E}", "𝟏": r"\mathbf{1}", "𝟎": r"\mathbf{0}",
}  # fmt: skip


def clean(text: str) -> str:
    """The text with a replacement for each control character; new lines and tabs stay.

    >>> clean("a\\x1b[31mb")
    'a\N{REPLACEMENT CHARACTER}[31mb'
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def json_text(found: Any, indent: int | None = 2) -> str:
    """Readable JSON without control characters, which are escaped.

    >>> print(json_text({"said": "μ \x9b31m"}, indent=None))
    {"said": "μ \\u009b31m"}
    """
    text = json.dumps(found, indent=indent, ensure_ascii=False)
    return _CONTROL.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def line(text: str) -> str:
    """The clean text on one line; spaces at its ends stay."""
    return re.sub(r"\s+", " ", clean(text))


def typst(text: str) -> str:
    """A typst string, quotes included.

    >>> print(typst('#eval("1")'))
    "#eval(\\"1\\")"
    """
    text = clean(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'.replace("\n", "\\n").replace("\t", "\\t")


def latex(text: str) -> str:
    r"""A text in LaTeX.

    >>> print(latex(r"\input{x} 5% of $μ$"))
    \textbackslash{}input\{x\} 5\% of \$\ensuremath{\mu}\$
    """
    return "".join(
        f"\\ensuremath{{{_LATEX_MATHS[sign]}}}" if sign in _LATEX_MATHS else _LATEX.get(sign, sign)
        for sign in line(text)
    )


def markdown(text: str) -> str:
    """Words in Markdown, on one line.

    >>> print(markdown("a*b <i> [x](y) 1. $"))
    a\\*b &lt;i&gt; \\[x\\]\\(y\\) 1\\. \\$
    """
    text = line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]()#|$~!:@])", r"\\\1", text)
    # Characters that begin a list, a rule or a title.
    text = re.sub(r"^(\s*)([-+=])", r"\1\\\2", text)
    return re.sub(r"(\d)([.)])(?=\s|$)", r"\1\\\2", text)


def markdown_code(text: str) -> str:
    """A span of code with a fence longer than any run of backticks in it."""
    text = line(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    gap = " " if "`" in text or text != text.strip() or not text else ""
    return f"{fence}{gap}{text}{gap}{fence}"


_PLAIN_SIGNS = {
    **{sign: name for name, sign in GREEK.items()},
    # Of the same width, so that columns stay aligned.
    **dict(zip("₀₁₂₃₄₅₆₇₈₉ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", "0123456789aehijklmnoprstuvx", strict=True)),
    **{sign: f"^{plain}" for sign, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ", "0123456789-T", strict=True)},
    **dict.fromkeys("⎡⎢⎣⎤⎥⎦⎛⎜⎝⎞⎟⎠│", "|"), **dict.fromkeys("−–—─━", "-"), **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("‘’′", "'"), **dict.fromkeys("·⋅⊙", "*"), "×": "x", "√": "sqrt ", "∑": "sum", "∏": "prod",
    "‖": "||", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "→": "->", "∈": "in", "∞": "inf", "±": "+-", "∂": "d",
    "…": "...", "⊤": "T", "ℝ": "R", "𝔼": "E", "𝟏": "1", "𝟎": "0",
}  # fmt: skip
PLAIN = "qkv.plain"  # name of the codec error handler that replaces characters which the terminal lacks


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters by ASCII spellings, as − by -, or by a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    written = "".join(_PLAIN_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end])
    # An exponent of several digits has one ^ before it.
    return re.sub(r"(?<=\^[-\d])\^|(?<=\^[-\d]\d)\^", "", written), error.end


codecs.register_error(PLAIN, _plain)
