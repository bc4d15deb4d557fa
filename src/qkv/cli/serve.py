"""`qkv serve`: print the address and the limits, and run the server."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported, if it is: no downloads

import typer

from ..errors import QkvError
from ..serving import Limits
from ..serving import run as serve
from ..serving.app import Server
from ..web.running import Place
from .errors import with_options

_OPTIONS = {"path": "MODEL", "host": "--host", "port": "--port", "token_file": "--token-file", "context": "--context"}


class Options(NamedTuple):
    """The arguments of the command."""

    model: str
    host: str
    port: int | None
    token_file: str | None
    activations: str
    threads: int | None
    limits: dict[str, int | float | None]


def run(options: Options, as_json: bool) -> None:
    def say(place: Place, server: Server) -> None:
        address = f"{place.address}v1"
        if server.model.reason:
            typer.echo(f"qkv: {server.name} runs in transformers: {server.model.reason}", err=True)
        if as_json:
            typer.echo(json.dumps({"address": address, "model": server.name, "context": server.context}))
        else:
            typer.echo(f"{server.name} is at {address} (Ctrl-C stops it)")
        sys.stdout.flush()

    where = {"host": options.host, "port": options.port, "token_file": options.token_file}
    how = {"activations": options.activations, "threads": options.threads, "say": say}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # `say` has the reason
            serve(options.model, **where, limits=Limits(**options.limits), **how)  # type: ignore[arg-type]
    except QkvError as error:
        raise with_options(error, _OPTIONS) from error
