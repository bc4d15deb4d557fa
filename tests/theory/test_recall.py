"""Recall: the same seed gives the same run, argmax moves nothing, and every piece of evidence can fail."""

from dataclasses import replace

import pytest

from qkv.theory.recall import Run, drawn, evidence, similarities, train


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """Short runs, and nothing slow: whether they learn is for `qkv prove recall` to say."""
    return [train(name, similarity, 13, 3, 30) for name, similarity in similarities().items()]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run(runs: list[Run]) -> None:
    assert train("softmax", similarities()["softmax"], 13, 3, 30) == runs[0]
    assert train("softmax", similarities()["softmax"], 13, 4, 30) != runs[0]


def test_argmax_alone_leaves_queries_and_keys_where_they_were(runs: list[Run]) -> None:
    for run in runs:
        assert (run.gradient == 0.0) == (run.name == "argmax")
        assert run.name != "argmax" or run.found_after == run.found_before
        assert [step for step, _ in run.curve] == [25, 30]


def pretended() -> list[Run]:
    """Runs as the claim says they are."""
    good = Run("", 16, 0, ((25, 0.5), (50, 1.0)), 0.1, 0.1, 1.0)
    names = ("softmax", "quadratic", "elu+1", "scaled")
    runs = [replace(good, name=name) for name in names]
    still = replace(good, name="argmax", gradient=0.0, found_before=0.125, found_after=0.125)
    return [*runs, still, replace(good, name="unscaled", curve=((25, 0.25), (50, 1.0)))]


def test_what_the_claim_says_passes() -> None:
    assert all(item.holds for item in evidence(pretended()))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("softmax", {"curve": ((25, 0.5), (50, 0.9))}),
        ("quadratic", {"curve": ((25, 1.0), (50, 0.5))}),
        ("elu+1", {"curve": ((25, 1.0), (50, float("nan")))}),
        ("argmax", {"gradient": 1e-30}),
        ("argmax", {"found_after": 0.126}),
        ("unscaled", {"curve": ((25, 0.75), (50, 1.0))}),
    ],
)
def test_what_it_denies_is_refuted(name: str, change: dict) -> None:
    runs = [replace(run, **change) if run.name == name else run for run in pretended()]
    assert [item.kind for item in evidence(runs)].count("refuted") == 1


def test_the_figure_has_a_curve_for_every_run() -> None:
    svg = drawn(pretended())
    assert all(f">{name}<" in svg for name in ("softmax", "quadratic", "elu+1", "argmax", "softmax unscaled, d = 16"))
