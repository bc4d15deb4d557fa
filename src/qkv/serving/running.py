"""`qkv serve`: opens a model and serves it until SIGTERM or Ctrl-C."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import OptionError, complaint
from ..runtime import load
from ..runtime.chat import ChatTemplate
from ..web.running import Place, listening, place_of, serve
from .app import Server
from .limits import Limits

HOST, PORT = "127.0.0.1", 8766
_SHORTEST = 16  # characters of a token


def run(
    path: str | os.PathLike[str],
    *,
    host: str = HOST,
    port: int | None = None,
    token_file: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
    activations: str = "float32",
    threads: int | None = None,
    say: Callable[[Place, Server], None],
) -> None:
    """Serve a model until SIGTERM or Ctrl-C.

    Args:
        path: As for `qkv.runtime.load`.
        host: The address to listen on; one that other machines reach needs a token.
        port: None takes the usual one, or any that is free; 0 takes any.
        token_file: A file with the token that requests must bring.
        limits: What clients may ask.
        activations: As for `qkv.runtime.load`.
        threads: Of a step.
        say: Called when the server listens.
    """
    limits = limits or Limits()
    token = None if token_file is None else _token(token_file)
    found = listening(host, port, PORT)
    try:
        place = place_of(found)
        if place.is_open and token is None:
            hint = "--token-file FILE names the token that requests must bring"
            raise OptionError(complaint("host", f"{host}, which other machines reach", "a token", hint))
        model = load(path, activations=activations, threads=threads)
        if limits.context is not None and limits.context > model.context:
            raise OptionError(complaint("context", limits.context, f"at most {model.context}, the model's"))
        server = Server(model, _name(path), template_of(path), limits, place.hosts, token)
        say(place, server)
        caps: dict[str, Any] = {"header_seconds": limits.header_seconds, "connections": limits.connections}
        serve(server.app, found, end=server.end, **caps, grace=math.ceil(limits.grace) + 2)
    finally:
        found.close()


def _name(path: str | os.PathLike[str]) -> str:
    given = Path(path).resolve()
    return given.stem if given.is_file() else given.name


def template_of(path: str | os.PathLike[str]) -> ChatTemplate | None:
    try:
        return ChatTemplate(path)
    except OptionError:
        return None


def _token(path: str | os.PathLike[str]) -> str:
    try:
        text = Path(path).read_bytes()[:4096].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        hint = "openssl rand -hex 32 > FILE writes one"
        raise OptionError(complaint("token_file", f"{str(path)!r} ({why})", "a file with a token", hint)) from error
    if len(text) < _SHORTEST or not text.isprintable() or " " in text:
        wanted = f"one word of {_SHORTEST} characters or more, as `openssl rand -hex 32` writes it"
        raise OptionError(complaint("token_file", f"{len(text)} characters", wanted))
    return text
