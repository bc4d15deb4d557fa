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


KvCache = Annotated[
    str, typer.Option("--kv-cache", help="How keys and values are kept: f32, f16, bf16 or int8.", metavar="FORMAT")
]


@app.command(epilog='Example: qkv generate ./SmolLM2 --prompt "Once upon a time" --kv-cache int8 --compare')
def generate(
    model: Annotated[str, typer.Argument(help="A folder with config.json and safetensors, or a GGUF file.")],
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="What to go on from; may be given again.")],
    new: Annotated[int, typer.Option("--new", "-n", help="How many tokens at most.", min=1)] = 64,
    kv_cache: KvCache = "f32",
    compare: Annotated[bool, typer.Option("--compare", help="Run PyTorch's default beside it.")] = False,
    temperature: Annotated[float, typer.Option(help="0 takes the most probable token.", min=0.0)] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most probable.", min=1)] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from this much probability.", min=0.0, max=1.0)] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.", min=0, max=2**63 - 1)] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    as_json: AsJson = False,
) -> None:
    """Generate text with a local checkpoint of transformers on qkv's kernels and caches."""
    formats = ("f32", "f16", "bf16", "int8")
    if kv_cache not in formats:
        raise typer.BadParameter(f"{kv_cache!r} is none of {', '.join(formats)}", param_hint="--kv-cache")
    from .generate import Options, show, show_json

    options = Options(model, prompt, new, kv_cache, compare, temperature, top_k, top_p, seed, chat)
    show_json(options) if as_json else show(options)


def main() -> None:
    """Run, and end bad input in one line: exit 2 for wrong words, 1 for the rest, no traceback."""
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the program runs
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
