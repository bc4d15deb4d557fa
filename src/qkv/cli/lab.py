"""`qkv lab`: print the address and run the server. Kept apart so that no other command imports the server."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import typer

from ..errors import OptionError, complaint
from ..lab import run as serve
from ..lab.checkpoints import FOLDER


def run(host: str, port: int | None, models: str | None, browser: bool, embed: str | None, as_json: bool) -> None:
    if models is not None:
        folder = Path(models)
        if not folder.is_dir():
            raise OptionError(complaint("--models", models, "a folder with checkpoints"))
        os.environ[FOLDER] = str(folder.resolve())

    def say(address: str, open_to_others: bool) -> None:
        if open_to_others:
            typer.echo("qkv: other machines can reach this address, and the lab has no password", err=True)
        typer.echo(json.dumps({"address": address}) if as_json else f"The lab is at {address} (Ctrl-C stops it)")
        sys.stdout.flush()

    serve(host, port, open_browser=browser, embed=embed, say=say)
    sys.stdout.flush()
    # Do not wait for threads that still import torch or compute.
    os._exit(0)
