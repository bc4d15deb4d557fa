"""Questions in one paragraph: "(a) … (b) …" within a line."""

from __future__ import annotations

import re


def on_own_lines(text: str) -> str:
    """A question with each of its lettered parts on a line of its own.

    >>> on_own_lines("Given x. (a) Find y. (b) Find z.")
    'Given x.\\n(a) Find y.\\n(b) Find z.'
    """
    return re.sub(r"(?<=[.:?;,])[ \t]+(?=\([a-h]\)[ \t])", "\n", text)
