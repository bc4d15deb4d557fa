"""`qkv mcp`: serve qkv to language models over stdio, or over streamable HTTP on this machine alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress

import anyio
import typer
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from ..errors import OptionError, complaint
from ..mcp.server import LONGEST, Server

HOST = "127.0.0.1"
GRACE = 2  # seconds that answers under way have when the server ends


def run(http: bool, port: int, seconds: float, as_json: bool) -> None:
    """Serve until the input ends, or until Ctrl-C."""
    server = Server(seconds)
    if http:
        with suppress(KeyboardInterrupt):  # the usual way to stop it
            _serve_http(server, port, as_json)
        return
    # A thread waits for the standard input, and only the end of the process ends it.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(0))
    server.run("stdio")


def _serve_http(server: Server, port: int, as_json: bool) -> None:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError as error:
            wanted = f"one that is free on {HOST} ({error.strerror})"
            raise OptionError(complaint("--port", port, wanted, "--port 0 takes any that is free")) from None
        listening.listen()
        # A page on another site that resolves its name to this machine is refused by these names.
        names = [f"{name}:{listening.getsockname()[1]}" for name in (HOST, "localhost")]
        allowed = TransportSecuritySettings(allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names])
        app = server.streamable_http_app(max_request_body_size=4 * LONGEST, transport_security=allowed)
        config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=GRACE)
        address = f"http://{names[0]}/mcp"
        typer.echo(json.dumps({"address": address}) if as_json else f"qkv is at {address} (Ctrl-C stops it)")
        sys.stdout.flush()
        anyio.run(uvicorn.Server(config).serve, [listening])
