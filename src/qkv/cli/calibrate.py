"""`qkv calibrate`: measure this machine, store the figures, show them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from ..cost.machine import Machine, calibration_path
from ..cost.readable import wrap_lines
from ..errors import OptionError, complaint

_UNITS = {"read": "B/s", "write": "B/s", "copy": "B/s", "multiply": "FLOP/s", "exponential": "exp/s", "call": "s"}
_MEANING = {
    "read": "bytes read",
    "write": "bytes written",
    "copy": "bytes copied",
    "multiply": "matrix products",
    "exponential": "exponentials",
    "call": "an operator on one number",
    "threads": "all threads over one",
}


def calibrate(show_only: bool, as_json: bool, ranks: int | None = None) -> None:
    if not show_only:
        _check_folder()
    if ranks is not None:
        _ranks(ranks, show_only, as_json)
        return
    machine = _stored() if show_only else _measured(quiet=as_json)
    where = calibration_path() if show_only else machine.store()
    if as_json:
        print(json.dumps({**machine.as_dict(), "file": str(where)}, indent=2))
        return
    _show(machine)
    for doubt in machine.doubts:
        print(f"doubtful: {doubt}. Another program was running; run qkv calibrate again without it.")
    print(f"\n{'stored in' if not show_only else 'from'} {where}; used by auto, explain and plan.")


def _ranks(most: int, show_only: bool, as_json: bool) -> None:
    """Measure attention over ranks of this machine, for the scaling curve of plans."""
    from ..cost.communication import points_path, read_points, write_points
    from ..cost.report import measured_text

    if show_only:
        points, where = read_points(), points_path()
    else:
        from ..profiling.ranks import measure_ranks

        console = Console(stderr=True, quiet=as_json)
        with console.status(f"measuring attention over up to {most} ranks"):
            points = measure_ranks(most)
        where = write_points(points)
    if as_json:
        print(json.dumps({"points": [asdict(point) for point in points], "file": str(where)}, indent=2))
        return
    if not points:
        hint = "run qkv calibrate --ranks 4, which takes about half a minute"
        raise OptionError(complaint("--show", "no stored measurements of ranks", "stored measurements", hint))
    print(measured_text(points))
    for link in dict.fromkeys(point.link for point in points if point.link and point.ranks > 1):
        print("\n".join(wrap_lines(f"{link.ranks} ranks: {str(link).partition(': ')[2]}", "  ")))
    print(f"\n{'from' if show_only else 'stored in'} {where}; used by qkv plan --machines.")


def _check_folder() -> None:
    """Check that the figures can be stored, before they are measured."""
    try:
        calibration_path().parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(calibration_path().parent, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        hint = "set QKV_CACHE to another folder"
        raise OptionError(
            complaint("cache folder", str(calibration_path().parent), "a folder that can be written to", hint)
        )


def _stored() -> Machine:
    machine = Machine.stored()
    if machine is None:
        hint = "run qkv calibrate, which takes about 15 seconds"
        raise OptionError(complaint("--show", "no stored figures, or an unreadable file", "stored figures", hint))
    return machine


def _measured(quiet: bool) -> Machine:
    console = Console(stderr=True)
    columns = TextColumn("measuring"), BarColumn(), TaskProgressColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("", total=1.0)
        return Machine.measure(lambda what, part: bar.update(task, completed=part, description=what))


def _show(machine: Machine) -> None:
    console = Console()
    roofs = Table(title=f"{machine.name}, {machine.threads} threads, torch {machine.torch}", title_justify="left")
    for column in ("roof", "what", "figure"):
        roofs.add_column(column, justify="right" if column == "figure" else "left")
    for name, figure in machine.roofs.items():
        kind = name.split(".")[0]
        roofs.add_row(name, _MEANING.get(kind, ""), _readable(figure, _UNITS.get(kind, "x")))
    console.print(roofs)
    prices = Table(title="error of the predictions, on the calls that they were fitted to", title_justify="left")
    prices.add_column("engine and dtype")
    prices.add_column("median error", justify="right")
    for name in sorted(machine.errors):
        prices.add_row(name, f"{machine.errors[name]:.0%}")
    console.print(prices)


def _readable(figure: float, unit: str) -> str:
    from ..figures import readable

    return f"{figure:.2f} x" if unit == "x" else readable(figure, unit, 3)
