"""`qkv plan`: what a model takes on a machine, before it runs. Torch and SymPy are not imported."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import typer

from ..cost.architecture import Model, is_path, model_named, models
from ..cost.communication import as_link, links
from ..cost.configs import read_config
from ..cost.machine import Hardware, as_hardware, hardware
from ..cost.planning import Plan, plan
from ..cost.readable import in_columns, in_words, integer_text, quantity, readable_seconds
from ..cost.report import comparison_text, csv_text
from ..cost.scaling import MAX_MACHINES
from ..cost.sizes import check_size, format_name
from ..errors import OptionError, complaint
from ..render.escapes import json_text
from .errors import UsageError

BY_HAND = {
    "layers": "layers", "width": "d_model", "heads": "heads", "kv_heads": "kv_heads", "head_width": "head_width",
    "ff": "d_ff", "gated": "gated", "vocabulary": "vocabulary", "tied": "tied",
}  # fmt: skip
PICTURES = (".svg", ".html")


class Options(NamedTuple):
    """The arguments of the command; `by_hand` maps the names of options to sizes."""

    models: list[str]
    configs: list[str]
    machines: list[str]
    by_hand: dict[str, Any]
    context: int | None
    batch: int
    weights: str | None
    cache: str | None
    prompt: int | None
    spread: int | None = None
    link: str | None = None
    chip: str | None = None
    chips: int | None = None
    file: str | None = None


def run(options: Options, *, as_json: bool, as_csv: bool, plot: str | None, audit: bool) -> None:
    """Print the plans, or (`audit`) what other tools count."""
    if as_json and as_csv:
        raise UsageError(complaint("--json, --csv", "both", "one of them"))
    if plot is not None:
        from ..render.saving import writable

        writable(plot, "--plot", PICTURES)
    if audit and (as_csv or plot is not None):
        raise UsageError(complaint("--audit", "it together with --csv or --plot", "it alone, or with --json"))
    if audit and options.spread is not None:
        raise UsageError(complaint("--audit", "it together with --machines", "one of them"))
    if options.chips is not None and options.spread is not None:
        raise UsageError(complaint("--chips", "it together with --machines", "one of them"))
    if options.link is not None and options.spread is None:
        raise UsageError(complaint("--link", "it without --machines", "both", "one machine needs no link"))
    if options.file is not None and not is_path(options.file) and not options.file.endswith(".gguf"):
        options = options._replace(models=[options.file, *options.models], file=None)
    if options.file is not None or any(name.endswith(".gguf") for name in options.models):
        _plan_of_file(options, as_json, as_csv or plot is not None or audit)
        return
    options = options._replace(weights=options.weights or "bfloat16", cache=options.cache or "bfloat16")
    chosen = _models(options)
    if audit:
        _audit(chosen, options, as_json)
        return
    plans = _plans(chosen, options)
    if plot is not None:
        from ..figures.plans import picture
        from ..render.saving import write

        write({Path(plot): picture(plans, html=Path(plot).suffix.lower() == ".html").encode()})
    if as_json:
        found = [each.as_dict() for each in plans]
        print(json_text(found[0] if len(found) == 1 else found))
    elif as_csv:
        print(csv_text(plans), end="")
    else:
        show_text(str(plans[0]) if len(plans) == 1 else comparison_text(plans))
    if plot is not None:
        typer.echo(f"written: {plot}", err=True)


def _plan_of_file(options: Options, as_json: bool, other_output: bool) -> None:
    """Print the plan of a model in the formats of its file; torch is imported."""
    from ..profiling.files import plan_file

    named = [*([] if options.file is None else [options.file]), *options.models, *options.configs]
    by_hand = any(value is not None for value in options.by_hand.values())
    others = options.weights, options.spread, options.link, options.chip, options.chips
    if len(named) > 1 or len(options.machines) > 1 or by_hand or other_output or others != (None,) * len(others):
        wanted = "one file, with --hardware, --context, --batch, --cache, --prompt and --json alone"
        raise UsageError(complaint("FILE", "it with other options of a plan", wanted, "its formats are its own"))
    machine = as_hardware(options.machines[0] if options.machines else "here")
    sizes = {"context": options.context, "batch": options.batch, "prompt": options.prompt}
    found = plan_file(named[0], machine, **sizes, cache=options.cache or "float32")
    if as_json:
        print(json_text(found.as_dict()))
    else:
        show_text(str(found))


def show_list(as_json: bool) -> None:
    """Print the names of all models, machines and links."""
    known, machines = models(), hardware()
    if as_json:
        sizes = {name: {"parameters": model.parameters, "source": model.source} for name, model in known.items()}
        rates = {
            name: {"rates": each.rates, "bandwidth": each.bandwidth, "memory": each.memory, "source": each.source}
            for name, each in machines.items()
        }
        wires = {name: {"bandwidth": each.bandwidth, "latency": each.latency} for name, each in links().items()}
        print(json_text({"models": sizes, "hardware": rates, "links": wires}))
        return
    rows = [("name", "parameters", "layers", "width", "heads", "cache a token")]
    for name, model in known.items():
        heads = f"{model.heads} on {model.kv_heads}" if model.latent is None else f"{model.heads}, latent"
        kept = quantity(2 * model.cache_numbers, "B")
        rows.append((name, in_words(model.parameters), str(model.layers), integer_text(model.d_model), heads, kept))
    shown = ["models (cache in 16 bits)", in_columns(rows, "<>>>>>"), "", "machines"]
    rows = [("name", "16-bit rate", "bandwidth", "memory", "")]
    for name, each in machines.items():
        rate = quantity(each.rate("bfloat16"), "FLOP/s")
        memory = quantity(each.memory, "B")
        rows.append((name, rate, quantity(each.bandwidth, "B/s"), memory, each.title))
    shown += [in_columns(rows, "<>>><"), "", "links"]
    rows = [("name", "bandwidth", "a message", "")]
    for name, each in links().items():
        rows.append((name, quantity(each.bandwidth, "B/s"), readable_seconds(each.latency), each.title))
    show_text("\n".join([*shown, in_columns(rows, "<>><")]))


def _models(options: Options) -> list[Model]:
    by_hand = {BY_HAND[name]: value for name, value in options.by_hand.items() if value is not None}
    named = bool(options.models or options.configs)
    words = ", ".join(f"--{name.replace('_', '-')}" for name, value in options.by_hand.items() if value is not None)
    if by_hand and named:
        raise UsageError(complaint(words, "a size of a model that is named", "a model by name, or all its sizes"))
    if by_hand:
        missing = [f"--{name}" for name in ("layers", "width", "heads") if options.by_hand.get(name) is None]
        if missing:
            raise UsageError(complaint(", ".join(missing), f"nothing, with {words}", "a number for each"))
        check_heads(options.by_hand)
        return [Model(source="sizes by hand", **by_hand)]
    if not named:
        hint = "qkv plan --list shows every model; --config PATH reads a config.json, --layers ... gives sizes by hand"
        raise UsageError(complaint("--model", "nothing", "the name of a model", hint))
    return [*(_model(name) for name in options.models), *(read_config(path) for path in options.configs)]


def check_heads(sizes: dict[str, Any]) -> None:
    """Check the heads here, so that a message names the options. What is not a number of at least 1 is left."""
    width, heads, kv_heads = sizes["width"], sizes["heads"], sizes.get("kv_heads")
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1:
        return  # formulas, or what Model refuses itself
    if isinstance(kv_heads, int) and kv_heads > 0 and heads % kv_heads:
        raise OptionError(complaint("--kv-heads", f"{kv_heads} with --heads {heads}", "a divisor of --heads"))
    if sizes.get("head_width") is None and width % heads:
        hint = "or set the width of a head with --head-width"
        raise OptionError(complaint("--heads", f"{heads} with --width {width}", "a divisor of --width", hint))


def named_model(name: str | None, config: str | None) -> Model:
    """One model by its name or its config.json."""
    return _model(name) if name is not None else read_config(config or "")


def _model(name: str) -> Model:
    if not name.strip():
        raise UsageError(complaint("--model", repr(name), "the name of a model", "qkv plan --list shows them"))
    if is_path(name):
        return read_config(name)
    return model_named(name)


def chip_of(text: str) -> tuple[Hardware, str | None]:
    """A chip from its figures, "rate=197T,bandwidth=820G,memory=16G", and the rate of its link if there is one."""
    from ..exercises.findings import CannotSolve
    from ..exercises.units import DIMENSIONS, quantity

    figures: dict[str, Any] = {}
    for piece in text.split(","):
        name, equals, value = (each.strip() for each in piece.partition("="))
        role = "rate" if name in ("int8", "fp8") else name
        known = name in ("rate", "int8", "fp8", "bandwidth", "memory", "link")
        if not equals or not known or name in figures:
            wanted = "rate=, bandwidth= and memory=, and perhaps int8=, fp8= and link=, each once, with commas"
            raise UsageError(complaint("--chip", repr(piece), wanted))
        try:
            figures[name] = quantity(value, "", DIMENSIONS[role])
        except CannotSolve as error:
            raise UsageError(complaint("--chip", repr(piece), f"a number with a unit: {error}")) from None
        if figures[name] <= 0:
            raise UsageError(complaint("--chip", repr(piece), "a number above 0"))
    missing = [f"{name}=" for name in ("rate", "bandwidth", "memory") if name not in figures]
    if missing:
        raise UsageError(complaint("--chip", f"{text!r} without {', '.join(missing)}", "the three figures of a chip"))
    rates = {name: float(figures["rate"]) for name in ("bfloat16", "float16", "float32")}
    rates |= {name: float(figures[name]) for name in ("int8", "fp8") if name in figures}
    chip = Hardware("chip", rates, float(figures["bandwidth"]), int(figures["memory"]), "--chip", "the chip of --chip")
    return chip, f"{float(figures['link']) / 1e9:g}" if "link" in figures else None


def _machines(options: Options) -> tuple[list[Hardware], str | None]:
    """The machines to plan for, single chips, and the link that --chip names."""
    if options.chip is None:
        return [as_hardware(name) for name in options.machines or ["here"]], None
    if options.machines:
        raise UsageError(complaint("--chip", "it together with --hardware", "one of them"))
    chip, link = chip_of(options.chip)
    return [chip], link


def _plans(chosen: list[Model], options: Options) -> list[Plan]:
    machines, chip_link = _machines(options)
    weights, cache = format_name("--weights", options.weights), format_name("--cache", options.cache)
    link = None if options.link is None else as_link(options.link)
    if options.spread is not None:
        check_size("machines", options.spread, most=MAX_MACHINES)
    arguments: dict[str, Any] = {"context": options.context, "batch": options.batch, "prompt": options.prompt}
    arguments |= {"weights": weights, "cache": cache}
    spread = {"machines": options.spread, "link": link}
    if options.chips is None and chip_link is None:
        return [plan(model, machine, **arguments, **spread) for model in chosen for machine in machines]
    count = 1 if options.chips is None else options.chips
    plans = []
    for model in chosen:
        for machine in machines:
            found = plan(model, machine.chips(count), **arguments)
            if count > 1:
                found.notes.append(f"weights and cache are divided evenly over {count} chips; links cost no time")
            if chip_link is not None and count > 1:
                over = plan(model, machine, **arguments, machines=count, link=chip_link).scaling
                found = replace(found, scaling=over)
            plans.append(found)
    return plans


def _audit(chosen: list[Model], options: Options, as_json: bool) -> None:
    from ..profiling.model_audit import audit

    found = [audit(model, context=options.context, batch=options.batch) for model in chosen]
    if as_json:
        plain = [each.as_dict() for each in found]
        print(json_text(plain[0] if len(plain) == 1 else plain))
    else:
        show_text("\n\n".join(map(str, found)))


def show_text(text: str) -> None:
    """Print the text; lines without an indent are titles, bold in a terminal."""
    bold = sys.stdout.isatty()
    for line in text.splitlines():
        typer.echo(typer.style(line, bold=True) if bold and line and not line.startswith(" ") else line)
