"""What qkv says when it cannot do what was asked.

Every error names the argument, what was given, what was wanted and what to do, and is also one of
Python's own: code that catches `ValueError` or `TypeError` goes on working.
"""

from __future__ import annotations

_LONGEST = 1200  # characters of what was given that an error repeats


class QkvError(Exception):
    """The root of every error that qkv raises on purpose."""


class ShapeError(QkvError, ValueError):
    """Sizes that do not fit together."""


class DtypeError(QkvError, TypeError):
    """A tensor of a kind, dtype, layout or device that the call cannot take."""


class MaskError(QkvError, ValueError):
    """A mask that does not fit the call, or that could be read in two ways."""


class MaskTypeError(MaskError, TypeError):
    """A mask that is not boolean."""


class OptionError(QkvError, ValueError):
    """A number or a word that an option cannot be."""


class OptionTypeError(OptionError, TypeError):
    """An option of a wrong type."""


class BackendRefused(QkvError, ValueError):
    """A backend that was asked for by name cannot run this call; `reasons` says why."""

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class Disagreement(QkvError, ValueError):
    """Ranks that were given different arguments, or of which one refused its own."""


class PeerLost(QkvError, RuntimeError):
    """A rank that did not answer, or is gone; `peers` are those that may be meant. It is nobody's argument that is
    wrong, so this is neither a ValueError nor a TypeError."""

    def __init__(self, message: str, peers: list[int] | None = None) -> None:
        super().__init__(message)
        self.peers = peers or []


class MathsError(QkvError, ValueError):
    """Mathematics that was written and cannot be taken: `source` is the text and `span` the offending part of it."""

    def __init__(self, reason: str, source: str = "", span: tuple[int, int] = (0, 0), suggestion: str = "") -> None:
        self.reason, self.source, self.span, self.suggestion = reason, source, span, suggestion
        said = f"{reason}; did you mean {suggestion}?" if suggestion else reason
        super().__init__(f"{said}\n{pointed(source, span)}" if source else said)


class Unreadable(MathsError):
    """A text that is no mathematics that qkv reads."""


class IllTyped(MathsError, TypeError):
    """Mathematics that can be read and makes no sense with the types of its names."""


def pointed(source: str, span: tuple[int, int], width: int = 72) -> str:
    """The line of `source` that holds `span`, cut to `width`, with carets under the span.

    >>> print(pointed("d mu^2 + 1", (2, 6)))
      d mu^2 + 1
        ^^^^
    """
    start, stop = span
    first = source.rfind("\n", 0, start) + 1
    line = source[first:].split("\n", 1)[0]
    cut = max(0, start - first - width // 2)
    shown = line[cut : cut + width]
    marks = max(1, min(stop - start, len(shown) - (start - first - cut)))
    return f"  {shown}\n  {' ' * (start - first - cut)}{'^' * marks}"


def complaint(argument: str, given: object, wanted: str, hint: str = "") -> str:
    """One sentence: the argument, what was given, what was wanted; then what to do.

    >>> complaint("dropout", 1.5, "a probability between 0 and 1", "0.0 turns it off")
    'dropout: got 1.5, wanted a probability between 0 and 1. Hint: 0.0 turns it off.'
    """
    text = f"{argument}: got {_cut(str(given))}, wanted {_cut(wanted)}."
    return f"{text} Hint: {hint}." if hint else text


def _cut(text: str) -> str:
    """What a stranger's file says may be as long as the file."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
