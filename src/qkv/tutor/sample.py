"""A short conversation to try a grader on: one answer right at once, one corrected, one wrong to the end."""

from __future__ import annotations

from importlib.resources import files


def sample() -> str:
    """
    >>> sample().splitlines()[0]
    '# Problem session, question 1'
    """
    return files("qkv.tutor").joinpath("sample.md").read_text(encoding="utf-8")
