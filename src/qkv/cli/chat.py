"""`qkv chat`: a chat with a local model in the terminal; between turns only new tokens run."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import typer

from .. import runtime
from ..errors import OptionError, QkvError, complaint
from ..render.escapes import clean, json_text
from ..runtime.chat import ChatTemplate
from ..runtime.prefixes import PrefixStore
from .errors import with_options
from .generate import STORAGE, Options
from .waiting import waiting

HELP = (
    "/save FILE and /load FILE keep and restore the chat, /reset begins a new one, /help prints this; a line that ends "
    "in \\ continues. Ctrl-C stops an answer, Ctrl-D ends."
)
_OPTIONS = {"path": "MODEL", "chat": "MODEL", "prompt": "message", "temperature": "--temperature", "top_p": "--top-p"}
MOST_BYTES = 1 << 31  # of keys and values that are kept between turns
_ROLES = ("system", "user", "assistant")


class Session:
    """A chat: its messages, and the cache of what has run."""

    def __init__(self, options: Options, system: str | None) -> None:
        self.options, self.system = options, system
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a model that runs in transformers
            self.model = runtime.load(options.model, activations=options.activations)
        self.template = ChatTemplate(options.model)
        self.prefixes = PrefixStore(self.model, MOST_BYTES, dtype=STORAGE[options.kv_cache].dtype)
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def answer(self, said: str, show: Callable[[str], None]) -> dict[str, Any]:
        """Answer the user. The text goes to `show` as it comes; a question that cannot be answered is forgotten.

        Returns:
            The answer, why it ended ("stop", "length" or "interrupted"), and figures of the turn.
        """
        options, before = self.options, list(self.messages)
        self.messages.append({"role": "user", "content": said})
        try:
            tokens, dropped = self._fitting()
        except (QkvError, KeyboardInterrupt):
            self.messages = before
            raise
        read, new, text, times = self.model.tokenizer.stream(), list[int](), list[str](), [perf_counter()]

        def arrived(_: int, token: int, __: str) -> None:
            times.append(perf_counter())
            new.append(token)
            text.append(read(token))
            show(text[-1])

        cache, known = self.prefixes.find(tokens)
        space = self.model.context - len(tokens) + 1
        given = {**options.choice(len(before)), "cache": cache, "on_token": arrived}
        try:
            finish = self.model.generate(tokens[known:], min(options.new, space), **given).finish
        except KeyboardInterrupt:
            finish = "interrupted"
        except QkvError:
            self.messages = before
            raise
        # All layers have the same tokens, also after an interruption.
        self.prefixes.keep([*tokens, *new][: cache.length], cache)
        self.messages.append({"role": "assistant", "content": "".join(text)})
        later = len(new) - 1
        return {
            "answer": "".join(text),
            "finish": finish,
            "dropped": dropped,
            "prompt_tokens": len(tokens),
            "kept_tokens": known,
            "new_tokens": len(new),
            "first_seconds": times[1] - times[0] if new else None,
            "tokens_per_second": later / (times[-1] - times[1]) if later > 0 else None,
            "cache_bytes": cache.nbytes,
        }

    def _fitting(self) -> tuple[list[int], int]:
        """The prompt; the oldest questions and their answers are dropped until an answer has space."""
        first = 1 if self.messages[0]["role"] == "system" else 0
        space, dropped = min(self.options.new, self.model.context // 4), 0
        while True:
            tokens = self.model.tokenizer.encode(self.template.render(self.messages), bare=True)
            if len(tokens) + space <= self.model.context:
                return tokens, dropped
            later = [at for at, each in enumerate(self.messages) if at > first and each["role"] == "user"]
            if not later:
                given = f"{len(tokens)} tokens, and {space} for the answer"
                raise OptionError(complaint("message", given, f"at most {self.model.context}, the model's context"))
            del self.messages[first : later[0]]
            dropped += 1

    def save(self, name: str) -> None:
        try:
            Path(name).write_text(json_text({"messages": self.messages}) + "\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise OptionError(complaint("/save", f"{name!r} ({why})", "a file that can be written")) from error

    def load(self, name: str) -> None:
        try:
            found = json.loads(Path(name).read_text("utf-8"))["messages"]
            for each in found:
                if each["role"] not in _ROLES or not isinstance(each["content"], str):
                    raise ValueError("a message without a role or a content")
                each["content"].encode()  # raises for half of a surrogate pair
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            raise OptionError(complaint("/load", f"{name!r} ({why})", "a chat that /save wrote")) from error
        self.messages = [{"role": each["role"], "content": each["content"]} for each in found]


def run(options: Options, system: str | None, as_json: bool) -> bool:
    """Chat until the input ends; False if something could not be answered."""
    with waiting(f"loading {options.model}"):
        session = Session(options, system)
    watched = sys.stdin is not None and sys.stdin.isatty()
    if watched:
        _say(f"{Path(options.model).name}, context {session.model.context} tokens. {HELP}")
    good = True
    for said in _inputs(watched):
        try:
            if not _command(session, said):
                _turn(session, said, as_json)
        except KeyboardInterrupt:  # before the answer began
            _say("interrupted; the message is forgotten")
        except QkvError as error:
            good = False
            _say(f"qkv: {with_options(error, _OPTIONS)}")
    return good or watched


def _turn(session: Session, said: str, as_json: bool) -> None:
    found = session.answer(said, lambda text: None if as_json else print(clean(text), end="", flush=True))
    if as_json:
        print(json_text(found, indent=None), flush=True)
        return
    print(flush=True)
    speed = "" if found["tokens_per_second"] is None else f", {found['tokens_per_second']:.1f} tokens/s"
    lines = [f"{found['new_tokens']} tokens{speed}"]
    lines += [f"prompt {found['prompt_tokens']}, of which {found['kept_tokens']} were kept"]
    lines += [f"cache {found['cache_bytes'] / 1e6:.1f} MB"]
    ended = {"length": "the answer was cut off", "interrupted": "interrupted"}
    lines += [ended[found["finish"]]] if found["finish"] in ended else []
    if found["dropped"]:
        lines.append(f"the context is full: the oldest {found['dropped']} of your messages and their answers are gone")
    _say("; ".join(lines))


def _command(session: Session, said: str) -> bool:
    """Do what a line with a slash says."""
    word, _, name = said.strip().partition(" ")
    if not word.startswith("/"):
        return False
    if word in ("/save", "/load") and name.strip():
        (session.save if word == "/save" else session.load)(name.strip())
        _say(f"{len(session.messages)} messages {'saved' if word == '/save' else 'loaded'}")
    elif word == "/reset" and not name:
        session.reset()
        _say("a new chat")
    elif word == "/help":
        _say(HELP)
    else:
        raise OptionError(complaint("command", repr(said.strip()[:80]), "/save FILE, /load FILE, /reset or /help"))
    return True


def _inputs(watched: bool) -> Iterator[str]:
    """What the user says: lines, of which one that ends in a backslash continues. Ctrl-C forgets what was typed."""
    if sys.stdin is None:
        return
    if watched:
        import readline  # noqa: F401 - arrows edit and recall lines
    lines: list[str] = []
    while True:
        try:
            line = input("… " if lines else "> ") if watched else sys.stdin.readline()
        except KeyboardInterrupt:
            lines = []
            _say("\nCtrl-D ends the chat")
            continue
        except EOFError:
            _say("")
            return
        if not watched and not line:
            if lines:
                yield "\n".join(lines)
            return
        line = line.rstrip("\n")
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            said, lines = "\n".join(lines), []
            if said.strip():
                yield said


def _say(text: str) -> None:
    typer.secho(clean(text), err=True, dim=True)
