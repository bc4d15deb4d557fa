"""The command line: the commands and their options. Each command's work is in the module of its name.

Modules are imported when their command runs: a command that needs no tensors does not import torch.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from .. import __version__
from ..errors import MissingExtra, OptionError, complaint
from ..render.escapes import PLAIN, clean
from .errors import Debug, debugging, exit_code, message, prepare, reset_debugging, set_debugging

ABOUT = "Compute, cost, prove and teach attention"
START = """qkv: attention, computed, costed, proved and taught

  compute   qkv generate model.gguf --prompt "Gravity is"
            qkv chat model.gguf             qkv serve model.gguf
  cost      qkv plan --model llama-3-8b --hardware h100-sxm
            qkv count --model llama-3-8b    qkv calibrate
  prove     qkv check 'd mu^2' --gold '\\mu^T \\mu' --let 'mu: vector[d]'
            qkv prove scores
  teach     qkv solve homework.pdf          qkv practice
            qkv grade chats/                qkv lab

Begin with: qkv tour        All commands: qkv --help        One: qkv plan --help
Shell completion: qkv --install-completion"""

app = typer.Typer(
    name="qkv",
    help=ABOUT,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else")]
LAST_SEED = 2**63 - 1


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"qkv {__version__}")
        raise typer.Exit


@app.callback(help=ABOUT)
def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version")
    ] = False,
    debug: Debug = False,
) -> None:
    set_debugging(debug)
    if context.invoked_subcommand is None:
        typer.echo(START)


@app.command(epilog="Example: qkv tour --json", rich_help_panel="Begin")
def tour(as_json: AsJson = False) -> None:
    """Show what qkv does on a built-in example, in a few seconds"""
    from .tour import show, show_json

    show_json() if as_json else show()


ModelFile = Annotated[
    str, typer.Argument(help="GGUF file, or a folder with config.json and safetensors", metavar="MODEL")
]
KvCache = Annotated[
    str,
    typer.Option(
        "--kv-cache", help="Store keys and values as f32, f16, bf16, int8, int4 or int8/int4", metavar="FORMAT"
    ),
]
Temperature = Annotated[
    float, typer.Option(help="Sample at this temperature; 0 takes the most probable token", min=0.0)
]
TopK = Annotated[int | None, typer.Option(help="Sample from the k most probable tokens", min=1)]
TopP = Annotated[
    float | None, typer.Option(help="Sample from the tokens that hold this much probability", min=0.0, max=1.0)
]
Activations = Annotated[
    str, typer.Option(help="Multiply weights by float32, or by int8, rounded in blocks", metavar="FORMAT")
]


@app.command(
    epilog='Example: qkv generate ./SmolLM2 --prompt "Once upon a time" --kv-cache int8 --compare',
    rich_help_panel="Compute",
)
def generate(
    model: ModelFile,
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="Continue this text; repeat for a batch")],
    new: Annotated[
        int, typer.Option("--new", "--max-new-tokens", "-n", help="Generate at most this many tokens", min=1)
    ] = 64,
    kv_cache: KvCache = "f32",
    compare: Annotated[bool, typer.Option("--compare", help="Run PyTorch's default attention too")] = False,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Annotated[
        int, typer.Option(help="Seed the sampling: the same seed gives the same text", min=0, max=LAST_SEED)
    ] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template")] = False,
    activations: Activations = "float32",
    keep: Annotated[
        int | None, typer.Option(help="Keep this many tokens in the cache of each layer", min=8, show_default=False)
    ] = None,
    evict: Annotated[
        str | None,
        typer.Option(
            help="Choose those of --keep: streaming (the first and the last; the default), h2o or snapkv",
            metavar="POLICY",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Generate text from a local model: a GGUF file, or a folder with safetensors"""
    _check_formats(kv_cache, activations)
    _check_sampling(temperature, top_k=top_k, top_p=top_p)
    from .generate import Options, show, show_json

    if evict is not None:
        _check_one_of("--evict", evict, ("streaming", "h2o", "snapkv"))
        if keep is None:
            raise OptionError(complaint("--evict", "it without --keep", "both", "--keep 512 keeps 512 tokens"))
    options = Options(
        model,
        new,
        kv_cache,
        temperature,
        top_k,
        top_p,
        seed,
        activations,
        prompt,
        compare,
        chat,
        keep,
        evict or "streaming",
    )
    show_json(options) if as_json else show(options)


def _check_formats(kv_cache: str, activations: str) -> None:
    _check_one_of("--kv-cache", kv_cache, ("f32", "f16", "bf16", "int8", "int4", "int8/int4"))
    _check_one_of("--activations", activations, ("float32", "int8"))


def _check_sampling(temperature: float, **limits: float | None) -> None:
    """With temperature 0 nothing is sampled, so nothing limits the samples."""
    given = [f"--{name.replace('_', '-')}" for name, limit in limits.items() if limit is not None]
    if given and not temperature:
        hint = "--temperature 0.7 samples; 0, the default, takes the most probable token"
        raise OptionError(complaint(", ".join(given), "it with --temperature 0", "a temperature above 0", hint))


def _check_one_of(option: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise OptionError(complaint(option, repr(given), f"one of {', '.join(known)}"))


@app.command(
    epilog='Example: qkv chat ./model.gguf --system "Answer in one sentence." --activations int8',
    rich_help_panel="Compute",
)
def chat(
    model: ModelFile,
    system: Annotated[str | None, typer.Option(help="Begin with this system message", show_default=False)] = None,
    new: Annotated[
        int, typer.Option("--new", "--max-new-tokens", "-n", help="Answer with at most this many tokens", min=1)
    ] = 1024,
    kv_cache: KvCache = "f32",
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed the sampling", min=0, max=LAST_SEED, show_default=False)
    ] = None,
    activations: Activations = "float32",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each answer with its figures as a line of JSON")
    ] = False,
) -> None:
    """Chat with a local model in the terminal, or line by line through a pipe"""
    _check_formats(kv_cache, activations)
    _check_sampling(temperature, top_k=top_k, top_p=top_p)
    from .chat import run
    from .generate import Options

    options = Options(model, new, kv_cache, temperature, top_k, top_p, seed, activations)
    if not run(options, system, as_json):
        raise typer.Exit(1)


def _size(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Sizes by hand", show_default=False)


def _name(help_text: str, *names: str, metavar: str = "SIZE") -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Sizes by hand", metavar=metavar, show_default=False)


@app.command(
    epilog="Example: qkv plan --model llama-3-8b --context 8192 --hardware h100-sxm --cache int8",
    rich_help_panel="Cost",
)
def plan(
    file: Annotated[
        str | None,
        typer.Argument(
            help="Plan this model: a name, or a GGUF file or a folder of safetensors in its own formats",
            metavar="[MODEL]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Plan this model, by name; repeatable")
    ] = None,
    hardware: Annotated[
        list[str] | None, typer.Option(help="Plan for this machine, by name (here); repeatable")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Set the tokens of each sequence (8192, or the model's limit if lower)")
    ] = None,
    batch: Annotated[int, typer.Option(help="Decode this many sequences together")] = 1,
    weights: Annotated[
        str | None, typer.Option(help="Store weights as float32, bfloat16, float16, int8, fp8 or int4 (bfloat16)")
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(help="Store keys and values as one of the same formats (bfloat16; float32 for a file)"),
    ] = None,
    prompt: Annotated[int | None, typer.Option(help="Set the tokens of the prompt, or of an encoder's source")] = None,
    machines: Annotated[int | None, typer.Option(help="Show how the plan scales to this many machines")] = None,
    link: Annotated[
        str | None,
        typer.Option(help="Link the machines at this rate: 10GBps, 100Gbit, 10gbe … (100gbe)", metavar="GBps"),
    ] = None,
    chip: Annotated[
        str | None,
        typer.Option(help="Plan for such a chip: rate=197T,bandwidth=820G,memory=16G", metavar="FIGURES"),
    ] = None,
    chips: Annotated[
        int | None, typer.Option(help="Divide weights and cache evenly over this many chips", min=1, show_default=False)
    ] = None,
    config: Annotated[list[str] | None, typer.Option(help="Read a config.json, or the folder that holds it")] = None,
    layers: Annotated[int | None, _size("Set the number of layers", "--layers")] = None,
    width: Annotated[int | None, _size("Set the width of a token between layers", "--width")] = None,
    heads: Annotated[int | None, _size("Set the number of query heads", "--heads")] = None,
    kv_heads: Annotated[int | None, _size("Set the number of key/value heads (as many)", "--kv-heads")] = None,
    head_width: Annotated[int | None, _size("Set the width of a head (width / heads)", "--head-width")] = None,
    ff: Annotated[int | None, _size("Set the width of the feed-forward network (4 width)", "--ff")] = None,
    gated: Annotated[
        bool | None, _size("Give the feed-forward network three matrices, or two (gated)", "--gated/--no-gated")
    ] = None,
    vocabulary: Annotated[int | None, _size("Set the number of different tokens (32000)", "--vocabulary")] = None,
    tied: Annotated[bool | None, _size("Use the embedding for the logits too (untied)", "--tied/--untied")] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else")] = False,
    plot: Annotated[
        str | None, typer.Option("--plot", "--to", "-o", help="Draw into FILE.svg or FILE.html", metavar="FILE")
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="List models, machines and links")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Show what other tools count, and why it differs")] = False,
) -> None:
    """Predict what a model takes on a machine: time, memory, the bottleneck, and where that changes"""
    from .plan import Options, run, show_list

    if names:
        show_list(as_json)
        return
    sizes = {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "head_width": head_width, "ff": ff}
    sizes |= {"gated": gated, "vocabulary": vocabulary, "tied": tied}
    options = Options(model or [], config or [], hardware or [], sizes, context, batch, weights, cache, prompt)
    options = options._replace(spread=machines, link=link, chip=chip, chips=chips, file=file)
    run(options, as_json=as_json, as_csv=as_csv, plot=plot, audit=audit)


@app.command(
    epilog="Example: qkv count --layers L --width d --vocabulary V --no-gated --norm none", rich_help_panel="Cost"
)
def count(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Count this model, by name")] = None,
    config: Annotated[str | None, typer.Option(help="Read a config.json, or the folder that holds it")] = None,
    length: Annotated[
        str | None, typer.Option(help="Set the tokens of each sequence (1024, or n)", metavar="SIZE")
    ] = None,
    batch: Annotated[str, typer.Option(help="Set the number of sequences", metavar="SIZE")] = "1",
    phase: Annotated[str, typer.Option(help="Count forward, decode or training", metavar="PHASE")] = "forward",
    causal: Annotated[
        bool, typer.Option("--causal/--all-pairs", help="Count causal pairs, or all pairs of tokens")
    ] = False,
    weights: Annotated[
        str, typer.Option(help="Store numbers as float32, bfloat16, float16, int8, fp8 or int4")
    ] = "bfloat16",
    layers: Annotated[str | None, _name("Set the number of layers", "--layers")] = None,
    width: Annotated[str | None, _name("Set the width of a token between layers", "--width")] = None,
    heads: Annotated[str | None, _name("Set the number of query heads (1)", "--heads")] = None,
    kv_heads: Annotated[str | None, _name("Set the number of key/value heads (as many)", "--kv-heads")] = None,
    head_width: Annotated[str | None, _name("Set the width of a head (width / heads)", "--head-width")] = None,
    ff: Annotated[str | None, _name("Set the width of the feed-forward network (4 width)", "--ff")] = None,
    gated: Annotated[
        bool | None, _size("Give the feed-forward network three matrices, or two (gated)", "--gated/--no-gated")
    ] = None,
    vocabulary: Annotated[str | None, _name("Set the number of different tokens (32000)", "--vocabulary")] = None,
    tied: Annotated[bool | None, _size("Use the embedding for the logits too (untied)", "--tied/--untied")] = None,
    experts: Annotated[str | None, _name("Set the number of experts", "--experts")] = None,
    active: Annotated[str | None, _name("Set the experts that each token uses", "--active")] = None,
    biases: Annotated[bool | None, _size("Give every projection a bias (none)", "--biases/--no-biases")] = None,
    norm: Annotated[str | None, _name("Set the norms: rms, layer or none (rms)", "--norm", metavar="KIND")] = None,
    as_json: AsJson = False,
    to: Annotated[
        str | None,
        typer.Option("--to", "-o", help="Draw operations over lengths into FILE.svg or FILE.html", metavar="FILE"),
    ] = None,
) -> None:
    """Count parameters, operations and bytes of a model by part; a size may be a name: then formulas are printed"""
    from .count import Options, run

    sizes = {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "head_width": head_width, "ff": ff}
    sizes |= {"gated": gated, "vocabulary": vocabulary, "tied": tied, "experts": experts, "active": active}
    options = Options(model, config, sizes, length, batch, phase, causal, biases, norm, weights, to)
    run(options, as_json=as_json)


@app.command(epilog="Example: qkv calibrate --show", rich_help_panel="Cost")
def calibrate(
    show: Annotated[bool, typer.Option("--show", help="Show the stored figures and measure nothing")] = False,
    ranks: Annotated[
        int | None,
        typer.Option(help="Measure attention over up to this many processes", min=2, max=64, show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine for auto, explain and plan, in about 15 seconds"""
    from .calibrate import calibrate as run

    run(show, as_json, ranks)


@app.command(epilog="Example: qkv prove scores --report scores.html", rich_help_panel="Prove")
def prove(
    claim: Annotated[list[str] | None, typer.Argument(help="Claims by name (all of them)", show_default=False)] = None,
    report: Annotated[
        str | None,
        typer.Option(
            "--report", "--to", "-o", help="Write a report into FILE.html, .pdf, .md, .tex or .ipynb", metavar="FILE"
        ),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="List the claims and run none")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the claims that train a model")] = False,
    as_json: AsJson = False,
) -> None:
    """Prove and test claims about attention, and say where published solutions are wrong"""
    from .prove import Options, run, show_list

    if names:
        show_list(as_json)
    elif not run(Options(claim or [], report, as_json, quick)):
        raise typer.Exit(1)


# An answer may begin with a minus sign, so this command has no short options.
@app.command(
    epilog=r"""Example: qkv check 'd mu^2' --gold '\mu^T \mu' --let 'mu: vector\[d]'

With a problem of the bank: qkv check scaling a 'd mu^2' --hint 1""",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
    rich_help_panel="Prove",
)
def check(
    context: typer.Context,
    answer: Annotated[
        list[str] | None,
        typer.Argument(
            help="LaTeX or plain text, in quotes; without --gold, a problem and a part come first",
            metavar="[PROBLEM PART] ANSWER",
            show_default=False,
        ),
    ] = None,
    gold: Annotated[str | None, typer.Option(help="Compare with this right answer", show_default=False)] = None,
    let: Annotated[
        list[str] | None,
        typer.Option(help="Declare a name and its type; repeatable", metavar='"NAME: TYPE"', show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Take this variant of the problem", min=0, max=LAST_SEED, show_default=False)
    ] = None,
    hint: Annotated[int | None, typer.Option(help="Give hint 1, 2 or 3 for the part", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether an answer is right: by proof, by trial, under a condition, or why not"""
    if answer == ["-h"] and gold is None and not let and seed is None and hint is None:
        typer.echo(context.get_help())
        return
    from .check import run

    if not run(answer or [], gold, let or [], seed, hint, as_json):
        raise typer.Exit(1)


@app.command(epilog="Example: qkv lab --port 8000 --models ./checkpoints", rich_help_panel="Teach")
def lab(
    port: Annotated[
        int | None,
        typer.Option(
            help="Listen on this port (8765, or any free one); 0 takes any", min=0, max=65535, show_default=False
        ),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open no browser")] = False,
    models: Annotated[str | None, typer.Option(help="Offer the checkpoints in this folder", metavar="DIR")] = None,
    host: Annotated[
        str, typer.Option(help="Listen on this address; only this machine can reach the default")
    ] = "127.0.0.1",
    embed: Annotated[
        str | None, typer.Option(help="Let pages of this origin show the lab in a frame", metavar="ORIGIN")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve the lab, a local web page for exploring attention, until Ctrl-C"""
    from .lab import run

    run(host, port, models, not no_browser, embed, as_json)


@app.command(epilog="Example: qkv serve ./SmolLM2 --port 8000 --max-rows 8", rich_help_panel="Compute")
def serve(
    model: ModelFile,
    port: Annotated[
        int | None,
        typer.Option(
            help="Listen on this port (8766, or any free one); 0 takes any", min=0, max=65535, show_default=False
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Listen on this address; one that other machines reach needs --token-file")
    ] = "127.0.0.1",
    token_file: Annotated[
        str | None, typer.Option(help="Answer only requests with the bearer token in FILE", metavar="FILE")
    ] = None,
    max_rows: Annotated[int, typer.Option(help="Generate this many answers together", min=1, max=256)] = 16,
    max_queue: Annotated[int, typer.Option(help="Let this many more requests wait", min=0, max=10_000)] = 64,
    context: Annotated[
        int | None, typer.Option(help="Limit a prompt with its answer to this many tokens (the model's)", min=2)
    ] = None,
    cache_bytes: Annotated[int, typer.Option(help="Keep the prefixes of recent requests in this many bytes", min=0)] = 2
    ** 29,
    timeout: Annotated[float, typer.Option(help="Stop a request after this many seconds", min=0.1)] = 600.0,
    activations: Activations = "float32",
    threads: Annotated[
        int | None, typer.Option(help="Run a step on this many threads (torch's)", min=1, show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve a local model at an OpenAI-compatible address on this machine, until Ctrl-C"""
    from .serve import run

    limits = {"rows": max_rows, "queue": max_queue, "context": context, "cache_bytes": cache_bytes, "seconds": timeout}
    listening = {"host": host, "port": port, "token_file": token_file}
    run(model, as_json, limits, **listening, activations=activations, threads=threads)


def _matrix(name: str, help_text: str) -> Any:
    return _own(help_text, f"--{name}", metavar="MATRIX")


def _own(help_text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Your own numbers", metavar=metavar, show_default=False)


def _sheets(help_text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(
        *names, help=help_text, rich_help_panel="Sheets and exports", metavar=metavar, show_default=False
    )


# A matrix may begin with a minus sign: it is the value of an option, so it needs no escape.
@app.command(
    epilog='Example: qkv solve "How many parameters does an attention layer of width 512 with 8 heads have?"',
    rich_help_panel="Teach",
)
def solve(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of the bank with parts, a record (.toml, .json), a sheet, a question in words, or - (by-hand)",
            metavar="[NAME [PART] | FILE | QUESTION]…",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Solve this variant (the numbers of the original document)", min=0, max=LAST_SEED),
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Print the answers without their derivations")] = False,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to", "-o", help="Write FILE.md, .tex, .html, .pdf, .ipynb or .json; repeatable", metavar="FILE"
        ),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="List the exercises of the bank")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of an exercise")] = False,
    record: Annotated[bool, typer.Option("--record", help="Print the record that was read and solve nothing")] = False,
    x: Annotated[str | None, _matrix("x", 'Give the tokens as rows: "2 3; -1 0; 1 -2"')] = None,
    wq: Annotated[str | None, _matrix("wq", "Give the query projection")] = None,
    wk: Annotated[str | None, _matrix("wk", "Give the key projection")] = None,
    wv: Annotated[str | None, _matrix("wv", "Give the value projection")] = None,
    wo: Annotated[str | None, _matrix("wo", "Give the output projection")] = None,
    q: Annotated[str | None, _matrix("q", "Give the queries as rows")] = None,
    k: Annotated[str | None, _matrix("k", "Give the keys as rows")] = None,
    v: Annotated[str | None, _matrix("v", "Give the values as rows")] = None,
    heads: Annotated[int | None, _own("Split the width into this many heads", "--heads")] = None,
    kv_heads: Annotated[int | None, _own("Split keys and values into this many heads", "--kv-heads")] = None,
    similarity: Annotated[
        str | None, _own("Use softmax, argmax, sigmoid, relu, linear or exponential (softmax)", "--similarity")
    ] = None,
    mask: Annotated[
        str | None, _own('Mask the scores: causal, "window(2, 0)", or a matrix of 0 and 1', "--mask", metavar="MASK")
    ] = None,
    scale: Annotated[
        str | None, _own('Multiply the scores by this number, or "sqrt" for 1/√d (sqrt)', "--scale")
    ] = None,
    token: Annotated[int | None, _own("Work out the token at this position, from 1 (all)", "--token")] = None,
    causal: Annotated[bool, _own("Let each token attend to itself and earlier tokens only", "--causal")] = False,
    sheet: Annotated[
        str | None, _sheets("Solve the questions of a sheet, a document in any format", "--sheet", metavar="FILE")
    ] = None,
    copies: Annotated[int | None, _sheets("Print this many sheets, each with its key", "--copies")] = None,
    export: Annotated[
        str | None, _sheets("Export to moodle, qti, prairielearn or jsonl", "--export", metavar="FORMAT")
    ] = None,
    out: Annotated[str | None, _sheets("Write sheets or exports into this folder", "--out", metavar="DIR")] = None,
    form: Annotated[
        str | None, _sheets("Write sheets as pdf (the default), tex, html, md or ipynb", "--as", metavar="FORMAT")
    ] = None,
    together: Annotated[bool, _sheets("Write one file for all sheets and one for all keys", "--together")] = False,
    heading: Annotated[str | None, _sheets("Set the title of the sheets", "--title")] = None,
    as_json: AsJson = False,
) -> None:
    """Solve exercises step by step: of the bank, of a file or a sheet, in words, or on your own numbers"""
    from .solve import Options, run

    matrices = {"x": x, "wq": wq, "wk": wk, "wv": wv, "wo": wo, "q": q, "k": k, "v": v}
    own = {name: text for name, text in matrices.items() if text is not None}
    setting = {"heads": heads, "kv_heads": kv_heads, "similarity": similarity, "mask": mask, "scale": scale}
    setting |= {"token": token, "causal": causal}
    options = Options(
        words or [], seed, brief, to or [], names, own, setting, sheet, copies, export, out, form, together, heading,
        schema, record, as_json,
    )  # fmt: skip
    if not run(options):
        raise typer.Exit(1)


@app.command(epilog="Example: qkv practice by-hand scaling --rounds 5", rich_help_panel="Teach")
def practice(
    names: Annotated[
        list[str] | None, typer.Argument(help="Problems by name (all of them)", metavar="[NAME]…", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Ask this variant", min=0, max=LAST_SEED)] = None,
    rounds: Annotated[int, typer.Option(help="Ask this many questions", min=1, max=1000)] = 5,
    reset: Annotated[bool, typer.Option("--reset", help="Delete the stored progress and ask nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary at the end as JSON")] = False,
) -> None:
    """Practise: answer questions, take hints, and repeat what was difficult"""
    from .practice import run

    run(names or [], seed, rounds, reset, as_json)


@app.command(epilog="Example: qkv grade logs/ --sheet homework.md --to report.html", rich_help_panel="Teach")
def grade(
    chat: Annotated[
        str,
        typer.Argument(help="A chat in any format, a folder of chats, or - for the standard input", metavar="CHAT"),
    ],
    sheet: Annotated[
        str | None,
        typer.Option(help="Take the questions from this sheet (from the chat)", metavar="FILE", show_default=False),
    ] = None,
    exercises: Annotated[
        list[str] | None,
        typer.Option(
            "--exercise",
            help="Take question N from the bank: 4=decoding; repeatable",
            metavar="N=NAME",
            show_default=False,
        ),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            help="Read with this language model, by Inspect's name, or with recorded claims (by rules, offline)",
            metavar="PROVIDER/MODEL|replay:FILE",
            show_default=False,
        ),
    ] = None,
    insights: Annotated[
        list[str] | None,
        typer.Option(
            help="Write a page for the class: FILE.md, .html, .pdf or .tex; repeatable",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            "-o",
            help="Write the report, with the chat and its verdicts: FILE.html, .pdf or .md; repeatable",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Grade chats with a tutor: what was right at once, what needed correction, and who found the error"""
    from .grade import Options, run

    run(Options(chat, sheet, exercises or [], insights or [], to or [], as_json, reader))


@app.command(
    epilog="Example: qkv evaluate --model ollama/llama3 --exercises scaling,heads --seeds 1", rich_help_panel="Teach"
)
def evaluate(
    model: Annotated[
        str, typer.Option("--model", help="Evaluate this model, by Inspect's name", metavar="PROVIDER/MODEL")
    ],
    exercises: Annotated[
        list[str] | None,
        typer.Option("--exercises", help="Ask these exercises: names with commas (all)", metavar="NAMES"),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(help="Ask this many variants of each exercise; 0: as first printed", min=0, max=1000, metavar="N"),
    ] = 5,
    corrections: Annotated[
        int, typer.Option(help="Correct a wrong part up to this often, at most 4", min=0, max=4, metavar="N")
    ] = 2,
    challenges: Annotated[
        int | None,
        typer.Option(help="Challenge this many right parts with a wrong correction (all)", min=0, metavar="N"),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Hold at most this many conversations", min=1, metavar="N")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Limit each reply to this many tokens", min=1, metavar="N")
    ] = None,
    model_args: Annotated[
        list[str] | None, typer.Option("-M", help="Pass to the model's provider; repeatable", metavar="K=V")
    ] = None,
    log_dir: Annotated[str | None, typer.Option(help="Write Inspect's log into DIR (./logs)", metavar="DIR")] = None,
    tools: Annotated[
        str, typer.Option(help="Give the model these tools: none, compute, qkv, or both (none and qkv)", metavar="SET")
    ] = "none",
    to: Annotated[list[str] | None, typer.Option("--to", "-o", help="Write a report into FILE", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a language model on the bank: ask, correct, hint, and offer wrong corrections"""
    from .evaluate import Options, run

    limits = (corrections, challenges, limit, max_tokens)
    run(Options(model, exercises or [], seeds, *limits, model_args or [], log_dir, tools, to or []), as_json)


@app.command(epilog="Example: qkv mcp --http --port 8765", rich_help_panel="Teach")
def mcp(
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP on 127.0.0.1, not over stdio")] = False,
    port: Annotated[
        int | None,
        typer.Option(help="Listen on this port with --http (8765); 0 takes any", min=0, max=65535, show_default=False),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop a call after this many seconds", min=0.1, max=600)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address of --http as JSON")] = False,
) -> None:
    """Serve qkv as tools of a language model, over the Model Context Protocol"""
    if find_spec("mcp") is None:
        raise MissingExtra("qkv mcp", "mcp", "tools")
    if port is not None and not http:
        raise OptionError(complaint("--port", "it without --http", "both", "over stdio there is no port"))
    from .mcp import run

    run(http, 8765 if port is None else port, seconds, as_json)


# What commands call arguments of the library that are not their own options.
_MODEL = {"path": "MODEL", "source": "MODEL"}
_SIZES = {"d_model": "--width", "d_ff": "--ff", "experts_active": "--active"}
NAMES = {
    "generate": _MODEL,
    "chat": {**_MODEL, "chat": "MODEL"},
    "serve": _MODEL,
    "plan": {**_MODEL, "file": "MODEL", **_SIZES},
    "count": _SIZES,
    "prove": {"claim": "CLAIM"},
    "check": {"exercise": "PROBLEM", "part": "PART"},
    "solve": {"exercise": "NAME", "part": "PART", "sheet": "FILE", "file": "FILE"},
    "practice": {"exercise": "NAME"},
    "grade": {"file": "CHAT", "chat": "CHAT", "exercise": "--exercise", "recording": "--reader"},
    "evaluate": {"exercise": "--exercises"},
}
prepare(app, NAMES)


def main() -> None:
    """Run a command; an error is one line, with exit code 2 for wrong arguments, else 1. --debug adds the traceback."""
    if sys.stdout is None:  # the parent process closed it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the program runs
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot show is replaced, instead of raising.
        sys.stdout.reconfigure(errors=PLAIN)
    reset_debugging()
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        if isinstance(error, BrokenPipeError):
            # The reader closed the pipe: the flush at exit must not raise again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        typer.echo(clean(f"qkv: {message(error)}"), err=True)
        if debugging():
            traceback.print_exception(error)
        sys.exit(exit_code(error))
    sys.exit(code if isinstance(code, int) else 0)
