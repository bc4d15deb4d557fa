"""Chat templates: untrusted programs in Jinja, rendered in a process with bounded time, memory and output.

Run as a script, this file renders the template on its standard input; it imports nothing of qkv then. The sandbox is
the one of transformers (`transformers.utils.chat_template_utils`): immutable, with its filter and functions.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

MAX_SECONDS = 10  # of one text; templates take milliseconds
MAX_MEMORY = 1 << 30  # bytes of addresses
MAX_CHARACTERS = 1 << 22  # of a prompt


class TemplateProcess:
    """A process that renders chat templates one after the other; threads may share it.

    >>> with TemplateProcess() as process:
    ...     [process.render("{{ messages[0].content }}", text, {}) for text in ("one", "two")]
    ['one', 'two']
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> TemplateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def render(
        self,
        template: str,
        messages: str | Sequence[Mapping[str, Any]],
        words: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """A chat in its template, ready for the answer.

        Args:
            template: The text of the template.
            messages: What the user says, or messages with a role and a content.
            words: Other variables, such as bos_token.
            tools: What the model may call: functions with their JSON schemas, as in OpenAI's requests.

        Returns:
            The text to continue, special tokens included.

        Raises:
            OptionError: The template fails, takes too long or returns too much.
        """
        from ..errors import OptionError, complaint

        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        given = {"messages": messages, "tools": tools or None, "documents": None, "add_generation_prompt": True}
        request = json.dumps({"template": template, "given": given | dict(words)})
        with self._lock:
            answer = self._asked(request.encode())
        if "text" in answer:
            return answer["text"]
        what = f"a chat template that {' '.join(answer['error'].split())[:200]}"
        raise OptionError(complaint("chat", what, "one that accepts these messages"))

    def close(self) -> None:
        """End the process; the next text starts another."""
        with self._lock:
            self._kill()

    def _asked(self, request: bytes) -> dict[str, str]:
        if self._process is None:
            # Isolated, so that neither the user's variables nor the current folder add code.
            command, pipe = [sys.executable, "-I", __file__], subprocess.PIPE
            # A session of this process alone: Ctrl-C of the terminal is for the caller.
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
            )
        process, line, status = self._process, b"", 0
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()
        clock = threading.Timer(MAX_SECONDS, lambda: (late.set(), process.kill()))
        clock.start()
        try:
            with suppress(OSError):  # it has ended, and says nothing
                process.stdin.write(request + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
        finally:
            clock.cancel()
            if not line.endswith(b"\n"):
                status = self._kill()
        if line.endswith(b"\n"):
            return json.loads(line)
        if late.is_set():
            return {"error": f"takes more than {MAX_SECONDS} seconds"}
        return {"error": f"ends its process (status {status}): too much time or memory"}

    def _kill(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        if process.stdout is not None:
            process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(1)  # the end of its input is the end of it
        process.kill()
        return process.wait()


def _render(template: str, given: dict[str, Any]) -> str:
    from datetime import datetime

    from jinja2 import TemplateError, ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """{% generation %}…{% endgeneration %} marks answers for training; here it is what it contains."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    extensions: list[Any] = [Generation, ext.loopcontrols]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    pieces, length = [], 0
    for piece in environment.from_string(template).generate(given):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_CHARACTERS:
            raise ValueError(f"more than {MAX_CHARACTERS} characters")
    return "".join(pieces)


def _main() -> None:
    """For each line of standard input, a template, write a line with its text, or why it fails."""
    resource: Any = None  # where there is none, the parent's limit of time remains
    with suppress(ImportError):
        resource = importlib.import_module("resource")
    if hasattr(resource, "RLIMIT_AS"):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    for line in sys.stdin.buffer:
        if hasattr(resource, "RLIMIT_CPU"):
            with suppress(ValueError, OSError):
                spent = resource.getrusage(resource.RUSAGE_SELF)
                most = int(spent.ru_utime + spent.ru_stime) + 1 + MAX_SECONDS
                resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        try:
            answer = {"text": _render(**json.loads(line))}
        except Exception as error:
            answer = {"error": f"fails ({type(error).__name__}: {str(error)[:1000]})"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
