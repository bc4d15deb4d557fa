"""Listings are interpreted as NumPy would, and never executed."""

import time

import numpy as np
import pytest

from qkv.exercises.sheets.arrays import interpret, read_array


def values_of(code: str) -> dict[str, object]:
    """What NumPy computes: the oracle."""
    names: dict[str, object] = {"np": np}
    exec(code, names)
    return {name: value for name, value in names.items() if not name.startswith("_") and name not in ("np", "rng")}


@pytest.mark.parametrize(
    "code",
    [
        "m, n = 3, 5\nX = np.arange(m*n).reshape(m, n)\nY = X.T @ X / 7",
        "a = b = np.eye(3); c = -a + 2**3; d = np.full((2, 3), 1.5)",
        (
            "np.random.seed(11)\nX = np.random.randn(2, 3)\nW = np.random.randint(0, 7, size=(3, 5))\n"
            "P = np.random.permutation(X.flatten()).reshape(3, 2)"
        ),
        (
            "np.random.seed(5); A = np.arange(7); np.random.shuffle(A); B = np.random.rand(2)\n"
            "C = np.random.normal(1, 2, (2, 3)); D = np.random.uniform(-1, 1, 5)"
        ),
        (
            "rng = np.random.default_rng(13); X = rng.normal(size=(2, 3)); "
            "Y = rng.integers(0, 9, 5); Z = rng.standard_normal(3)"
        ),
        "M = np.triu(np.ones((3, 3)) * (-np.inf), k=1); L = np.tril(np.ones((2, 2)))",
        "x = np.linspace(0, 1, 5); y = x[1:3]; z = np.dot(x, x); s = x.shape[0]; r = np.sqrt(2)",
        "g = np.ones(3).reshape(1, 1, -1) * 0.5; h = np.zeros((2, 3)).transpose(); k = np.array([[1, 2], [3, 4]]).T",
        "X = np.array([[1., 2.], [3., 5.]]); X /= 2; v = X[0]; w = np.concatenate([v, v]); u = np.outer(v, v)",
    ],
)
def test_values_are_those_of_numpy(code: str) -> None:
    state = np.random.get_state()
    found = interpret(code)
    after = np.random.get_state()
    assert np.array_equal(state[1], after[1])
    assert not found.findings
    np.random.seed(0)
    for name, value in values_of(code).items():
        np.testing.assert_array_equal(np.asarray(found.values[name]), np.asarray(value))
    np.random.set_state(state)


def test_torch_constructors() -> None:
    found = interpret(
        "x = torch.tensor([[1.0, 2.0]], dtype=torch.float32); y = torch.ones(2, 3); "
        "z = torch.arange(5); w = torch.eye(2)"
    )
    assert found.values == {
        "x": [[1.0, 2.0]],
        "y": [[1.0] * 3] * 2,
        "z": [0, 1, 2, 3, 4],
        "w": [[1.0, 0.0], [0.0, 1.0]],
    }


def test_calls_that_are_left() -> None:
    found = interpret(
        "X = np.eye(2)\nQ, K = project(X, W)\nout = attend(Q, K, heads=2)\nprint(np.round(out, 3))\nprint(norm([1, 2]))"
    )
    project, attend, norm = found.calls
    assert (project.function, project.targets, project.printed) == ("project", ("Q", "K"), False)
    assert project.arguments[0].value == [[1.0, 0.0], [0.0, 1.0]]
    assert project.arguments[1].value is None
    assert (attend.printed, attend.digits, attend.arguments[2].keyword, attend.arguments[2].value) == (
        True,
        3,
        "heads",
        2,
    )
    assert norm.arguments[0].value == [1, 2]


def test_last_expression_is_shown() -> None:
    assert interpret("X = [1, 2]; score(X)").calls[0].printed
    assert interpret("print(round(saved(100, 3), 1))").calls[0].digits == 1


def test_assignments_with_commas_and_lines_that_are_no_python() -> None:
    found = interpret("Q = np.array([[1, 0]]), K = np.array([[0, 1]]), n_heads = 2")
    assert found.values == {"Q": [[1, 0]], "K": [[0, 1]], "n_heads": 2}
    found = interpret("x = [1, 2]\nthis is prose and no code at all\ny = 3")
    assert found.values == {"x": [1, 2], "y": 3}
    assert found.findings[0].code == "unread_code"


@pytest.mark.parametrize(
    "code",
    [
        "x = np.ones((10**4, 10**4))", "x = np.arange(10**9)", "x = 9**9**9", "x = [0] * 10**9",
        "x = np.random.rand(3)",
        "np.random.seed(1); x = np.random.randn(10**4, 10**4)", "x = " + "(" * 5000, "x = np.array([[1], [1, 2]])",
        "x = 1 / 0",
        "x = np.eye(10**5)", "x = [1][5]", "x = np.array([np.ones(10**5)] * 10**5)", "x = 10**9 * [0]",
        "x = 10**50 * 10**50 * 10**50", "np.random.seed(1)\nx = np.random.dirichlet([1, 2])\nx = np.random.rand(2)",
        "a = np.ones((1000, 1)); x = a * np.ones((1, 10**6)) * a", "x = np.linspace(0, 1, 10**12)",
    ],
)  # fmt: skip
def test_bad_code_is_a_finding(code: str) -> None:
    began = time.perf_counter()
    found = interpret(code)
    assert found.findings
    assert found.findings[0].words()
    assert "x" not in found.values
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "code", ["__import__('os').getcwd()", "open('a')", "x = (lambda: 1)()", "exec('y = 1')", "x = np.load('a')"]
)
def test_nothing_is_executed(code: str) -> None:
    assert interpret(code).values == {}


def test_names_keep_no_value_that_is_out_of_date() -> None:
    assert interpret("x = 3\nx = load()").values == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\begin{bmatrix} 1 & -2 \\ 3 & 5 \end{bmatrix}", [[1, -2], [3, 5]]),
        (r"\begin{pmatrix} \frac{1}{2} \\ -1 \end{pmatrix}", ["1/2", -1]),
        (r"\left[\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right]", [[1, 2], [3, 4]]),
        (r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}^\top", [[1, 3], [2, 4]]),
        ("[1 0; 0 2.5]", [[1, 0], [0, 2.5]]),
        ("[1, 0]^T", [1, 0]),
        ("(1, 1/3, −2)", [1, "1/3", -2]),
        ("[[1, 0], [0, 1]]", [[1, 0], [0, 1]]),
        ("{[\n1\n2\n],\n[\n3\n5\n]}", [[1, 2], [3, 5]]),
        ("[1 2\n3 4]", [[1, 2], [3, 4]]),
        ("[1/√2, -∞]", ["1/sqrt(2)", float("-inf")]),
        ("2,048", 2048), ("(a)", None), ("[1, x]", None), ("[[1], [2, 3]]", None),
        (r"[1 0; 0 1] [2 0; 0 2]", None),
    ],
)  # fmt: skip
def test_written_arrays(text: str, value: object) -> None:
    assert read_array(text) == value


def test_large_matrices_are_read_in_bounded_time() -> None:
    rows = [list(range(500))] * 500
    began = time.perf_counter()
    assert read_array(str(rows)) == rows
    assert read_array(str(rows * 5)) is None
    assert time.perf_counter() - began < 5
