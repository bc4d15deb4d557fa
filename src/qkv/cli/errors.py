"""Errors of the command line: one line each, and the traceback with `--debug`.

Exit code 2 says that the arguments cannot be used; 1, that the work failed, or that something does not hold.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from ..errors import OptionError, QkvError, complaint

Debug = Annotated[bool, typer.Option("--debug", help="Show where an error was raised")]

# The base of what typer raises for a command line that it cannot parse; typer does not export it.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]  # type: ignore[assignment]

_debugging = False


class UsageError(OptionError):
    """Arguments of the command line that cannot be used, or not together."""


def debugging() -> bool:
    return _debugging


def reset_debugging() -> None:
    global _debugging
    _debugging = False


def set_debugging(given: bool) -> None:
    """One --debug is enough, before or after the command's name."""
    global _debugging
    _debugging = _debugging or given


def prepare(app: typer.Typer, names: Mapping[str, Mapping[str, str]]) -> None:
    """Give `--debug` to all commands that the app has so far; their errors name options, not the library's arguments.

    Args:
        app: the commands.
        names: for a command, what it calls arguments of the library that are not its own options.
    """
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _prepared(command.callback, names.get(command.callback.__name__, {}))


def _prepared(function: Callable[..., Any], names: Mapping[str, str]) -> Callable[..., Any]:
    # Evaluated here: the annotations are names of the function's module.
    signature = inspect.signature(function, eval_str=True)
    options = {**_options(signature), **names}

    @functools.wraps(function)
    def run(*arguments: Any, debug: bool = False, **given: Any) -> Any:
        set_debugging(debug)
        try:
            return function(*arguments, **given)
        except QkvError as error:
            raise with_options(error, options) from error

    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), debug])  # type: ignore[attr-defined]
    run.__annotations__ = inspect.get_annotations(function, eval_str=True) | {"debug": Debug}
    return run


def _options(signature: inspect.Signature) -> dict[str, str]:
    """The option that sets each parameter of a command; arguments without dashes are not among them."""
    found = {}
    for name, parameter in signature.parameters.items():
        for info in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(info, typer.models.OptionInfo):
                # In an Annotated, typer takes the first name for a default.
                names = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
                found[name] = _longest(names or [f"--{name.replace('_', '-')}"])
    return found


def with_options(error: QkvError, options: Mapping[str, str]) -> QkvError:
    """The error under the name of the command's option, where its message begins with an argument of the library.

    >>> from qkv.errors import OptionError
    >>> with_options(OptionError("path: got nothing, wanted a file."), {"path": "MODEL"})
    OptionError('MODEL: got nothing, wanted a file.')
    """
    name, colon, rest = str(error).partition(": ")
    if name in options and error.args == (str(error),):
        return type(error)(f"{options[name]}{colon}{rest}")
    return error


def _longest(names: Sequence[str]) -> str:
    """The first name with two dashes; some options have only a short one."""
    return next((name for name in names if name.startswith("--")), names[0])


def exit_code(error: Exception) -> int:
    """2 where the arguments cannot be used, else 1.

    >>> exit_code(OptionError("--batch: got 0, wanted 1.")), exit_code(MemoryError())
    (2, 1)
    """
    if isinstance(error, QkvError):
        return 2 if isinstance(error, ValueError | TypeError) else 1  # what qkv raises of an argument is one of them
    return getattr(error, "exit_code", 1)


def message(error: Exception) -> str:
    """The error in one line; a formula that cannot be read is printed below it, with the place of the error."""
    if isinstance(error, QkvError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return complaint("file", f"{error.filename!r} ({error.strerror})", "a file that can be used")
    if isinstance(error, OSError):
        return str(error)
    if isinstance(error, typer.Abort):
        return "aborted"
    if isinstance(error, ClickError):
        return _click_message(error)
    if isinstance(error, MemoryError):
        return f"out of memory{f': {error}' if str(error) else ''}"
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"internal error: {what}. Run the same command with --debug to see where"


def _click_message(error: Any) -> str:
    """What typer refuses, in the words of other errors."""
    context = getattr(error, "ctx", None)
    path = "qkv" if context is None or context.parent is None else f"qkv {context.info_name}"
    hint = f"{path} --help lists the options"
    parameter, kind = getattr(error, "param", None), type(error).__name__
    if kind == "MissingParameter" and parameter is not None:
        return complaint(_shown(parameter), "nothing", "a value", _example(context) or hint)
    if kind == "BadParameter" and parameter is not None:
        given, wanted = _refused(error, parameter)
        return complaint(_shown(parameter), given, wanted, hint)
    if kind == "NoSuchOption":
        near = difflib.get_close_matches(error.option_name, error.possibilities or (), 1, 0)
        nearest = f"the nearest is {near[0]}; {path} --help lists all" if near else hint
        return complaint("option", repr(error.option_name), f"an option of {path}", nearest)
    text = " ".join(getattr(error, "format_message", error.__str__)().split()).rstrip(".")
    if kind == "BadOptionUsage":
        bare = text.endswith("does not take a value")
        return complaint(error.option_name, *(("a value", "none") if bare else ("nothing", "a value")))
    if found := re.fullmatch(r"Got unexpected extra argument\(s\) \((.*)\)", text):
        return complaint("arguments", repr(found[1]), f"no more for {path}", hint)
    if found := re.match(r"No such command '(.*?)'(?:\. Did you mean '(.*)'\?)?", text):
        near = f"the nearest is {found[2]}; " if found[2] else ""
        return complaint("command", repr(found[1]), "a command of qkv", f"{near}qkv --help lists all")
    return f"{text}. Hint: {hint}."


def _shown(parameter: Any) -> str:
    """The parameter as help texts print it."""
    return _longest(parameter.opts) if parameter.param_type_name == "option" else parameter.display_name_raw


def _example(context: Any) -> str:
    """The example of the command's help."""
    found = getattr(getattr(context, "command", None), "epilog", None) or ""
    first = found.split("\n")[0]
    return f"for example {first.removeprefix('Example: ')}" if first else ""


def _refused(error: Any, parameter: Any) -> tuple[str, str]:
    """What was given and what was wanted, of a value that typer could not convert."""
    cause = error.__cause__
    if not hasattr(cause, "errors"):
        return "a value", error.message
    found = cause.errors()[0]
    kind = "a whole number" if "int" in cause.title else "a number"
    least, most = parameter.min, parameter.max
    if least is not None:
        kind += f" of at least {_number(least)}" if most is None else f" from {_number(least)} to {_number(most)}"
    return repr(found["input"]), kind


def _number(value: float) -> str:
    """A bound as people write it."""
    return "2^63 - 1" if value == 2**63 - 1 else f"{value:g}" if isinstance(value, float) else f"{value:,}"
