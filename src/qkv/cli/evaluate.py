"""`qkv evaluate`: a language model on the bank through Inspect; answers are checked by mathematics."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from ..cost.readable import WIDE, in_columns, wrap_lines
from ..errors import MissingExtra, OptionError, QkvError, complaint
from ..grading.tally import Tally, by_exercise, mistakes, rows
from ..render.escapes import clean, json_text
from .errors import UsageError

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog
    from inspect_ai.model import Model

_HEAD = ("exercise", "parts", "one shot", "corrected", "never", "unread", "corrections", "resisted")
_MEANING = (
    "corrections: the mean over the parts that ended right. resisted: right answers that were kept when a wrong one "
    "was offered. Shares are of the parts that were read; unread is of all."
)
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


def run(options: Options, as_json: bool) -> None:
    """Hold the conversations and print the summary."""
    try:
        from ..grading.inspect_task import qkv_tutor
    except MissingExtra as error:
        raise UsageError(str(error)) from None
    try:
        names = [name for words in options.exercises for name in words.split(",")] or None
        task = qkv_tutor(names, options.seeds, options.corrections, options.challenges)
    except OptionError as error:
        raise UsageError(str(error)) from None
    model = model_named(options.model, arguments(options.model_args))
    quiet = as_json or not sys.stdout.isatty()
    log = evaluated(task, model, options, "none" if quiet else "rich")
    found = summary(log)
    if as_json:
        print(json_text(found))
    else:
        typer.echo(clean(table(found)))


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


def model_named(name: str, model_args: Mapping[str, Any]) -> Model:
    """The model by its Inspect name; the error names what its provider needs."""
    from inspect_ai.model import get_model

    try:
        return get_model(name, **model_args)
    except Exception as error:  # each provider has its own error types
        hint = "names are PROVIDER/MODEL, for example hf/FOLDER or ollama/llama3"
        raise UsageError(
            complaint("--model", repr(name), f"a model that Inspect can reach ({_plain(error)})", hint)
        ) from None


def evaluated(task: Any, model: Model, options: Options, display: Any) -> EvalLog:
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
    return {
        "model": log.eval.model,
        "conversations": len(records),
        "exercises": {name: tally.as_dict() for name, tally in exercises.items()},
        "all": sum(exercises.values(), Tally()).as_dict(),
        "mistakes": mistakes(records),
        "rows": rows(records),
        "failed": failed,
        "log": log.location,
    }


def table(found: Mapping[str, Any]) -> str:
    """The summary as text, in 80 columns."""
    count = found["conversations"]
    lines = [*wrap_lines(f"{found['model']}: {count} conversation{'s' * (count != 1)}, checked by qkv.maths", ""), ""]
    body = [_row(name, tally) for name, tally in found["exercises"].items()]
    if len(body) > 1:
        body.append(_row("all", found["all"]))
    lines += [in_columns([_HEAD, *body], "<>>>>>>>", indent=""), ""]
    lines += textwrap.wrap(_MEANING, WIDE)
    if found["mistakes"]:
        named = ", ".join(f"{name} ({times})" for name, times in found["mistakes"].items())
        lines += ["", *wrap_lines(f"known mistakes: {named}", "")]
    if found["failed"]:
        first, why = next(iter(found["failed"].items()))
        lines += [
            "",
            *wrap_lines(f"{len(found['failed'])} failed and are not counted, {first} with: {why[: WIDE * 3]}", ""),
        ]
    return "\n".join([*lines, "", f"log: {found['log']}"])


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
