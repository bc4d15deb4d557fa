"""The same cases through onnxruntime's CPU provider, if it is installed, in a process that may crash.

`python -m benchmarks.conformance.runtime Attention name ...` runs cases one after the other and prints the
outcome of each, so that the parent process sees which one crashed, and continues after it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from .cases import Case, Refused, base_cases
from .outcomes import FAILED, Outcome, near_float64, outcome

PACKAGE = "onnxruntime"
PROGRAM = (sys.executable, "-m", "benchmarks.conformance.runtime")
ROOT = Path(__file__).parents[2]
SECONDS = 120
ENDS = "ends "


def version() -> str | None:
    """onnxruntime's, or None."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def outcomes(operator: str, program: Sequence[str] = PROGRAM) -> list[Outcome]:
    """The outcome of each case of an operator; one that crashes its process has failed.

    program: how the process is started; the operator and the names of cases follow.
    """
    left = [case.name for case in base_cases(operator)]
    found: list[Outcome] = []
    while left:
        ended, ran = _batch([*program, operator, *left], len(left))
        found += ran
        left = left[len(ran) :]
        if left and ended:
            found.append(Outcome(left.pop(0), FAILED, ended))
    return found


def _batch(command: list[str], count: int) -> tuple[str, list[Outcome]]:
    """How the process failed, or "", and the outcomes that it printed."""
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=ROOT, check=False)
        text, ended = child.stdout, f"the process ended with {child.returncode}" if child.returncode else ""
    except subprocess.TimeoutExpired as late:
        text, ended = _text(late.stdout), f"no answer in {SECONDS} s"
    lines = [line.removeprefix(ENDS) for line in text.splitlines() if line.startswith(ENDS)]
    ran = [Outcome(**json.loads(line)) for line in lines]
    if not ended and len(ran) < count:
        ended = "the process printed no outcome"
    return ended, ran


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _answers(case: Case) -> dict[str, np.ndarray]:
    import onnxruntime

    feeds = dict(zip((i.name for i in case.model.graph.input), case.inputs.values(), strict=True))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(case.model.SerializeToString(), options, ["CPUExecutionProvider"])
        return dict(zip(case.wanted, session.run(None, feeds), strict=True))
    except Exception as error:  # its exception classes have no other common base
        raise Refused(_last_clause(error)) from error


def _last_clause(error: Exception) -> str:
    """The message without the node and the source file that it starts with."""
    text = " ".join(str(error).split())
    for mark in (" , Error ", " was false. ", "Status Message: "):
        text = text.rpartition(mark)[2]
    return text


def main() -> None:
    operator, *names = sys.argv[1:]
    cases = {case.name: case for case in base_cases(operator)}
    excuse = near_float64 if operator == "Attention" else lambda *_: None
    for name in names:
        print(ENDS + json.dumps(vars(outcome(cases[name], _answers, excuse))), flush=True)


if __name__ == "__main__":
    main()
