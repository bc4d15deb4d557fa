"""`qkv serve`: print the address and the limits, and run the server."""

from __future__ import annotations

import json
import os
import sys
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported, if it is: no downloads

import typer

from ..errors import MissingExtra
from ..render.escapes import clean

if TYPE_CHECKING:
    from ..serving.app import Server
    from ..web.running import Place

_PACKAGES = ("jinja2", "starlette", "tokenizers", "uvicorn")


def run(model: str, as_json: bool, limits: dict[str, Any], **options: Any) -> None:
    if missing := [package for package in _PACKAGES if find_spec(package) is None]:
        raise MissingExtra("qkv serve", " and ".join(missing), "serve")
    from ..serving.limits import Limits
    from ..serving.running import run as serve

    def say(place: Place, server: Server) -> None:
        address = f"{place.address}v1"
        if server.model.reason:
            typer.echo(f"qkv: {server.name} runs in transformers: {server.model.reason}", err=True)
        if as_json:
            typer.echo(json.dumps({"address": address, "model": server.name, "context": server.context}))
        else:
            typer.echo(f"{server.name} is at {address} (Ctrl-C stops it)")
        sys.stdout.flush()

    if sys.stderr is not None and sys.stderr.isatty():
        typer.echo(clean(f"loading {model}"), err=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `say` has the reason
        serve(model, limits=Limits(**limits), say=say, **options)
