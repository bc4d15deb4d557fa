"""The command line: `qkv tour` and what later commands join it. What needs no tensors imports no torch."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer

from .. import __version__
from ..render.escapes import PLAIN, clean
from .debugging import Debug, add_debug, ask, debugging, forget
from .endings import Misspelt, told
from .teaching import commands

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
    debug: Debug = False,
) -> None:
    """Attention, one equation: computed, costed, proved and taught."""
    ask(debug)


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


def _sized(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Sizes by hand", show_default=False)


@app.command(epilog="Example: qkv plan --model llama-3-8b --context 8192 --hardware h100-sxm --cache int8")
def plan(
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A model by name; may be given again.")
    ] = None,
    hardware: Annotated[list[str] | None, typer.Option(help="A machine by name (here); may be given again.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of each sequence (8192, or all it was made for).")] = None,
    batch: Annotated[int, typer.Option(help="Sequences that are decoded together.")] = 1,
    weights: Annotated[str, typer.Option(help="float32, bfloat16, float16, int8 or int4.")] = "bfloat16",
    cache: Annotated[str, typer.Option(help="The same, for keys and values.")] = "bfloat16",
    prompt: Annotated[int | None, typer.Option(help="Tokens before the first new one, or of the source.")] = None,
    machines: Annotated[int | None, typer.Option(help="Show how it scales to so many machines.")] = None,
    link: Annotated[
        str | None, typer.Option(help="Between them: 10GBps, 100Gbit, 10gbe … (100gbe).", metavar="GBps")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(help="A config.json, or the folder that holds it.")] = None,
    layers: Annotated[int | None, _sized("Layers.", "--layers")] = None,
    width: Annotated[int | None, _sized("Numbers of a token between layers.", "--width")] = None,
    heads: Annotated[int | None, _sized("Query heads.", "--heads")] = None,
    kv_heads: Annotated[int | None, _sized("Key/value heads (as many).", "--kv-heads")] = None,
    head_width: Annotated[int | None, _sized("Numbers of a head (width / heads).", "--head-width")] = None,
    ff: Annotated[int | None, _sized("Width of the feed-forward network (4 width).", "--ff")] = None,
    gated: Annotated[bool | None, _sized("Three matrices in it, or two (gated).", "--gated/--no-gated")] = None,
    vocabulary: Annotated[int | None, _sized("Tokens that there are (32000).", "--vocabulary")] = None,
    tied: Annotated[bool | None, _sized("Whether logits use the embedding (untied).", "--tied/--untied")] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the numbers as CSV and nothing else.")] = False,
    plot: Annotated[str | None, typer.Option(help="Draw into FILE.svg or FILE.html.", metavar="FILE")] = None,
    names: Annotated[bool, typer.Option("--list", help="List models and machines.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Show what other tools count, and why it differs.")] = False,
) -> None:
    """Say what a model will take on a machine: time, memory, bottleneck, and where that changes."""
    from .plan import Options, WrongWord, run, show_list

    if names:
        show_list(as_json)
        return
    sizes = {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "head_width": head_width, "ff": ff}
    sizes |= {"gated": gated, "vocabulary": vocabulary, "tied": tied}
    asked = Options(model or [], config or [], hardware or ["here"], sizes, context, batch, weights, cache, prompt)
    asked = asked._replace(spread=machines, link=link)
    try:
        run(asked, as_json=as_json, as_csv=as_csv, plot=plot, audit=audit)
    except WrongWord as error:
        typer.echo(clean(f"qkv: {error}"), err=True)
        raise typer.Exit(2) from None


@app.command(epilog="Example: qkv calibrate, and later qkv calibrate --show")
def calibrate(
    show: Annotated[bool, typer.Option("--show", help="Show the figures that are kept, and measure nothing.")] = False,
    ranks: Annotated[
        int | None,
        typer.Option(help="Measure attention over up to so many processes instead.", min=2, max=64, show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine, in about a quarter of a minute, so that auto, explain and plan know what it can do."""
    from .calibrate import calibrate as run

    run(show, as_json, ranks)


@app.command(epilog="Example: qkv prove scores --report scores.html")
def prove(
    claim: Annotated[list[str] | None, typer.Argument(help="Claims by name (all of them).", show_default=False)] = None,
    report: Annotated[
        str | None, typer.Option(help="Write everything into FILE.html, .pdf, .md, .tex or .ipynb.", metavar="FILE")
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="List the claims and run none.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out those that train.")] = False,
    as_json: AsJson = False,
) -> None:
    """Prove and test what is claimed of attention, and say where documents are wrong about it."""
    from .prove import Options, WrongWord, run, show_list

    if names:
        show_list(as_json)
        return
    try:
        holds = run(Options(claim or [], report, as_json, quick))
    except WrongWord as error:
        typer.echo(clean(f"qkv: {error}"), err=True)
        raise typer.Exit(2) from None
    if not holds:
        raise typer.Exit(1)


# An answer may begin with a minus sign, so nothing here is a short option.
@app.command(
    epilog=r"""Example: qkv check 'd mu^2' --gold '\mu^T \mu' --let 'mu: vector\[d]'

With a problem of the bank: qkv check scaling a 'd mu^2' --hint 1""",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
def check(
    context: typer.Context,
    answer: Annotated[
        list[str] | None,
        typer.Argument(
            help="LaTeX, or plain text, in quotes; before it a problem and a part, where no --gold is given.",
            metavar="[PROBLEM PART] ANSWER",
            show_default=False,
        ),
    ] = None,
    gold: Annotated[str | None, typer.Option(help="The right answer.", show_default=False)] = None,
    let: Annotated[
        list[str] | None,
        typer.Option(help="A name and its type; may be given again.", metavar='"NAME: TYPE"', show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The variant of the problem.", min=0, max=2**63 - 1, show_default=False)
    ] = None,
    hint: Annotated[int | None, typer.Option(help="A hint for the part: 1 to 3.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether an answer is right: by proof, by trial, under a condition, or why not."""
    if gold is None and answer in (None, ["-h"]) and not let and seed is None and hint is None:
        typer.echo(context.get_help())
        raise typer.Exit(0 if answer else 2)
    from .check import WrongWord, run

    try:
        right = run(answer or [], gold, let or [], seed, hint, as_json)
    except WrongWord as error:
        typer.echo(clean(f"qkv: {error}"), err=True)
        raise typer.Exit(2) from None
    if not right:
        raise typer.Exit(1)


@app.command(epilog="Example: qkv lab --port 8000 --models ./checkpoints")
def lab(
    port: Annotated[
        int | None,
        typer.Option(
            help="Where to listen (8765, or any free one; 0 takes any).", min=0, max=65535, show_default=False
        ),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
    models: Annotated[
        str | None, typer.Option(help="A folder of checkpoints that the page may show.", metavar="DIR")
    ] = None,
    host: Annotated[str, typer.Option(help="Only this machine can reach the default.")] = "127.0.0.1",
    as_json: AsJson = False,
) -> None:
    """Open the lab: a local page on which attention can be touched. Ctrl-C ends it."""
    from .lab import run

    run(host, port, models, not no_browser, as_json)


add_debug(app, commands)
app.add_typer(commands)


def main() -> None:
    """Run, and end bad input in one line: exit 2 for wrong words, 1 for the rest, no traceback without --debug."""
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the program runs
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a sign shows one that it can, or a question mark, and not a traceback.
        sys.stdout.reconfigure(errors=PLAIN)
    forget()
    try:
        code = app(standalone_mode=False)
    except Exception as error:  # nobody is left above who could do better
        if isinstance(error, BrokenPipeError):
            # The reader has gone: nothing is left to say, and nothing may be said at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        if debugging() and not isinstance(error, Misspelt):
            raise
        words = told(error)
        if words:
            typer.echo(clean(f"qkv: {words}"), err=True)
        sys.exit(getattr(error, "exit_code", 1))
    sys.exit(code if isinstance(code, int) else 0)
