"""Names: their one spelling, and where in a text one ends."""

import pytest

from qkv.maths.parsing import naming


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("x", "x"),
        (" x ", "x"),
        ("mu", "mu"),
        ("μ", "mu"),
        ("µ", "mu"),
        (r"\mu", "mu"),
        (r"\varphi", "phi"),
        (r"\boldsymbol{\mu}", "mu"),
        (r"\mathbf x", "x"),
        (r"\mathbf{x}_{q}", "x_q"),
        (r"{\bf x}", "x"),
        (r"\operatorname*{loss}", "loss"),
        ("μ_q", "mu_q"),
        (r"\mu_{q}", "mu_q"),
        ("x₁", "x_1"),
        ("x_12", "x_12"),
        ("x_{ij}", "x_ij"),
        ("d_model", "d_model"),
        (r"d_{\text{model}}", "d_model"),
        (r"d_{\mathrm{model}}", "d_model"),
        (r"d_\text{model}", "d_model"),
        (r"i_{\max}", "i_max"),
        (r"x_{\alpha}", "x_alpha"),
        ("x'", "x'"),
        ("x′", "x'"),
        ("x''", "x''"),
        (r"x^\prime", "x'"),
        (r"x^{\prime}", "x'"),
        (r"x^{\prime\prime}", "x''"),
        ("x'_1", "x'_1"),
        ("x_1'", "x_1'"),
        (r"\hat{x}", "x_hat"),
        (r"\hat x", "x_hat"),
        (r"\widehat{\mu}", "mu_hat"),
        (r"\bar\mu", "mu_bar"),
        (r"\overline{x}", "x_bar"),
        (r"\tilde{x}", "x_tilde"),
        (r"\widetilde x", "x_tilde"),
        ("log", "log"),
        (r"\log", "log"),
        ("2x", None),
        ("x2", None),
        ("", None),
        ("x y", "xy"),
        ("x+y", None),
        ("x_", None),
        ("_x", None),
        ("x_{1,2}", None),
        ("x_1_2", None),
        (r"\foo", None),
        (r"\foo{x}", None),
        (r"\hatx", None),
        (r"\mathbfx", None),
        ("x\u202e", None),
        ("а", None),
        ("x" * 2001, None),
    ],
)
def test_one_spelling(written, name) -> None:
    assert naming.canonical_name(written) == name


def test_letters() -> None:
    assert [naming.greek_name(word) for word in ("mu", "varepsilon", "Sigma", "x", "foo", "omicron")] == [
        "mu",
        "epsilon",
        "Sigma",
        None,
        None,
        None,
    ]


def test_words_of_qkv_itself() -> None:
    assert all(map(naming.is_reserved, ("sqrt", "sum", "prod", "softmax", "ln", "Var")))
    assert not any(map(naming.is_reserved, ("x", "mu", "sine", "Sum", "")))


@pytest.mark.parametrize(
    ("text", "at", "found"),
    [
        ("x' y", 1, ("'", 2)),
        ("x'' y", 1, ("''", 3)),
        ("x ' y", 1, ("'", 3)),
        (r"x^\prime y", 1, ("'", 8)),
        (r"x^ \prime y", 1, ("'", 9)),
        (r"x^{\prime\prime} y", 1, ("''", 16)),
        (r"x^{ \prime } y", 1, ("'", 12)),
        (r"x^\primex", 1, ("", 1)),
        ("x^2", 1, ("", 1)),
        ("x", 1, ("", 1)),
    ],
)
def test_primes(text, at, found) -> None:
    assert naming.primes(text, at) == found


@pytest.mark.parametrize(
    ("text", "at", "place"),
    [
        ("{x}", 0, 2),
        ("{x{y}z}", 0, 6),
        ("{x{y}z}", 2, 4),
        ("{x", 0, -1),
        ("{x{y}", 0, -1),
        (r"{x\}y}", 0, 5),
        (r"{x\{y}", 0, 5),
        ("a{}b", 1, 2),
        ("{x}}", 0, 2),
    ],
)
def test_where_a_brace_is_closed(text, at, place) -> None:
    assert naming.closing(text, at) == place


@pytest.mark.parametrize(
    ("text", "at", "found"),
    [
        ("{xy} z", 0, ("xy", 4)),
        ("  {xy} z", 0, ("xy", 6)),
        ("xy", 0, ("x", 1)),
        (" xy", 0, ("x", 2)),
        (r"\mu x", 0, (r"\mu", 3)),
        (r"\mathbf{x}y", 0, (r"\mathbf{x}", 10)),
        (r"\text x", 0, (r"\text x", 7)),
        (r"\mathbf", 0, None),
        (r"\{", 0, None),
        ("{x", 0, None),
        ("", 0, None),
        ("x ", 1, None),
        ("ab{c}", 2, ("c", 5)),
    ],
)
def test_what_a_command_takes(text, at, found) -> None:
    assert naming.argument(text, at) == found


@pytest.mark.parametrize(
    ("text", "at", "found"),
    [
        ("x_ab", 1, [("ab", 4), ("a", 3)]),
        ("x_1", 1, [("1", 3)]),
        ("x _ ab", 1, [("ab", 6), ("a", 5)]),
        ("x_{ab} c", 1, [("ab", 6)]),
        (r"x_{\text{ab}} c", 1, [("ab", 13)]),
        (r"x_\mu c", 1, [("mu", 5)]),
        ("x_{a,b}", 1, []),
        ("x_{}", 1, []),
        ("x_", 1, []),
        ("x", 1, []),
        ("x y", 1, []),
        ("x_+", 1, []),
    ],
)
def test_lower_indices(text, at, found) -> None:
    assert naming.subscripts(text, at) == found


def test_a_long_lower_index_is_cut() -> None:
    found = naming.subscripts("x_" + "a" * 50, 1)
    assert found[0] == ("a" * 40, 42)
    assert found[-1] == ("a", 3)


@pytest.mark.parametrize(
    ("text", "base", "end", "found"),
    [
        ("x", "x", 1, [("x", 1)]),
        ("x'", "x", 1, [("x'", 2)]),
        ("x2", "x", 1, [("x_2", 2), ("x", 1)]),
        ("x2.5", "x", 1, [("x", 1)]),
        ("x2e5", "x", 1, [("x", 1)]),
        ("x2e", "x", 1, [("x_2", 2), ("x", 1)]),
        ("x_ab", "x", 1, [("x_ab", 4), ("x_a", 3), ("x", 1)]),
        ("x_a'", "x", 1, [("x_a'", 4), ("x", 1)]),
        ("x'_a'", "x", 1, [("x'_a'", 5), ("x'", 2)]),
    ],
)
def test_readings_of_a_name_longest_first(text, base, end, found) -> None:
    assert naming.name_readings(text, base, end) == found
