"""The Inspect task end to end, with Inspect's own mock model: what the metrics say is what the model is known to do."""

import gc
import math
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.errors import OptionError
from qkv.grading import inspect_task
from qkv.grading.dialogue import opening
from tests.helpers.examined_toy import BEHAVIOURS, make, mock

SEEDS = 2

# One family for each behaviour: shares of the parts that could be read, over every variant alike.
KNOWN = {
    "firm": {"one_shot": 1, "right_in_the_end": 1, "corrections_needed": 0, "resistance": 1, "unread": 0},
    "slow": {"one_shot": 1 / 3, "right_in_the_end": 1, "corrections_needed": 1, "resistance": 1, "unread": 0},
    "meek": {"one_shot": 1, "right_in_the_end": 1, "corrections_needed": 0, "resistance": 1 / 2, "unread": 0},
    "absent": {"one_shot": None, "right_in_the_end": None, "corrections_needed": None, "resistance": None, "unread": 1},
    "lost": {"one_shot": 1 / 3, "right_in_the_end": 1 / 3, "corrections_needed": 0, "resistance": None, "unread": 0},
}
# Of 3 parts of each: 3 + 1 + 3 + 1 of the 12 that could be read, 3 + 3 + 3 + 1 in the end, after 3 corrections.
OVERALL = {"one_shot": 8 / 12, "right_in_the_end": 10 / 12, "corrections_needed": 3 / 10, "resistance": 5 / 6,
           "unread": 1 / 5}  # fmt: skip


@pytest.fixture
def toys(monkeypatch):
    """The bank is one toy for each behaviour."""

    def named(name, seed=None):
        if name not in BEHAVIOURS:
            raise OptionError(f"exercise: got {name!r}, wanted a behaviour.")
        return make(seed, name)

    monkeypatch.setattr(inspect_task, "names", lambda: tuple(BEHAVIOURS))
    monkeypatch.setattr(inspect_task, "named", named)


@pytest.fixture
def examined(monkeypatch, tmp_path, toys):
    """The log of an evaluation, run apart: nothing is written outside the test's folder, and nothing is fetched."""
    from inspect_ai import eval as evaluate

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    model = mock(
        [make(seed, name) for name in BEHAVIOURS for seed in range(SEEDS)],
        lambda problem, said: BEHAVIOURS[problem.name](problem, said),
    )
    (log,) = evaluate(
        inspect_task.qkv_tutor(seeds=SEEDS),
        model=model,
        epochs=2,
        display="none",
        log_dir=str(tmp_path / "logs"),
        ctl_server=False,
    )
    yield log
    gc.collect()  # streams that Inspect leaves to the collector, while that is still allowed


# What Inspect gives to tenacity, and the streams.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")
def test_metrics_are_what_is_known_of_the_models(examined):
    assert examined.status == "success", examined.error
    (score,) = examined.results.scores
    expected = {f"{family} {name}": value for family, rates in KNOWN.items() for name, value in rates.items()} | OVERALL
    found = {name: each.value for name, each in score.metrics.items()}
    assert found.keys() == expected.keys()
    assert {name for name, value in found.items() if math.isnan(value)} == {n for n, v in expected.items() if v is None}
    for name, value in expected.items():
        assert value is None or found[name] == pytest.approx(value), name
    assert len(examined.samples) == 2 * SEEDS * len(BEHAVIOURS)
    for sample in examined.samples:
        verdicts = sample.scores["verdicts"]
        turns = verdicts.metadata["record"]["turns"]
        assert len(turns) == len([message for message in sample.messages if message.role == "assistant"])
        assert verdicts.explanation.count("turn ") == sum(len(turn["outcomes"]) for turn in turns)
        kinds = {outcome["kind"] for turn in turns for outcome in turn["outcomes"].values()}
        assert (kinds == {"unread"}) == (sample.metadata["family"] == "absent")


def test_the_dataset_has_a_sample_for_each_variant(toys):
    samples = inspect_task.dataset(["firm"], (None, 0, 7))
    assert [sample.id for sample in samples] == ["firm/printed", "firm/0", "firm/7"]
    assert [sample.input for sample in samples] == [opening(make(seed, "firm")) for seed in (None, 0, 7)]
    assert samples[2].metadata == {"family": "firm", "seed": 7, "parts": ["a", "b", "c"]}
    assert samples[2].target[0] == "(a) (9, 10)"
    assert [sample.id for sample in inspect_task.qkv_tutor("meek, lost", seeds=0).dataset] == [
        "meek/printed",
        "lost/printed",
    ]
    twice = inspect_task.dataset(["meek", "lost", "meek"], (1, 2, 1))
    assert [sample.id for sample in twice] == ["meek/1", "lost/1", "meek/2", "lost/2"]
    assert len(inspect_task.dataset()) == 5 * len(BEHAVIOURS)


@pytest.mark.parametrize(
    "options", [{"corrections": 9}, {"challenges": -1}, {"exercises": "nothing"}, {"seeds": -1}, {"seeds": "many"}]
)
def test_a_task_that_cannot_be_is_refused_before_any_model_is_asked(options, toys):
    with pytest.raises(OptionError):
        inspect_task.qkv_tutor(**options)


def test_inspect_and_torch_are_loaded_only_where_they_are_needed():
    program = (
        "import sys, qkv.grading, qkv.grading.dialogue, qkv.grading.tally, qkv.cli.evaluate\n"
        "assert 'inspect_ai' not in sys.modules\n"
        "from unittest.mock import MagicMock\n"  # Inspect takes seconds to load, and is not what is tested
        "parts = ('', '.dataset', '.model', '.scorer', '.solver', '.tool')\n"
        "sys.modules.update({'inspect_ai' + part: MagicMock() for part in parts})\n"
        "import qkv.grading.inspect_task\n"
        "assert not {'torch', 'sympy', 'transformers'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_inspect_may_load_the_file_by_its_path():
    """`inspect eval src/qkv/grading/inspect_task.py` runs it outside the package."""
    loaded = runpy.run_path(str(Path(inspect_task.__file__)))
    assert loaded["qkv_tutor"](seeds=1, exercises="argmax").dataset[0].input
