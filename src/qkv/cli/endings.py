"""The last line of a command that did not do what it was asked to."""

from __future__ import annotations

import typer

from ..errors import QkvError

# What typer raises for words that it cannot read; it gives the base of all of them no name.
Misspelt: type[Exception] = typer.BadParameter.__mro__[2]  # type: ignore[assignment]


def told(error: Exception) -> str:
    """The error in one line; nothing where there is nothing to say."""
    if isinstance(error, QkvError | OSError):
        return str(error)
    if isinstance(error, typer.Abort):
        return "given up"
    if isinstance(error, Misspelt):
        return _misspelt(error)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"a fault of qkv's own: {what}. The same words with --debug show where"


def _misspelt(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help())
        return ""
    message = getattr(error, "format_message", error.__str__)()
    words = " ".join(message.split()).rstrip(".")
    path = "qkv" if context is None or context.parent is None else f"qkv {context.info_name}"
    return f"{words}. Hint: {path} --help says what there is."
