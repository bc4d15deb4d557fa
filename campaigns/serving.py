"""An hour of mixed load on `qkv serve`: every answer is right or refused in words, and memory stays flat.

Each batch starts a server of a tiny random model, and clients that ask for whole answers and streams, in JSON, with
shared prefixes and stop texts, that go away in the middle, and that send what cannot be answered. An answer at
temperature 0 is compared with `generate`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

import qkv
from tests.helpers.serving import write

from .campaign import Batch, Campaign

CLIENTS, ROWS = 9, 3  # up to three rows have the bits of `generate`
SECONDS = 3600
MOST_GROWTH = 8 << 20  # bytes, from the first quarter to the end
KINDS = ("whole", "stream", "json", "leave", "wrong")


def resident(process: subprocess.Popen[str]) -> int:
    """Resident bytes of the server."""
    return int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def judge_memory(series: list[int]) -> dict[str, int]:
    """Raise AssertionError if the server grows after the first quarter."""
    quarter = max(1, len(series) // 4)
    growth = max(series[-quarter:]) - max(series[quarter : 2 * quarter])
    if growth > MOST_GROWTH:
        raise AssertionError(f"the server grows by {growth} bytes, allowed {MOST_GROWTH}; {series}")
    return {"bytes": series[-1], "growth": growth}


class Clients:
    """What the clients do until the time is over, and what they found."""

    def __init__(self, address: str, model: qkv.runtime.Model, until: float) -> None:
        self.address, self.model, self.until = address, model, until
        self.done: Counter[str] = Counter()
        self.faults: list[str] = []
        self.lock = threading.Lock()
        self.wanted: dict[str, str] = {}

    def run(self, seed: int) -> None:
        draw = random.Random(seed)
        with httpx.Client(base_url=self.address, timeout=600) as client:
            while time.monotonic() < self.until and not self.faults:
                kind = draw.choice(KINDS)
                try:
                    outcome = getattr(self, kind)(client, draw)
                except Exception as error:
                    self.faults.append(f"{kind}: {type(error).__name__}: {error}")
                    return
                with self.lock:
                    self.done[outcome] += 1

    def whole(self, client: httpx.Client, draw: random.Random) -> str:
        body = self.body(draw)
        found = client.post("completions", json=body)
        return self.checked("whole", body, found.status_code, found.json)

    def stream(self, client: httpx.Client, draw: random.Random) -> str:
        body = self.body(draw) | {"stream": True}
        with client.stream("POST", "completions", json=body) as found:
            lines = [line.removeprefix("data: ") for line in found.iter_lines() if line]
        if found.status_code != 200:
            return self.refused(found.status_code)
        assert lines.pop() == "[DONE]", "a stream without its end"
        text = "".join(choice["text"] for line in lines for choice in json.loads(line)["choices"])
        return self.checked("stream", body, 200, lambda: {"choices": [{"text": text}]})

    def json(self, client: httpx.Client, draw: random.Random) -> str:
        wanted = {
            "type": "object",
            "properties": {"x": {"enum": [3, 5, 7]}},
            "required": ["x"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": wanted}}
        body = {"model": "tiny", "messages": [{"role": "user", "content": self.prompt(draw)}], "response_format": form}
        found = client.post("chat/completions", json=body | {"seed": draw.randrange(99), "temperature": 1.3})
        if found.status_code != 200:
            return self.refused(found.status_code)
        assert json.loads(found.json()["choices"][0]["message"]["content"])["x"] in (3, 5, 7)
        return "json"

    def leave(self, client: httpx.Client, draw: random.Random) -> str:
        body = self.body(draw) | {"stream": True, "max_tokens": 150}
        seconds = draw.choice([0.001, 0.01, 5])
        stream = client.stream("POST", "completions", json=body, timeout=seconds)
        with suppress(httpx.HTTPError), stream as found:
            for _ in zip(range(draw.randrange(9)), found.iter_lines(), strict=False):
                pass
        return "leave"

    def wrong(self, client: httpx.Client, draw: random.Random) -> str:
        faults = {"n": 2}, {"max_tokens": 10**6}, {"prompt": []}, {"seed": "x"}, {"model": "y"}
        body = self.body(draw) | draw.choice(faults)
        found = client.post("completions", json=body)
        assert found.status_code in (400, 404), found.text
        assert found.json()["error"]["message"]
        return "wrong"

    def prompt(self, draw: random.Random) -> str:
        """One of a few beginnings, and a random end."""
        return "abcdefg"[draw.randrange(7)] * 70 + "".join(draw.choices("xyz", k=draw.choice([1, 5, 40])))

    def body(self, draw: random.Random) -> dict[str, Any]:
        greedy = draw.random() < 0.5
        body = {"model": "tiny", "prompt": self.prompt(draw), "max_tokens": draw.choice([1, 7, 31, 60])}
        body |= {"temperature": 0} if greedy else {"temperature": 1.1, "seed": draw.randrange(99), "top_p": 0.9}
        return body | ({"stop": ["e", "zz"]} if draw.random() < 0.3 else {})

    def checked(self, kind: str, body: dict[str, Any], status: int, answer: Any) -> str:
        if status != 200:
            return self.refused(status)
        if body["temperature"] == 0:
            key = json.dumps({name: body.get(name) for name in ("prompt", "max_tokens", "stop")})
            with self.lock:
                if key not in self.wanted:
                    found = self.model.generate(body["prompt"], body["max_tokens"], stop=body.get("stop", ()))
                    self.wanted[key] = found.text
            found = answer()["choices"][0]["text"]
            assert found == self.wanted[key], f"{key}: {found!r}, not {self.wanted[key]!r}"
        return kind

    def refused(self, status: int) -> str:
        assert status == 429, f"status {status}"
        return "refused"


def run(seed: int, count: int) -> Batch:
    """`count` seconds of load."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder))
        model = qkv.runtime.load(path, threads=1)
        limits = ("--max-rows", str(ROWS), "--max-queue", "3", "--cache-bytes", str(1 << 22), "--threads", "1")
        command = [sys.executable, "-m", "qkv", "serve", str(path), "--port", "0", "--json", *limits]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                address = json.loads(process.stdout.readline())["address"]
                until = time.monotonic() + count
                clients = Clients(address, model, until)
                threads = [threading.Thread(target=clients.run, args=(seed * CLIENTS + at,)) for at in range(CLIENTS)]
                for thread in threads:
                    thread.start()
                series = []
                while any(thread.is_alive() for thread in threads):
                    series.append(resident(process))
                    time.sleep(min(10.0, count / 40))
            finally:
                process.terminate()
                status = process.wait(60)
    assert not clients.faults, "\n".join(clients.faults)
    assert status == 0, f"the server ended with {status}"
    assert set(clients.done) >= {"whole", "stream", "json", "leave", "wrong"}, clients.done
    return Batch(count, {"requests": dict(sorted(clients.done.items())), **judge_memory(series)})


CAMPAIGN = Campaign(
    about="mixed load on qkv serve for an hour: answers are right or refused, memory stays flat",
    unit="seconds",
    goal=SECONDS,
    batch=SECONDS,
    run=run,
    alone=True,
    limit=2 * SECONDS,
)
