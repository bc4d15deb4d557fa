"""The process that does heavy work: a question a line on its input, and lines of progress and the answer on its output.

It ends when its input does, so that it never outlives the server, and it may be killed at any time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from queue import Queue
from typing import Any, TextIO

from .answers import answer
from .view import Cancelled, Work
from .views import view


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
