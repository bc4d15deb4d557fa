"""Errors of the command line: one line each, and the traceback with `--debug`."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..errors import QkvError
from ..render.escapes import clean

Debug = Annotated[bool, typer.Option("--debug", help="Show where an error was raised")]

# The base of what typer raises for a command line that it cannot parse; typer does not export it.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]  # type: ignore[assignment]

_debugging = False


class UsageError(Exception):
    """The command line is wrong: the command ends with exit code 2."""


def debugging() -> bool:
    return _debugging


def reset_debugging() -> None:
    global _debugging
    _debugging = False


def set_debugging(given: bool) -> None:
    """One --debug is enough, before or after the command's name."""
    global _debugging
    _debugging = _debugging or given


def add_debug_option(app: typer.Typer) -> None:
    """Give `--debug` to all commands that the app has so far."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_debug(command.callback)


def _with_debug(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command with `--debug`, which typer reads off the signature; a UsageError ends it with exit code 2."""

    @functools.wraps(function)
    def run(*arguments: Any, debug: bool = False, **options: Any) -> Any:
        set_debugging(debug)
        try:
            return function(*arguments, **options)
        except UsageError as error:
            typer.echo(clean(f"qkv: {error}"), err=True)
            if debugging():
                traceback.print_exception(error)
            raise typer.Exit(2) from None

    # Evaluated here: the annotations are names of the function's module.
    signature = inspect.signature(function, eval_str=True)
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), debug])  # type: ignore[attr-defined]
    run.__annotations__ = inspect.get_annotations(function, eval_str=True) | {"debug": Debug}
    return run


def with_options(error: QkvError, options: dict[str, str]) -> QkvError:
    """The error under the name of the command's option, where its message begins with an argument of the library.

    >>> from qkv.errors import OptionError
    >>> with_options(OptionError("path: got nothing, wanted a file."), {"path": "MODEL"})
    OptionError('MODEL: got nothing, wanted a file.')
    """
    name, colon, rest = str(error).partition(": ")
    if name in options and error.args == (str(error),):
        return type(error)(f"{options[name]}{colon}{rest}")
    return error


def message(error: Exception) -> str:
    """The error in one line; empty where nothing needs to be printed."""
    if isinstance(error, QkvError | OSError):
        return str(error)
    if isinstance(error, typer.Abort):
        return "aborted"
    if isinstance(error, ClickError):
        return _click_message(error)
    if isinstance(error, MemoryError):
        return f"out of memory{f': {error}' if str(error) else ''}"
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"internal error: {what}. Run the same command with --debug to see where"


def _click_message(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help())
        return ""
    text = getattr(error, "format_message", error.__str__)()
    text = " ".join(text.split()).rstrip(".")
    path = "qkv" if context is None or context.parent is None else f"qkv {context.info_name}"
    return f"{text}. Hint: {path} --help lists the options."
