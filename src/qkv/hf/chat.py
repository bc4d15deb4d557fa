"""Chat templates: untrusted programs in Jinja, rendered in a process with bounded time, memory and output.

Run as a script, this file renders the template on its standard input; it imports nothing of qkv then. The sandbox is
the one of transformers (`transformers.utils.chat_template_utils`): immutable, with its filter and functions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

MAX_SECONDS = 10  # of the whole process; templates take milliseconds
MAX_MEMORY = 1 << 30  # bytes of addresses
MAX_CHARACTERS = 1 << 22  # of a prompt


def in_template(template: str, prompt: str, words: dict[str, Any]) -> str:
    """A question in a chat template, ready for the answer.

    Args:
        template: The text of the template.
        prompt: What the user says.
        words: Other variables, such as bos_token.

    Returns:
        The text to continue, special tokens included.

    Raises:
        OptionError: The template fails, takes too long or returns too much.

    >>> in_template("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}", "Hello", {})
    '[user] Hello'
    """
    from ..errors import OptionError, complaint

    def refused(what: str) -> OptionError:
        given = f"a chat template that {' '.join(what.split())[:200]}"
        return OptionError(complaint("--chat", given, "one that accepts a question", "leave --chat out"))

    request = json.dumps({"template": template, "prompt": prompt, "words": words})
    try:
        # Isolated, so that neither the user's variables nor the current folder add code.
        command = [sys.executable, "-I", __file__]
        done = subprocess.run(command, input=request.encode(), capture_output=True, timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        raise refused(f"takes more than {MAX_SECONDS} seconds") from None
    if done.returncode:
        raise refused(f"ends its process (status {done.returncode}): too much time or memory")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise refused(f"fails ({answer['error']})")
    return answer["text"]


def _render(template: str, prompt: str, words: dict[str, Any]) -> str:
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
    messages = [{"role": "user", "content": prompt}]
    given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, **words}
    pieces, length = [], 0
    for piece in environment.from_string(template).generate(given):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_CHARACTERS:
            raise ValueError(f"more than {MAX_CHARACTERS} characters")
    return "".join(pieces)


def _main() -> None:
    """Read a template from standard input, and write its text, or why it fails, to standard output."""
    try:
        import resource

        for name, most in (("RLIMIT_AS", MAX_MEMORY), ("RLIMIT_CPU", MAX_SECONDS)):
            if hasattr(resource, name):
                resource.setrlimit(getattr(resource, name), (most, most))
    except (ImportError, ValueError, OSError):
        pass  # the parent's limit of time remains
    try:
        answer = {"text": _render(**json.load(sys.stdin))}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {str(error)[:1000]}"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    _main()
