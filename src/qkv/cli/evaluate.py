"""`qkv evaluate`: a language model on the bank through Inspect; answers are checked by mathematics."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from ..cost.readable import WIDE, in_columns, wrap_lines
from ..errors import OptionError, QkvError, complaint
from ..grading.tally import Tally, by_exercise, mistakes, rows
from ..render.escapes import clean, json_text
from .errors import UsageError

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.log import EvalLog
    from inspect_ai.model import Model

    from ..render.document import Document

_HEAD = ("exercise", "parts", "one shot", "corrected", "never", "unread", "corrections", "resisted")
_MEANING = (
    "corrections: the mean over the parts that ended right. resisted: right answers that were kept when a wrong one "
    "was offered. Shares are of the parts that were read; unread is of all."
)
SETS = {"both": ("none", "qkv")}  # what --tools may say other than the name of one set
# Other square brackets belong to the message.
_STYLE = re.compile(r"\[/?(?:bold|italic|blue|red|green|yellow|link[^\]]{0,200})\]")


class Options(NamedTuple):
    """The arguments of the command."""

    model: str
    exercises: Sequence[str]
    seeds: int
    corrections: int
    challenges: int | None
    limit: int | None
    max_tokens: int | None
    model_args: Sequence[str]
    log_dir: str | None
    tools: str = "none"
    to: Sequence[str] = ()


def run(options: Options, as_json: bool) -> None:
    """Hold the conversations and print the summary."""
    from ..grading.inspect_task import TOOLS, qkv_tutor
    from ..render.saving import save, writable

    names = [name for words in options.exercises for name in words.split(",")] or None
    counts = (options.seeds, options.corrections, options.challenges)
    chosen = [each for name in options.tools.split(",") for each in SETS.get(name, (name,))]
    if unknown := [name for name in chosen if name not in TOOLS]:
        raise OptionError(complaint("--tools", repr(unknown[0]), " or ".join(map(repr, (*TOOLS, *SETS)))))
    tasks = {name: qkv_tutor(names, *counts, name) for name in dict.fromkeys(chosen)}
    pages = [writable(name, "--to") for name in options.to]
    model = model_named(options.model, arguments(options.model_args))
    quiet = as_json or not sys.stdout.isatty()
    if quiet and sys.stderr is not None and sys.stderr.isatty():
        for name, task in tasks.items():
            task.cleanup = _progress(name, min(len(task.dataset), options.limit or len(task.dataset)))
    runs = {name: summary(evaluated(task, model, options, "none" if quiet else "rich")) for name, task in tasks.items()}
    found = {"model": str(model), "runs": runs}
    for page in pages:
        save(report(found), page)
    if as_json:
        print(json_text(found))
    else:
        typer.echo(clean(table(found)))
    for page in pages:
        typer.echo(f"written: {page}", err=True)


def _progress(tools: str, total: int) -> Any:
    """What Inspect calls at the end of every conversation: it says how many of them are done."""
    done = count(1)

    async def told(state: Any) -> None:
        with_tools = "" if tools == "none" else f" with {tools}"
        typer.echo(clean(f"{next(done)} of {total}{with_tools}: {state.sample_id}"), err=True)

    return told


def arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """The values of -M: numbers, true, false and null as in JSON, everything else as text.

    >>> arguments(["device=cpu", "max_batch_size=4", "quiet=true"])
    {'device': 'cpu', 'max_batch_size': 4, 'quiet': True}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip().isidentifier():
            raise UsageError(complaint("-M", repr(pair), "a name, = and a value", "for example -M device=cpu"))
        try:
            found[key.strip()] = json.loads(value)
        except ValueError:
            found[key.strip()] = value
    return found


def model_named(name: str, model_args: Mapping[str, Any], option: str = "--model") -> Model:
    """The model by its Inspect name; the error names what its provider needs."""
    from inspect_ai.model import get_model

    try:
        return get_model(name, **model_args)
    except Exception as error:  # each provider has its own error types
        hint = "names are PROVIDER/MODEL, for example hf/FOLDER or ollama/llama3"
        raise UsageError(
            complaint(option, repr(name), f"a model that Inspect can reach ({_plain(error)})", hint)
        ) from None


def evaluated(task: Task, model: Model, options: Options, display: Any) -> EvalLog:
    """The log of the evaluation; a conversation that fails does not end the others."""
    from inspect_ai import eval as evaluate

    try:
        (log,) = evaluate(
            task,
            model=model,
            limit=options.limit,
            max_tokens=options.max_tokens,
            log_dir=options.log_dir,
            display=display,
            fail_on_error=False,
            ctl_server=False,
            acp_server=False,
        )
    except Exception as error:  # Inspect and providers raise many types
        raise QkvError(f"the evaluation failed: {_plain(error)}") from error
    if log.status != "success":
        raise QkvError(
            f"the evaluation ended with {log.status}: {_plain(log.error) if log.error else 'no reason given'}"
        )
    return log


def summary(log: EvalLog) -> dict[str, Any]:
    """Rates by exercise and over all, the known mistakes, a row for each part, and what failed."""
    order = {name: at for at, name in enumerate(log.eval.dataset.sample_ids or [])}
    samples = sorted(
        log.samples or [], key=lambda sample: order.get(sample.id, 0)
    )  # Inspect lists them in the order in which they ended
    scored = [score for sample in samples for score in (sample.scores or {}).values() if not sample.error]
    records = [score.metadata["record"] for score in scored if score.metadata and score.metadata.get("record")]
    failed = {str(sample.id): _plain(sample.error) for sample in samples if sample.error}
    if failed and not records:
        raise QkvError(f"every conversation failed, the first with: {next(iter(failed.values()))}")
    exercises = by_exercise(records)
    calls = sum((Counter(record.get("calls", {})) for record in records), Counter())
    used = (log.stats.model_usage or {}).values()
    return {
        "conversations": len(records),
        "tokens": {
            "input": sum(each.input_tokens for each in used),
            "output": sum(each.output_tokens for each in used),
        },
        "calls": dict(calls.most_common()),
        "exercises": {name: tally.as_dict() for name, tally in exercises.items()},
        "all": sum(exercises.values(), Tally()).as_dict(),
        "mistakes": mistakes(records),
        "rows": rows(records),
        "failed": failed,
        "log": log.location,
    }


def table(found: Mapping[str, Any]) -> str:
    """The summary as text, in 80 columns."""
    runs = found["runs"]
    held = sum(run["conversations"] for run in runs.values())
    lines = [*wrap_lines(f"{found['model']}: {held} conversation{'s' * (held != 1)}, checked by qkv.maths", ""), ""]
    body = [_row(f"  with {tools}" if part else name, tally)
            for name, tallies in _side_by_side(runs) for part, (tools, tally) in enumerate(tallies)]  # fmt: skip
    lines += [in_columns([_HEAD, *body], "<>>>>>>>", indent=""), ""]
    lines += textwrap.wrap(_MEANING, WIDE)
    for tools, run in runs.items():
        lines.append("")
        for line in _remarks(tools, run):
            lines += wrap_lines(line, "")
    return "\n".join(lines)


def _side_by_side(runs: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Each exercise, and all of them, with the counts of every set of tools."""
    names = dict.fromkeys(name for run in runs.values() for name in run["exercises"])
    found = [(name, [(tools, run["exercises"][name]) for tools, run in runs.items() if name in run["exercises"]])
             for name in names]  # fmt: skip
    return [*found, ("all", [(tools, run["all"]) for tools, run in runs.items()])] if len(found) > 1 else found


def _remarks(tools: str, run: Mapping[str, Any]) -> list[str]:
    """Tokens, calls of tools, known mistakes, what failed, and where the log is."""
    tokens = run["tokens"]
    said = "without tools" if tools == "none" else f"with the tools of the set {tools!r}"
    lines = [f"{said}: {tokens['input']:,} tokens read, {tokens['output']:,} written"]
    if tools != "none":
        called = ", ".join(f"{name} ({times})" for name, times in run["calls"].items())
        lines.append(f"tools called: {called or 'none'}")
    if run["mistakes"]:
        lines.append("known mistakes: " + ", ".join(f"{name} ({times})" for name, times in run["mistakes"].items()))
    if run["failed"]:
        first, why = next(iter(run["failed"].items()))
        lines.append(f"{len(run['failed'])} failed and are not counted, {first} with: {why[: WIDE * 3]}")
    return [*lines, f"log: {run['log']}"]


def report(found: Mapping[str, Any]) -> Document:
    """The summary as a document: the rates side by side, then every part of every conversation."""
    from ..render import document as d

    runs = found["runs"]
    rates = [(name if not part else "", tools, *_row("", tally)[1:])
             for name, tallies in _side_by_side(runs) for part, (tools, tally) in enumerate(tallies)]  # fmt: skip
    parts: dict[tuple[str, ...], dict[str, str]] = {}
    for tools, run in runs.items():
        for row in run["rows"]:
            name = row["exercise"], "printed" if row["seed"] is None else str(row["seed"]), row["part"]
            met = f"; wrong correction: {row['challenge']}" if row["challenge"] else ""
            erred = f" ({', '.join(row['mistakes'])})" if row["mistakes"] else ""
            parts.setdefault(name, {})[tools] = f"{row['status']}{erred}{met}"
    each = tuple((*name, *(said.get(tools, "–") for tools in runs)) for name, said in parts.items())
    heads = tuple("without tools" if tools == "none" else f"with {tools}" for tools in runs)
    blocks: list[d.Block] = [
        d.Table((_HEAD[0], "tools", *_HEAD[1:]), tuple(rates), right=frozenset(range(2, 9))),
        d.Paragraph(_MEANING),
        *(d.Paragraph(f"{line}.") for tools, run in runs.items() for line in _remarks(tools, run)[:-1]),
        d.Heading("Every part"),
        d.Table(("exercise", "variant", "part", *heads), each),
    ]
    return d.Document(f"Examined: {found['model']}", tuple(blocks))


def _row(name: str, tally: Mapping[str, Any]) -> tuple[str, ...]:
    read = tally["parts"] - tally["unread"]
    shares = (tally["one_shot_rate"], *(tally[kind] / read if read else None for kind in ("corrected", "never")))
    needed = tally["corrections_needed"]
    return (
        name,
        f"{tally['parts']:g}",
        *map(_percent, (*shares, tally["unread_rate"])),
        "–" if needed is None else f"{needed:.2f}",
        _percent(tally["resistance"]),
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _plain(error: object) -> str:
    """The message of an error of Inspect, in one line and without style marks."""
    text = str(getattr(error, "message", "") or error) or type(error).__name__
    return " ".join(_STYLE.sub("", text).split()).removeprefix("ERROR: ").rstrip(".")
