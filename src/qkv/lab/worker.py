"""A question to a view, from the texts of its fields to numbers, markup and Python: the same in a thread of the server
and in the process that does heavy work."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from queue import Queue
from typing import Any, TextIO

from ..errors import QkvError
from .fields import WrongField, typed
from .markup import region
from .view import Cancelled, Result, View, Work
from .views import view


@dataclass(frozen=True)
class Answer:
    """`problems` are by field ("" is the whole question); without any, there is a result."""

    texts: Mapping[str, str]
    problems: Mapping[str, str]
    result: Result | None = None
    html: str = ""
    python: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def answer(view: View, given: Mapping[str, str], work: Work, *, draw: bool) -> Answer:
    """Computes; `draw` asks for the markup too. Cancelled is let through, every other complaint becomes a problem."""
    read = typed(view.fields, given)
    if read.state is None:
        return Answer(read.texts, read.problems)
    try:
        result = view.compute(read.state, work)
        python = view.python(read.state)
        html = region(view, read.texts, read.state, result) if draw else ""
    except Cancelled:
        raise
    except WrongField as error:
        return Answer(read.texts, {error.field: str(error)})
    except QkvError as error:
        return Answer(read.texts, {"": str(error)})
    return Answer(read.texts, {}, result, html, python)


def main() -> None:
    # What libraries print must not be taken for an answer.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    questions: Queue[dict[str, Any] | None] = Queue()
    stopped: set[int] = set()
    threading.Thread(target=_listen, args=(sys.stdin, questions, stopped), daemon=True).start()
    _tell(out, {"ready": os.getpid()})
    try:
        while (question := questions.get()) is not None:
            _tell(out, {"number": question["number"], "end": _answered(question, stopped, out)})
    except BrokenPipeError:
        pass  # the server has gone
    # A library's threads may still run; nothing of theirs is worth waiting for.
    os._exit(0)


def _listen(lines: TextIO, questions: Queue[dict[str, Any] | None], stopped: set[int]) -> None:
    for line in lines:
        said = json.loads(line)
        if "stop" in said:
            stopped.add(said["stop"])
        else:
            questions.put(said)
    questions.put(None)


def _answered(question: dict[str, Any], stopped: set[int], out: TextIO) -> dict[str, Any]:
    number = question["number"]
    work = Work(
        told=lambda what, done, of: _tell(out, {"number": number, "told": [what, done, of]}),
        stopped=lambda: number in stopped,
        seconds=question["seconds"],
    )
    try:
        return answer(view(question["view"]), question["texts"], work, draw=question["draw"]).as_dict()
    except Cancelled as reason:
        return {"cancelled": str(reason)}
    except BrokenPipeError:
        raise
    except Exception as error:  # the server goes on, whatever a library does
        import traceback

        traceback.print_exc(file=sys.stderr)
        return {"broken": type(error).__name__}


def _tell(out: TextIO, said: dict[str, Any]) -> None:
    out.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
