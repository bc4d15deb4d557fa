"""`qkv prove`: run the claims, say which hold and how far that was proved, and write it all down."""

from __future__ import annotations

import inspect
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from ..cost.naming import resolve
from ..errors import OptionError, QkvError, complaint

if TYPE_CHECKING:
    from ..theory.claim import Claim
    from .proofs import Outcome


class Options(NamedTuple):
    names: list[str]
    report: str | None
    as_json: bool
    quick: bool


class WrongWord(Exception):
    """A word that is none of those that there are: the command ends with 2."""


def run(options: Options) -> bool:
    """Whether every claim that was asked for holds."""
    with _interruptible() as go_on:
        from ..theory import claims

        chosen = _chosen(claims(), options)
        path = _path(options.report)
        outcomes = _outcomes(chosen, go_on, quiet=options.as_json)
        if path is not None:
            _report(outcomes, path, go_on)
    if options.as_json:
        _print_json(outcomes)
    else:
        from .proofs import show

        show(outcomes, in_full=bool(options.names))
    if path is not None:
        typer.echo(f"report: {path}", err=True)
    return all(outcome.holds for outcome in outcomes)


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Ctrl-C, remembered: a library may swallow it as it is imported or calls back, so `go_on()` raises it again."""
    asked = False

    def note(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def go_on() -> None:
        if asked:
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # somebody else decides
        yield go_on
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield go_on
        go_on()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def show_list(as_json: bool) -> None:
    """Every claim, with the first line of what it says of itself."""
    from ..theory import claims

    rows = [(name, *_described(claim)) for name, claim in claims().items()]
    if as_json:
        found = [{"name": name, "about": about, "slow": slow} for name, about, slow in rows]
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    import textwrap

    wide = max(len(name) for name, _, _ in rows)
    for name, about, slow in rows:
        said = f"{about} (trains: about a minute)" if slow else about
        typer.echo(textwrap.fill(said, 80, initial_indent=f"{name:<{wide}}  ", subsequent_indent=" " * (wide + 2)))


def _described(claim: Callable[..., Claim]) -> tuple[str, bool]:
    paragraph = (claim.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(paragraph.split()), bool(getattr(claim, "slow", False))


def _chosen(known: Mapping[str, Callable[..., Claim]], options: Options) -> dict[str, Callable[..., Claim]]:
    if not options.names:
        return {name: claim for name, claim in known.items() if not (options.quick and getattr(claim, "slow", False))}
    try:
        names = [resolve("claim", name, known, "the name of a claim", "qkv prove --list shows them")
                 for name in options.names]  # fmt: skip
    except OptionError as error:
        raise WrongWord(str(error)) from None
    slow = [name for name in names if options.quick and getattr(known[name], "slow", False)]
    if slow:
        raise WrongWord(complaint("--quick", f"beside {', '.join(slow)}, which trains", "one or the other"))
    return {name: known[name] for name in names}


def _path(report: str | None) -> Path | None:
    """Before the work begins: a report that cannot be written is said at once."""
    if report is None:
        return None
    from ..render.saving import writable

    try:
        return writable(report, "--report")
    except OptionError as error:
        raise WrongWord(str(error)) from None


def _outcomes(chosen: Mapping[str, Callable[..., Claim]], go_on: Callable[[], None], quiet: bool) -> list[Outcome]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("proving"), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    silent = quiet or not sys.stderr.isatty()
    found = []
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as bar:
        task = bar.add_task("", total=len(chosen))
        for place, (name, claim) in enumerate(chosen.items()):
            go_on()
            bar.update(task, description=name, completed=place)

            def progress(part: float, done: int = place) -> None:
                go_on()
                bar.update(task, completed=done + part)

            found.append(_outcome(name, claim, progress))
        go_on()
    return found


def _outcome(name: str, claim: Callable[..., Claim], progress: Callable[[float], None]) -> Outcome:
    """A claim that stops with an error is red, and the others are run all the same."""
    from .proofs import Outcome

    began = time.perf_counter()
    try:
        # What takes long says how far it has come.
        made = claim(progress=progress) if "progress" in inspect.signature(claim).parameters else claim()
        made.checks  # noqa: B018 - decided here and remembered, so that the time is counted
    except Exception as error:
        said = str(error) if isinstance(error, QkvError) else f"{type(error).__name__}: {error}"
        return Outcome(name, None, said, time.perf_counter() - began)
    return Outcome(name, made, "", time.perf_counter() - began)


def _report(outcomes: Sequence[Outcome], path: Path, go_on: Callable[[], None]) -> None:
    from ..render.saving import save
    from .proofs import report

    document = report(outcomes)
    go_on()
    save(document, path)


def _print_json(outcomes: Sequence[Outcome]) -> None:
    found = {"holds": all(outcome.holds for outcome in outcomes), "claims": [_as_dict(each) for each in outcomes]}
    print(json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False))


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    common = {"name": outcome.name, "holds": outcome.holds, "seconds": round(outcome.seconds, 3)}
    claim = outcome.claim
    if claim is None:
        return {**common, "error": outcome.error}
    lines = []
    for line, verdict in zip(claim.derivation, claim.checks, strict=True):
        said: dict[str, Any] = {"relation": line.relation, "text": line.text, "reason": line.reason}
        if line.symbols is not None:
            said["symbols"] = dict(line.symbols)
        lines.append({**said, "verdict": None if verdict is None else verdict.as_dict()})
    evidence = [
        {"what": each.what, "kind": each.kind, "residual": _number(each.residual), "bound": _number(each.bound)}
        for each in claim.evidence
    ]
    corrections = [{"document": each.document, "says": each.says, "right": each.right} for each in claim.corrections]
    return {
        **common,
        "title": claim.title,
        "statement": claim.statement,
        "proved": claim.proved,
        "symbols": dict(claim.symbols),
        "derivation": lines,
        "evidence": evidence,
        "corrections": corrections,
        "sources": list(claim.sources),
    }


def _number(value: float | None) -> float | None:
    """JSON has neither nan nor infinity: such a residual is null beside the kind "refuted"."""
    return value if value is not None and math.isfinite(value) else None
