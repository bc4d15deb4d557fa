"""`qkv calibrate`: measure this machine, keep the figures, show them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from ..cost.machine import Machine, path
from ..cost.readable import wrapped
from ..errors import OptionError, complaint

_UNITS = {"read": "B/s", "write": "B/s", "copy": "B/s", "multiply": "FLOP/s", "exponential": "exp/s", "call": "s"}
_MEANING = {
    "read": "bytes read",
    "write": "bytes written",
    "copy": "bytes copied",
    "multiply": "matrix products",
    "exponential": "exponentials",
    "call": "an operator on one number",
    "threads": "all threads beside one",
}


def calibrate(show_only: bool, as_json: bool, ranks: int | None = None) -> None:
    if not show_only:
        _check_folder()
    if ranks is not None:
        _ranks(ranks, show_only, as_json)
        return
    machine = _stored() if show_only else _measured(quiet=as_json)
    where = path() if show_only else machine.store()
    if as_json:
        print(json.dumps({**machine.as_dict(), "file": str(where)}, indent=2))
        return
    _show(machine)
    for doubt in machine.doubts:
        print(f"doubtful: {doubt}. Something else was running; qkv calibrate again when it is not.")
    print(f"\n{'kept in' if not show_only else 'from'} {where}; auto, explain and plan go by it.")


def _ranks(most: int, show_only: bool, as_json: bool) -> None:
    """Calls over ranks of this machine, for plans and their scaling curve."""
    from ..cost.links import points_path, read_points, write_points
    from ..cost.scaling_report import measured_text

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
        hint = "qkv calibrate --ranks 4 measures some, in about half a minute"
        raise OptionError(complaint("--show", "a machine whose ranks were not measured", "some", hint))
    print(measured_text(points))
    for link in dict.fromkeys(point.link for point in points if point.link and point.ranks > 1):
        print("\n".join(wrapped(f"{link.ranks} ranks: {str(link).partition(': ')[2]}", "  ")))
    print(f"\n{'from' if show_only else 'kept in'} {where}; qkv plan --machines shows it.")


def _check_folder() -> None:
    """Before half a minute is spent on figures that nobody can keep."""
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(path().parent, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        hint = "QKV_CACHE names another folder"
        raise OptionError(complaint("cache folder", str(path().parent), "a folder that can be written to", hint))


def _stored() -> Machine:
    machine = Machine.stored()
    if machine is None:
        hint = "qkv calibrate measures it, in about a quarter of a minute"
        raise OptionError(complaint("--show", "a machine without figures, or a file that cannot be read", "some", hint))
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
    prices = Table(title="predictions beside the calls that they were fitted to", title_justify="left")
    prices.add_column("engine and dtype")
    prices.add_column("off by, in the middle", justify="right")
    for name in sorted(machine.errors):
        prices.add_row(name, f"{machine.errors[name]:.0%}")
    console.print(prices)


def _readable(figure: float, unit: str) -> str:
    from ..figures import readable

    return f"{figure:.2f} x" if unit == "x" else readable(figure, unit, 3)
