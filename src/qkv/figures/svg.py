"""SVG as text: elements, escapes, and the widths of letters."""

from __future__ import annotations

import re
from unicodedata import combining, east_asian_width

# Characters that XML 1.0 cannot contain, lone surrogates included; they are replaced.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

# Widths in em of a wide sans serif font: what fits here fits in most fonts.
_WIDTHS = {
    **dict.fromkeys("ijlIJ.,:;'`|! ·", 0.35),
    **dict.fromkeys("ftr()[]/\\-", 0.43),
    **dict.fromkeys("ckszxyvL", 0.6),
    **dict.fromkeys("wOQGDNHU+<>=~−→×≤≥&", 0.85),
    **dict.fromkeys("mMW@%—…", 1.0),
}
BOLD = 1.12  # width of bold letters relative to normal ones
LINE = 1.3  # line height relative to the font size


def escape(text: str) -> str:
    """
    >>> escape('a < "b" & c')
    'a &lt; &quot;b&quot; &amp; c'
    """
    text = drawable(text)
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(sign, name)
    return text


def drawable(text: str) -> str:
    """The text with a replacement for each character that XML cannot contain.

    >>> drawable("a\\x00b")
    'a\N{REPLACEMENT CHARACTER}b'
    """
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def number(value: float) -> str:
    """A coordinate with at most two decimals.

    >>> number(12.0), number(-0.001), number(3.14159)
    ('12', '0', '3.14')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def tag(name: str, *inside: str, **attributes: str | float) -> str:
    """An element. Words of attributes are joined by hyphens, and what `inside` holds is escaped already.

    >>> tag("text", escape("a&b"), class_="qkv-tick", font_size=12, x=1.5)
    '<text class="qkv-tick" font-size="12" x="1.5">a&amp;b</text>'
    """
    text = ""
    for key, value in attributes.items():
        shown = escape(value) if isinstance(value, str) else number(value)
        text += f' {_ATTRIBUTES.get(key, key.replace("_", "-"))}="{shown}"'
    return f"<{name}{text}>{''.join(inside)}</{name}>" if inside else f"<{name}{text}/>"


_ATTRIBUTES = {"class_": "class", "viewBox": "viewBox"}


def title(text: str) -> str:
    """The tooltip of an element."""
    return tag("title", escape(text))


def text_width(text: str, size: float) -> float:
    return size * sum(map(_em, drawable(text)))


def wrap(text: str, width: float, size: float, most: int = 99) -> list[str]:
    """At most `most` lines that fit `width`; long words are broken, and cut text ends with an ellipsis.

    >>> wrap("time per token over context", 100, 12)
    ['time per token', 'over context']
    """
    lines, line = [], ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if text_width(joined, size) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        pieces = _pieces(word, width, size)
        lines += pieces[:-1]
        line = pieces[-1]
    lines = [*lines, line] if line else lines
    if len(lines) > most:
        lines = lines[:most]
        while lines[-1] and text_width(lines[-1] + "…", size) > width:
            lines[-1] = lines[-1][:-1]
        lines[-1] += "…"
    return lines


def _pieces(word: str, width: float, size: float) -> list[str]:
    pieces = [""]
    for letter in word:
        if pieces[-1] and text_width(pieces[-1] + letter, size) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces


def _em(letter: str) -> float:
    if combining(letter):
        return 0
    if east_asian_width(letter) in "WF":
        return 1.05
    return _WIDTHS.get(letter, 0.74 if letter.isupper() or ord(letter) > 0x24F else 0.645)
