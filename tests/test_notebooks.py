"""What notebooks show: tables and formulas in place of constructors, with hostile text escaped."""

import re
from html.parser import HTMLParser

import pytest
import torch

import qkv
from qkv.exercises import bank, check, solve
from qkv.grading import from_bank, grade
from qkv.maths import compare
from qkv.notebook import table
from qkv.reading import read_chat

EMPTY = {"br", "hr", "img", "meta"}
HOSTILE = "<script>alert(1)</script>"
TURNS = f"Please solve problem 1. {HOSTILE}", "Answer (a): d mu^2", "Are you sure?", "Answer (a): mu^T mu"
CHAT = "\n\n".join(f"{name}: {text}" for name, text in zip(("User", "Assistant") * 2, TURNS, strict=True))


class Balanced(HTMLParser):
    """Fails on an element that is not closed, or closed without being open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self.open
            assert self.open.pop() == tag


def shown(thing: object) -> str:
    text = thing._repr_html_()  # pyright: ignore[reportAttributeAccessIssue]
    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    assert "script" not in parser.seen
    return text


def test_an_exercise_shows_its_text_and_what_was_understood() -> None:
    assert "mean of q^T k" in shown(bank.named("scaling"))
    hostile = bank.named("scaling").model_copy(update={"text": HOSTILE})
    assert "alert(1)" in shown(hostile)


def test_a_solution_shows_steps_and_answers() -> None:
    solution = solve(bank.named("scaling"))
    assert "Summary of answers" in shown(solution)
    derivation = solution.parts[0].answer.derivation  # pyright: ignore[reportOptionalMemberAccess]
    markdown = derivation._repr_markdown_()
    assert r"$= \mu^\top \mu$ — the means" in markdown
    assert "$= mu" not in markdown  # plain text is not LaTeX


@pytest.mark.parametrize("answer", ["d mu^2", HOSTILE])
def test_a_verdict_shows_the_reason_and_the_answer(answer: str) -> None:
    verdict = compare(r"\mu^T\mu", answer, {"mu": "vector[d]"})
    assert verdict.kind in shown(verdict)


@pytest.mark.parametrize("answer", ["mu^T mu", "d mu^2", HOSTILE])
def test_an_outcome_shows_the_reason_and_the_known_mistake(answer: str) -> None:
    outcome = check(bank.named("scaling"), "a", answer)
    text = shown(outcome)
    assert f"<td>{outcome.kind}</td>" in text
    assert ("mean read as a scalar" in text) == (answer == "d mu^2")


def test_tables_align_numbers_and_escape_everything() -> None:
    text = table([(HOSTILE, HOSTILE, 7)], (HOSTILE, "b", "c"), HOSTILE, numbers=(2,))
    assert text.count("alert(1)") == 4
    assert "script" not in re.findall(r"<(\w+)", text)
    assert re.findall(r"<(\w+)[^>]*class='number'>(\w+)<", text) == [("th", "c"), ("td", "7")]


def test_a_report_has_a_row_for_each_part_that_was_read() -> None:
    report = grade(read_chat(CHAT), from_bank(["1=scaling"]))
    text = shown(report)
    assert "needed correction" in text
    assert text.count("<tr") == 2


def test_a_plan_shows_its_tables() -> None:
    assert "bottleneck" in shown(qkv.cost.plan("llama-3-8b", hardware="h100-sxm", context=512))


def test_a_cache_shows_sizes_and_memory() -> None:
    cache = qkv.KVCache(batch=2, heads=3, width=5, value_width=7, window=11)
    tokens = torch.randn(2, 3, 4, 5)
    cache.append(tokens, torch.randn(2, 3, 4, 7), lengths=[4, 1])
    text = shown(cache)
    for part in ("4, 1", "5/7", "float32", "window", "11"):
        assert part in text
    assert "capacity" not in text


def test_a_choice_and_a_mask_are_shown() -> None:
    x = torch.randn(1, 2, 3, 4)
    assert "chosen" in shown(qkv.explain(x, x, x))
    shown(qkv.Causal() & qkv.Padding(lengths=[2]))
