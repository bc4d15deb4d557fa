"""Tiny models that chat, and servers of them in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from openai import OpenAI

import qkv
from qkv.serving.app import Server
from qkv.serving.limits import Limits
from qkv.serving.running import template_of
from qkv.web.running import listening, place_of
from tests.helpers.runtime_files import build, write_gguf

CHARACTERS = "".join(map(chr, range(0x20, 0x7F))) + "\n"
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}\n{% endfor %}a:"
)


def write(folder: Path, name: str = "llama", template: str | None = TEMPLATE, **options: Any) -> Path:
    """A GGUF file of a random model whose tokens are characters."""
    more = {} if template is None else {"tokenizer__chat_template": template}
    return write_gguf(build(name, **options), folder / "tiny.gguf", vocabulary=CHARACTERS, **more)


@contextmanager
def serving(path: Path, token: str | None = None, **limits: Any) -> Iterator[tuple[OpenAI, Server]]:
    """A client, and the server that it asks."""
    found = listening("127.0.0.1", 0, 0)
    place = place_of(found)
    template = template_of(path)
    model = qkv.runtime.load(path, threads=1)
    server = Server(model, "tiny", template, Limits(**limits), place.hosts, token)
    web = uvicorn.Server(uvicorn.Config(server.app, log_level="error", lifespan="on", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: web.run(sockets=[found]))
    thread.start()
    try:
        wait_for(lambda: web.started)
        with OpenAI(base_url=f"{place.address}v1", api_key=token or "none", max_retries=0, timeout=60) as client:
            yield client, server
    finally:
        web.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
        assert template is None or template._process._process is None


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.003)
