"""`--debug`, for every command: where an error was raised, which is otherwise told in one line."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

Debug = Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")]

_asked = False


def debugging() -> bool:
    return _asked


def forget() -> None:
    """A new call begins."""
    global _asked
    _asked = False


def ask(given: bool) -> None:
    """One --debug is enough, before the command's name or behind it."""
    global _asked
    _asked = _asked or given


def add_debug(*apps: typer.Typer) -> None:
    """All commands that were entered so far take `--debug` as well."""
    for app in apps:
        for command in app.registered_commands:
            if command.callback is not None:
                command.callback = _with_debug(command.callback)


def _with_debug(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same command with one option more: typer reads options off signatures."""

    @functools.wraps(function)
    def run(*given: Any, debug: bool = False, **options: Any) -> Any:
        ask(debug)
        try:
            return function(*given, **options)
        except typer.Exit as ended:
            if debugging() and ended.__context__ is not None:  # what the command has told in a line
                traceback.print_exception(ended.__context__)
            raise

    # Evaluated where the function stands: its annotations are names of its own file.
    signature = inspect.signature(function, eval_str=True)
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), debug])  # type: ignore[attr-defined]
    run.__annotations__ = inspect.get_annotations(function, eval_str=True) | {"debug": Debug}
    return run
