"""Reach: sets walked by hand, the bound, the program and the schema, over all patterns and edges of the fields."""

import contextlib
import io
import json
import random
import re
from itertools import product
from typing import Any

import jsonschema
import pytest

from qkv.lab.fields import typed
from qkv.lab.view import Work
from qkv.lab.views.reach import LOOKS, VIEW, chosen, patterns, why
from qkv.lab.worker import answer

SCHEMA = jsonschema.Draft202012Validator(
    {"type": "object", "properties": dict(VIEW.schema), "required": list(VIEW.schema), "additionalProperties": False}
)
EDGES = list(product((2, 3, 12, 32), (1, 3, 6), (1, 2, 4), ("yes", "no")))


def asked(draw: bool = False, **texts: object) -> Any:
    found = answer(VIEW, {name: str(text) for name, text in texts.items()}, Work(), draw=draw)
    assert not found.problems
    assert found.result is not None
    json.dumps(found.result, allow_nan=False)
    SCHEMA.validate(found.result)
    assert not re.search(r"<(script|style|img)|<[^>]*\s(style|on\w+)=", found.html)
    return found


def walked(looks: list, output: int, residual: bool) -> list[set[int]]:
    """Positions from the output down, one at a time."""
    levels = [{output}]
    for layer in reversed(looks):
        below = set(levels[-1]) if residual else set()
        levels.append(below | {head[position - 1] for head in layer for position in levels[-1]})
    return levels


@pytest.mark.slow
@pytest.mark.parametrize("pattern", LOOKS)
def test_levels_are_what_a_walk_finds(pattern: str) -> None:
    draw = random.Random(pattern)
    for n, layers, heads, residual in draw.sample(EDGES, 24):
        output = draw.choice((1, n, 32))
        found = asked(n=n, layers=layers, heads=heads, residual=residual, pattern=pattern, seed=5, output=output).result
        kept = residual == "yes"
        assert found["output"] == min(output, n)
        levels = walked(found["looks"], found["output"], kept)
        assert [set(level["reached"]) for level in found["levels"]] == levels
        assert [level["bound"] for level in found["levels"]] == [(heads + kept) ** m for m in range(layers + 1)]
        for level in found["levels"]:
            assert len(level["reached"]) == level["count"] == sum(count > 0 for count in level["paths"])
            assert sum(level["paths"]) == level["bound"]
            assert level["count"] + level["meeting"] == level["bound"]
            assert level["count"] <= level["possible"] <= n
        assert found["attained"] == (found["reached"] == found["possible"])
        assert found["fewest"] <= found["reached"] <= found["most"]
        assert found["agree"] is (True if kept else None)
        if pattern in ("apart", "causal"):
            assert found["attained"]


def test_numbers_that_are_known() -> None:
    assert asked(n=32, layers=3, heads=2).result["reached"] == 27
    assert asked(n=32, layers=4, heads=1).result["reached"] == 16
    assert asked(n=32, layers=3, heads=3, pattern="window").result["reached"] == 3 * 3 + 1
    assert asked(n=32, layers=3, heads=4, pattern="agree").result["reached"] == 2**3
    assert asked(n=32, layers=3, heads=3, residual="no").result["reached"] == 27
    assert asked(n=32, layers=6, heads=1, residual="no").result["reached"] == 1
    assert asked(n=32, layers=6, pattern="causal", output=5).result["reached"] == 5
    first, second = (asked(pattern="random", seed=seed).result["looks"] for seed in (0, 1))
    assert first != second
    assert first == asked(pattern="random", seed=0).result["looks"]


@pytest.mark.parametrize("pattern", LOOKS)
def test_the_reason_is_that_of_this_stack(pattern: str) -> None:
    for n, layers, heads, residual in EDGES:
        texts = {"n": n, "layers": layers, "heads": heads, "residual": residual, "pattern": pattern}
        read = typed(VIEW.fields, {name: str(text) for name, text in texts.items()})
        assert read.state is not None
        visible = chosen(read.state) if pattern == "causal" else n
        levels = walked([[[i + 1 for i in head] for head in layer] for layer in patterns(read.state)],
                        chosen(read.state), residual == "yes")  # fmt: skip
        counts, kept = [len(level) for level in levels], residual == "yes"
        said = why(read.state, [{"count": c, "bound": (heads + kept) ** m} for m, c in enumerate(counts)], visible)
        paths, reached = (heads + kept) ** layers, counts[-1]
        assert ("only one path" in said) == (paths == 1)
        assert ("No two paths" in said) == (paths == reached > 1)
        if "more paths than tokens" in said:
            assert paths > visible
        if "by chance" in said:
            assert pattern == "random"
            assert reached < min(paths, visible)
        if "each layer adds as many" in said:
            assert counts == [1 + m * (counts[1] - 1) for m in range(layers + 1)]
        if "2ⁿ" in said:
            assert reached == 2**layers


def test_words_fit_their_numbers() -> None:
    assert asked(pattern="random", layers=1, n=32).result["why"] == "No two paths end at the same token."
    assert asked(pattern="window", heads=1, residual="no").result["why"] == "There is only one path."
    plain = re.sub(r"<[^>]*>", "", asked(draw=True, heads=1, residual="no").html)
    assert "outputs reaches 1 input." in plain
    assert "1 inputs" not in plain
    alone = re.sub(r"<[^>]*>", "", asked(draw=True, n=2, layers=1, heads=1, pattern="causal", output=1).html)
    assert "changes with 1 input:" in alone


@pytest.mark.parametrize(("pattern", "residual"), list(product(LOOKS, ("yes", "no"))))
def test_the_program_prints_the_numbers_of_the_page(pattern: str, residual: str) -> None:
    found = asked(n=9, layers=2, heads=3, pattern=pattern, residual=residual, seed=3, output=7)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(found.python, "program", "exec"), {})
    lines = said.getvalue().splitlines()
    wanted = [f"{level['count']} {level['bound']} {level['reached']}" for level in found.result["levels"]]
    if residual == "yes":
        wanted.append(str(found.result["levels"][-1]["reached"]))
    assert lines == wanted


def test_the_page_draws_what_was_found() -> None:
    for n, layers, heads, residual in ((2, 1, 1, "no"), (12, 2, 2, "yes"), (32, 6, 4, "yes")):
        found = asked(draw=True, n=n, layers=layers, heads=heads, residual=residual)
        assert found.html.count('class="qkv-pick"') == n
        assert len(found.html) < 120_000
        assert "proved" in found.html
        for level in found.result["levels"][1:]:
            name = f"layer {level['layer']}" if level["layer"] else "input"
            for position, count in enumerate(level["paths"], 1):
                paths = "not reached" if not count else f"{count} path{'s' if count > 1 else ''}"
                assert f"<title>{name}, position {position}: {paths}</title>" in found.html
