"""Somebody's own matrices: read exactly, refused with a word, never executed."""

import json
import re

import numpy as np
import pytest

from qkv.errors import OptionError, QkvError, ShapeError
from qkv.maths import compare
from qkv.problems.by_hand.given import given, read_given, read_matrix
from qkv.problems.reading.literals import numbers_of
from qkv.render.document import Formula

WEIGHTS = {"wq": "1 0 2; 0 1 -3", "wk": "0 0 -1; -2 0 1", "wv": "8 0; 0 9"}


@pytest.mark.parametrize(
    "text",
    [
        "2 3; -1 0",
        "2, 3; -1, 0",
        "2 3\n-1 0",
        "[[2, 3], [-1, 0]]",
        "[2 3; -1 0]",
        r"\begin{bmatrix} 2 & 3 \\ -1 & 0 \end{bmatrix}",
    ],
)
def test_matrices_in_many_layouts(text):
    assert read_matrix(text) == ((2, 3), (-1, 0))


def test_columns_and_rows():
    assert read_matrix("1; 2") == ((1,), (2,))
    assert read_matrix("1 2") == ((1, 2),)
    assert read_matrix(r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}") == ((1,), (2,))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"x": "1 2; 3"}, "rows of the same length"),
        ({"x": "1 2 3"}, "3 rows"),
        ({"x": "nan 1"}, "a number"),
        ({"x": "inf 1"}, "a number"),
        ({"x": [[float("inf"), 1]]}, "a number"),
        ({"x": "one two"}, "a number"),
        ({"x": ""}, "at least one row"),
        ({"x": [1, 2]}, "a list of rows"),
        ({"x": [[1, None]]}, "a number"),
        ({"x": [[True, 1]]}, "a number"),
        ({"x": {"a": 1}}, "rows of numbers"),
        ({"x": "1 " * 70}, "64 × 64"),
        ({"x": [[1, 2]] * 100}, "64 × 64"),
        ({"x": "__import__('os') 2"}, "a number"),
        ({"x": "1 2", "token": 2}, "from 1 to 1"),
        ({"x": "1 2", "scale": "much"}, "sqrt"),
        ({"x": "1 2", "scale": -1}, "above 0"),
        ({"x": "1 2", "mask": "0"}, "at least one key"),
        ({"x": "1 2", "mask": "1 1"}, "1 × 1"),
        ({"x": "1 2", "q": "1 2"}, "do not mix"),
        ({"x": "1 2", "wk": "1 1; 1 1"}, "queries meet keys"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_words(words, said):
    with pytest.raises(QkvError, match=re.escape(said)):
        given(**{**WEIGHTS, **words})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_any_small_matrices_agree_with_numpy(seed):
    draw = np.random.default_rng(seed)
    n, d, k, v = draw.integers(1, 6, 4)
    x, wq, wk, wv = (draw.integers(-2, 3, size) for size in ((n, d), (d, k), (d, k), (d, v)))
    token = int(draw.integers(1, n + 1))
    problem = given(x=x, wq=wq, wk=wk, wv=wv, scale="sqrt", mask="causal", token=token)
    scores = ((x @ wq) @ (x @ wk).T)[token - 1, :token] / np.sqrt(k)
    weights = np.exp(scores - scores.max())
    output = weights / weights.sum() @ (x @ wv)[:token]
    shown = problem.part("c").answer.text
    found = numbers_of(shown if shown.startswith("(") else f"({shown})")
    assert found is not None
    assert [float(entry) for entry in found[0][0]] == pytest.approx(output, rel=1e-4, abs=1e-9)
    for part in problem.parts:
        assert part.check(part.answer.text), part.name


def test_queries_keys_and_values_may_be_given_themselves():
    problem = given(q="1 0; 0 1", k="1 1; 0 2; 1 0", v="3 0; 0 4; 1 1", mask=[[1, 1, 0], [0, 1, 1]])
    assert [part.name for part in problem.parts] == ["b", "c"]
    assert problem.part("b").answer.text == "z_{2,2} = 2; z_{2,3} = 0"


def test_large_matrices_show_the_pattern():
    draw = np.random.default_rng(0)
    problem = given(x=draw.integers(-1, 2, (9, 8)), **{w: draw.integers(-1, 2, (8, 7)) for w in ("wq", "wk", "wv")})
    solved = problem.solve().parts
    assert all(part.part.check(part.answer) for part in solved)
    assert "first entry" in solved[0].steps[0].what


def test_files(tmp_path):
    (tmp_path / "own.toml").write_text(
        'x = [[2, 3], [-1, 0], [1, -2]]\nW_Q = "1 0 2; 0 1 -3"\nwk = [[0, 0, -1], [-2, 0, 1]]\nwv = "8 0; 0 9"\n'
    )
    (tmp_path / "own.json").write_text(json.dumps({"x": "2 3; -1 0; 1 -2", **WEIGHTS}))
    np.savez(
        tmp_path / "own.npz",
        x=[[2, 3], [-1, 0], [1, -2]],
        wq=[[1, 0, 2], [0, 1, -3]],
        wk=[[0, 0, -1], [-2, 0, 1]],
        wv=[[8.0, 0], [0, 9]],
    )
    answers = {name: read_given(tmp_path / f"own.{name}").solve().summary for name in ("toml", "json", "npz")}
    assert answers["toml"] == answers["json"] == answers["npz"]
    assert answers["toml"]["c"] == "(-7.9407, 0.066761)"


def test_decimals_in_files_are_exact(tmp_path):
    (tmp_path / "own.json").write_text('{"q": [[0.1, 0.2]], "k": [[3, 0]], "v": [[1, 1]]}')
    assert read_given(tmp_path / "own.json").part("b").answer.text == "z_{1,1} = 0.3"


def test_decimals_are_shown_as_decimals_and_judged_exactly():
    problem = given(q="0.1 0; 1 2", k="3 4; 1.5 1", v="1 0.25; 2 1/3", token=1)
    formulas = [str(block.maths.source) for block in problem.statement if isinstance(block, Formula)]
    shown = " ".join([*formulas, *(member for part in problem.parts for step in part.steps() for member in step.chain)])
    assert "0.1" in shown
    assert "1/10" not in shown
    assert "1/3" in shown
    assert problem.part("b").answer.text == "z_{1,1} = 0.3; z_{1,2} = 0.15"
    assert problem.check("b", "3/10, 3/20").kind == "right"
    assert problem.check("b", "0.34, 0.15").kind == "wrong"
    for part in problem.parts:
        assert problem.check(part.name, part.answer.text).kind == "right"
        for step in part.steps():
            for member in step.chain[1:]:
                assert compare(step.chain[0], member, step.symbols).kind == "equal", step.chain
    assert "1/10" in str(given(q="1/10 0; 1 2", k="3 4; 1 1", v="1 2; 2 3", token=1).statement)


def test_an_array_of_32_bits_is_read_by_its_shortest_digits(tmp_path):
    rows = np.array([[0.1, 0.7], [1, 2]], dtype=np.float32)
    np.savez(tmp_path / "own.npz", q=rows, k=rows, v=rows)
    assert read_given(tmp_path / "own.npz").part("b").answer.text == "z_{2,1} = 1.5; z_{2,2} = 5"


def large(tokens, width=3, out=2, **more):
    draw = np.random.default_rng(tokens)
    q, k, v = (draw.integers(-3, 4, (tokens, size)) for size in (width, width, out))
    scores = q[-1] @ k.T
    weights = np.exp(scores - scores.max())
    return given(q=q, k=k, v=v, **more), weights / weights.sum()


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "out"), [(2, 1), (7, 2), (12, 2), (30, 2), (64, 1)])
def test_large_matrices_keep_their_names_and_numbers(tokens, out):
    problem, weights = large(tokens, out=out)
    text = text_of(problem)
    assert f"N = {tokens}" in text
    assert "may see" not in text
    largest = int(np.argmax(weights)) + 1
    said = re.search(r"the largest is that of token (\d+), ([0-9]\.[0-9]+)", text)
    assert said is not None
    assert float(said[2]) == pytest.approx(weights.max(), abs=1e-5)
    assert weights[int(said[1]) - 1] == pytest.approx(weights[largest - 1])
    assert "·0 " not in text.split("Part (b)")[1].split("Step")[0]
    for part in problem.parts:
        assert problem.check(part.name, part.answer.text).kind == "right"


def text_of(problem):
    from io import StringIO

    from rich.console import Console

    from qkv.problems.printing.documents import solution_document
    from qkv.render.to_terminal import show

    said = StringIO()
    console = Console(file=said, width=4000, highlight=False)
    show(solution_document(problem.solve()), console)
    return said.getvalue()


@pytest.mark.parametrize(("queries", "keys"), [("1 0", "1 2; 3 4; 1 1"), ("1 0; 1 1; 2 1", "1 2; 3 4")])
def test_a_causal_mask_of_another_number_of_queries_is_refused_with_both_readings(queries, keys):
    values = "; ".join(["1 2"] * len(keys.split(";")))
    with pytest.raises(OptionError, match="as many queries as keys") as refused:
        given(q=queries, k=keys, v=values, mask="causal")
    if ";" not in queries:
        assert '"1 0 0"' in str(refused.value)
        assert '"1 1 1"' in str(refused.value)
        assert given(q=queries, k=keys, v=values, mask="1 1 1").part("b").answer.text.count("z_") == 3


def test_one_query_and_other_numbers_of_queries_are_said():
    text = text_of(given(q="1 0", k="1 2; 3 4", v="1 1; 2 2"))
    assert "z₁,₂ = q₁ᵀk₂" in text
    assert "(qᵀ)" not in text
    assert "Queries: 3" in text_of(given(q="1 0; 1 1; 2 1", k="1 2; 3 4", v="1 1; 2 2"))
    assert "one token, embedded in 1 number:" in text_of(given(x="2", wq="1", wk="3", wv="5"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"x = 1"),
        ("a.json", b"[1, 2"),
        ("a.json", b"[1]"),
        ("a.json", b'{"y": 1}'),
        ("a.json", b"[" * 100_000),
        ("a.toml", b"x = = 1"),
        ("a.toml", b"\xff\xfe\x00"),
        ("a.npz", b"junk"),
        ("a.json", b'{"x": [[NaN, 1]]}'),
        ("a.json", b""),
    ],
)
def test_files_that_cannot_be_taken(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError) as caught:
        read_given(tmp_path / name)
    assert str(tmp_path) not in str(caught.value)


def test_archives_never_run_anything(tmp_path):
    np.savez(tmp_path / "own.npz", q=np.array([object()], dtype=object))
    with pytest.raises(OptionError, match="plain arrays"):
        read_given(tmp_path / "own.npz")
    np.savez(tmp_path / "deep.npz", q=np.zeros((2, 2, 2)))
    with pytest.raises(ShapeError, match="dimensions"):
        read_given(tmp_path / "deep.npz")
    with pytest.raises(OptionError, match="is there"):
        read_given(tmp_path / "none.npz")
