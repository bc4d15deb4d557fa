"""The command line: `qkv tour` and what later commands join it. What needs no tensors imports no torch."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from .. import __version__
from ..errors import QkvError

app = typer.Typer(
    name="qkv",
    help="Attention, one equation: computed, costed, proved and taught.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON and nothing else.")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"qkv {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attention, one equation: computed, costed, proved and taught."""


@app.command(epilog="Example: qkv tour --json")
def tour(as_json: AsJson = False) -> None:
    """Show what qkv does, on a built-in example, in a few seconds."""
    from .tour import show, show_json

    show_json() if as_json else show()


def main() -> None:
    """Run, and end bad input in one line: exit 2 for wrong words, 1 for the rest, no traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a sign shows a question mark, and not a traceback.
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    except QkvError as error:
        typer.echo(f"qkv: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # The reader has gone: nothing is left to say, and nothing may be said at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        typer.echo(f"qkv: {error}", err=True)
        sys.exit(1)
