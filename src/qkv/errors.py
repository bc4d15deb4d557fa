"""What qkv says when it cannot do what was asked.

Every error names the argument, what was given, what was wanted and what to do, and is also one of
Python's own: code that catches `ValueError` or `TypeError` goes on working.
"""

from __future__ import annotations


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


class FormRefused(QkvError, ValueError):
    """A form that was asked for by name cannot run this call; `reasons` says why."""

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


def complaint(argument: str, given: object, wanted: str, hint: str = "") -> str:
    """One sentence: the argument, what was given, what was wanted; then what to do.

    >>> complaint("dropout", 1.5, "a probability between 0 and 1", "0.0 turns it off")
    'dropout: got 1.5, wanted a probability between 0 and 1. Hint: 0.0 turns it off.'
    """
    text = f"{argument}: got {given}, wanted {wanted}."
    return f"{text} Hint: {hint}." if hint else text
