"""Questions whose parts have no lines of their own: "(a) … (b) …" within a line, and "b(i) …" for two labels."""

from __future__ import annotations

import re


def on_own_lines(text: str) -> str:
    """A question with each of its lettered parts on a line of its own.

    >>> on_own_lines("Given x. (a) Find y. (b) Find z.")
    'Given x.\\n(a) Find y.\\n(b) Find z.'
    >>> on_own_lines("a(i) Find y.\\na(ii) Find z.")
    '(a) \\n(i) Find y.\\n(ii) Find z.'
    """
    text = re.sub(r"(?<=[.:?;,])[ \t]+(?=\([a-h]\)[ \t])", "\n", text)
    letter = ""
    lines = []
    for line in text.split("\n"):
        both = _BOTH.match(line)
        if both:
            lines += [*([f"({both[1]}) "] if both[1] != letter else []), f"({both[2]}) {line[both.end() :]}"]
        else:
            lines.append(line)
        label = both or _LETTER.match(line)
        letter = label[1] if label else letter
    return "\n".join(lines)


_BOTH = re.compile(r"[ \t>*#-]*\(?([a-h])\)?[ \t]?\((i{1,3}|iv|v)\)[*:.]*[ \t]+")
_LETTER = re.compile(r"[ \t>*#-]*\(?([a-h])[).][*:.]*[ \t]")
