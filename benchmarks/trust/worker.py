"""The process that runs probes: reads numbers of rows from its input, and writes a verdict for each to a pipe.

Libraries may print to standard output; if this process dies, its parent records a crash.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from .rows import Row, rows
from .subjects import Subject, named
from .verdict import CRASH, LONGEST, NONE, RIGHT, WRONG, Crashed, NotOffered, Wrong, in_one_line


def judge(row: Row, subject: Subject) -> dict[str, Any]:
    """{"verdict", "seen"} of one probe."""
    try:
        verdict, seen = RIGHT, row.probe(subject) or "as it should be"
    except NotOffered as reason:
        verdict, seen = NONE, str(reason)
    except Wrong as wrong:
        verdict, seen = WRONG, str(wrong)
    except Crashed as crash:
        verdict, seen = CRASH, str(crash)
    except Exception as error:  # any exception instead of a result
        verdict, seen = WRONG, f"raised {in_one_line(error)}"
    seen = " ".join(seen.split())
    return {"verdict": verdict, "seen": seen if len(seen) <= LONGEST else seen[: LONGEST - 1] + "…"}


def main() -> None:
    name, pipe = sys.argv[1], int(sys.argv[2])
    warnings.simplefilter("ignore")
    subject, table = named(name), rows()
    with os.fdopen(pipe, "w", encoding="utf-8") as answers:
        answers.write("ready\n")
        answers.flush()
        for line in sys.stdin:
            answers.write(json.dumps(judge(table[int(line)], subject)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
