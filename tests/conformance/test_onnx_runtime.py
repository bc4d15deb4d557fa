"""A case that ends the process of onnxruntime is counted, and the table fits 80 columns."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.conformance import runtime
from benchmarks.conformance.__main__ import table
from benchmarks.conformance.cases import base_cases
from benchmarks.conformance.outcomes import FAILED, PASSED, Outcome, summarize

NAMES = [case.name for case in base_cases("LinearAttention")]

# Passes every case but the third, which kills it, and the last, before which it ends.
FAILING = f"""
import json, os, signal, sys
names = {NAMES!r}
for name in sys.argv[2:]:
    if name == names[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    if name == names[-1]:
        break
    print({runtime.ENDS!r} + json.dumps({{"name": name, "kind": "passed"}}), flush=True)
"""


def test_a_case_that_ends_its_process_is_counted_and_the_others_run(tmp_path: Path) -> None:
    program = tmp_path / "unsteady.py"
    program.write_text(FAILING)
    found = runtime.outcomes("LinearAttention", (sys.executable, str(program)))
    assert [outcome.name for outcome in found] == NAMES
    lost = {outcome.name: outcome.detail for outcome in found if outcome.kind != PASSED}
    assert lost == {NAMES[2]: "the process ended with -9", NAMES[-1]: "the process printed no outcome"}
    assert all(outcome.kind == FAILED for outcome in found if outcome.name in lost)


@pytest.mark.slow
def test_onnxruntime_runs_in_another_process() -> None:
    if runtime.version() is None:
        pytest.skip("onnxruntime is not installed")
    found = runtime.outcomes("LinearAttention")
    assert [outcome.name for outcome in found] == NAMES
    assert all(outcome.detail or outcome.kind == PASSED for outcome in found)


def test_the_table_fits_a_terminal_and_names_what_is_not_installed() -> None:
    outcomes = [Outcome(NAMES[0], PASSED), Outcome(NAMES[1], FAILED, "word " * 99), Outcome(NAMES[2], FAILED, "why")]
    way = {"operator": "attention", **summarize(outcomes)}
    found = {"onnx": "1.23.2", "onnxruntime": None, "cases": {"Attention": 93}, "ways": {"qkv, steps of a cache": way}}
    lines = table(json.loads(json.dumps(found)))
    assert max(map(len, lines)) <= 80
    assert any("not installed" in line for line in lines)
    assert next(line for line in lines if "attention" in line and "steps" in line).split()[-5:] == list("13002")
