"""qkv's errors. A message names the argument, what was given, what was expected, and what to do.

Each error of an argument is also a `ValueError` or a `TypeError`, for code that catches those.
"""

from __future__ import annotations

from unicodedata import category

_CONTROLS = ("Cc", "Cf", "Cs")  # categories of control characters, marks of direction and surrogates
_MAX_GIVEN = 1200  # characters of a value that a message repeats


class QkvError(Exception):
    """The base class of all errors that qkv raises on purpose."""


class ShapeError(QkvError, ValueError):
    """Sizes that do not fit together."""


class DtypeError(QkvError, TypeError):
    """A tensor of a type, dtype, layout or device that the call cannot take."""


class MaskError(QkvError, ValueError):
    """A mask that does not fit the call, or is ambiguous."""


class MaskTypeError(MaskError, TypeError):
    """A mask that is not boolean."""


class OptionError(QkvError, ValueError):
    """A value that an option cannot have."""


class OptionTypeError(OptionError, TypeError):
    """An option of a wrong type."""


class BackendRefused(QkvError, ValueError):
    """A backend that was named cannot run this call; `reasons` says why."""

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class Disagreement(QkvError, ValueError):
    """Ranks were given different arguments, or one of them refused its arguments."""


class PeerLost(QkvError, RuntimeError):
    """A rank did not answer, or is gone; `peers` lists the candidates. No argument is wrong, so this is neither a
    ValueError nor a TypeError."""

    def __init__(self, message: str, peers: list[int] | None = None) -> None:
        super().__init__(message)
        self.peers = peers or []


class MissingExtra(QkvError, ImportError):
    """A package that an optional part of qkv needs is not installed. Not an argument's fault: only an ImportError."""

    def __init__(self, part: str, package: str, extra: str) -> None:
        super().__init__(f"{part} needs {package}; not installed here. Hint: pip install 'qkv[{extra}]'.")


class MathsError(QkvError, ValueError):
    """A formula that cannot be used: `source` is its text and `span` the part of it that is wrong."""

    def __init__(self, reason: str, source: str = "", span: tuple[int, int] = (0, 0), suggestion: str = "") -> None:
        self.reason, self.source, self.span, self.suggestion = reason, source, span, suggestion
        message = f"{reason}; did you mean {suggestion}?" if suggestion else reason
        super().__init__(f"{message}\n{point_at(source, span)}" if source else message)


class Unreadable(MathsError):
    """A text that qkv cannot read as mathematics; `undeclared` are names in it that are not declared."""

    undeclared: tuple[str, ...] = ()


class IllTyped(MathsError, TypeError):
    """A formula that can be read, but whose types or shapes do not fit."""


def point_at(source: str, span: tuple[int, int], width: int = 72) -> str:
    """The line of `source` with `span` in it, cut to `width`, with carets under the span.

    Args:
        source: The text of a formula.
        span: Where in it, from and up to.
        width: The most characters of a line.

    Returns:
        Two lines.

    >>> print(point_at("d mu^2 + 1", (2, 6)))
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
    """The message of an error: the argument, what was given, what was expected; then what to do.

    Args:
        argument: Its name, as the caller wrote it.
        given: What was given.
        wanted: What was expected.
        hint: What to do.

    Returns:
        One line, with control characters escaped.

    >>> complaint("dropout", 1.5, "a probability between 0 and 1", "0.0 turns it off")
    'dropout: got 1.5, wanted a probability between 0 and 1. Hint: 0.0 turns it off.'
    """
    text = f"{argument}: got {_shorten(str(given))}, wanted {_shorten(wanted)}."
    return _printable(f"{text} Hint: {hint}." if hint else text)


def _printable(text: str) -> str:
    """Text from a file may have control characters, which must not reach a terminal."""
    if text.isprintable():
        return text
    return "".join(repr(sign)[1:-1] if category(sign) in _CONTROLS and sign != "\n" else sign for sign in text)


def _shorten(text: str) -> str:
    """Text from a file may be as long as the file."""
    return text if len(text) <= _MAX_GIVEN else f"{text[:_MAX_GIVEN]}…"
