"""`qkv count`: parameters, operations and bytes of a model by part, in numbers or formulas. No torch, no SymPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import typer

from ..cost.architecture import Model
from ..cost.model_counts import NORMS, PHASES, SIZES, model_counts, plain_counts, read_size, with_options
from ..cost.polynomial import Polynomial, whole
from ..cost.readable import in_columns, integer_text, quantity, wrap_lines
from ..cost.sizes import format_name
from ..errors import complaint
from ..render.escapes import json_text
from .errors import UsageError
from .plan import PICTURES, check_heads, named_model, show_text


class Options(NamedTuple):
    """The arguments of the command; a size is the text of a whole number or a name."""

    model: str | None
    config: str | None
    sizes: dict[str, Any]
    length: str | None
    batch: str
    phase: str
    causal: bool
    biases: bool | None
    norm: str | None
    weights: str
    to: str | None = None


def run(options: Options, *, as_json: bool) -> None:
    """Print the counts of one model."""
    if options.phase not in PHASES:
        raise UsageError(complaint("--phase", repr(options.phase), f"one of {', '.join(PHASES)}"))
    if options.norm is not None and options.norm not in NORMS:
        raise UsageError(complaint("--norm", repr(options.norm), f"one of {', '.join(NORMS)}"))
    if options.to is not None:
        from ..render.saving import writable

        writable(options.to, "--to", PICTURES)
    model = _model(options)
    found = counted(model, options)
    if options.to is not None:
        _draw(model, found, Path(options.to))
    print(json_text(plain_counts(found))) if as_json else show_text(_text(found))
    if options.to is not None:
        typer.echo(f"written: {options.to}", err=True)


def _draw(model: Model, found: dict[str, Any], path: Path) -> None:
    """Draw the operations over lengths; formulas have no curve."""
    from ..figures.counts import picture
    from ..render.saving import write

    if any(isinstance(value, Polynomial) for value in found.values()):
        raise UsageError(complaint("--to", "it with sizes that are names", "numbers for all sizes"))
    write({path: picture(model, found, html=path.suffix.lower() == ".html").encode()})


def counted(model: Model, options: Options) -> dict[str, Any]:
    """Every figure by name: exact whole numbers, or formulas where a size is a name."""
    weights = format_name("--weights", options.weights)
    batch = _size("--batch", options.batch)
    length = None if options.length is None else _size("--length", options.length)
    if options.phase == "decode" and model.kind == "encoder":
        raise UsageError(complaint("--phase", "'decode'", "forward or training: an encoder does not decode"))
    return model_counts(model, length, batch, phase=options.phase, causal=options.causal, weights=weights)


def _model(options: Options) -> Model:
    given = {name: value for name, value in options.sizes.items() if value is not None}
    words = ", ".join(f"--{name.replace('_', '-')}" for name in given)
    if options.model is not None or options.config is not None:
        if options.model is not None and options.config is not None:
            raise UsageError(complaint("--model, --config", "both", "one of them"))
        if given:
            raise UsageError(complaint(words, "a size of a model that is named", "a model by name, or all its sizes"))
        chosen = named_model(options.model, options.config)
        return with_options(chosen, options.biases, options.norm)
    missing = [f"--{name}" for name in ("layers", "width", "heads") if name not in given]
    if missing == ["--heads"]:
        given["heads"], missing = "1", []
    if missing:
        hint = "qkv plan --list shows every model; --config PATH reads a config.json"
        shown = f"nothing, with {words}" if words else "nothing"
        raise UsageError(complaint(", ".join(missing), shown, "sizes, or --model NAME", hint))
    fields: dict[str, Any] = {}
    for name, value in given.items():
        given[name] = value if isinstance(value, bool) else _size(f"--{name.replace('_', '-')}", value)
        fields[SIZES[name]] = given[name]
    check_heads(given)
    if fields.get("experts") and "experts_active" not in fields:
        raise UsageError(complaint("--active", "nothing, with --experts", "the experts that each token uses"))
    return with_options(Model(name="sizes by hand", **fields), options.biases, options.norm)


def _size(option: str, text: Any) -> Any:
    """A whole number, or a name for formulas."""
    return read_size(option, text)


def _text(found: dict[str, Any]) -> str:
    formulas = any(isinstance(value, Polynomial) for value in found.values())
    title = f"{found['model']}: {_shown(found['parameters'])} parameters"
    work = {"forward": "a forward pass", "decode": "a decode step", "training": "a training step"}[found["phase"]]
    pairs = "" if found["phase"] == "decode" or not found["causal"] else f", {found['pairs']} pairs"
    title += f"; {work}, batch {_shown(found['batch'])}, length {_shown(found['length'])}{pairs}"
    lines = ["\n".join(wrap_lines(title, "")), ""]
    rows = [*found["parts"].items(), ("all", found)]
    lines.append(_formulas(rows) if formulas else _table(rows))
    held = [("weights", found["weight_bytes"], f"in {found['weights']}"),
            ("cache of a token", found["cache_bytes_per_token"], ""), ("cache", found["cache_bytes"], "")]  # fmt: skip
    if found["active_parameters"] != found["parameters"]:
        held.insert(0, ("parameters that a token uses", found["active_parameters"], ""))
    lines.append("")
    for name, value, more in held:
        unit = "" if "parameters" in name else " bytes"
        near = f" ({quantity(value, 'B')})" if unit and not isinstance(value, Polynomial) else ""
        lines += wrap_lines(f"{name}: {_shown(value)}{unit}{near} {more}".rstrip(), "  ")
    lines += ["", *wrap_lines(_conventions(found), "  ")]
    return "\n".join(lines)


def _conventions(found: dict[str, Any]) -> str:
    said = "A multiply-add is 2 operations; products are matrix products, other operations are the rest."
    if found["phase"] == "training":
        said += " Training takes 3 times the operations of a forward pass; bytes are those of the forward pass."
    return said


def _table(rows: list[tuple[str, Any]]) -> str:
    cells = [("part", "parameters", "products", "other operations", "bytes moved")]
    for name, row in rows:
        wide = len(f"{row['products']:,}") > 20
        products = integer_text(row["products"]) if wide else f"{row['products']:,}"
        cells.append((name, f"{row['parameters']:,}", products, quantity(row["other"]), quantity(row["bytes"], "B")))
    return in_columns(cells, "<>>>>")


def _formulas(rows: list[tuple[str, Any]]) -> str:
    lines = []
    for name, row in rows:
        lines.append(f"  {name}")
        for key in ("parameters", "products", "other", "bytes"):
            if row[key] != 0:
                lines += wrap_lines(f"{key}: {_shown(row[key])}", "    ")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return f"{whole(value):,}" if isinstance(value, int) else str(value)
