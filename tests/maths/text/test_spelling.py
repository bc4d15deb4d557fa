"""Runs of letters: functions, names, products of letters, and words that are none of these."""

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import symbols_of

S = {"n": "natural", "d": "natural", "x": "scalar", "s": "vector[n]", "c": "scalar", "i_max": "index[n]"}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("log2(n)", r"\log_2 n"),
        ("log2 n", r"\log_2 n"),
        ("n log10(n)", r"n \log_{10}(n)"),
        (r"\text{log2}(n)", r"\log_2(n)"),
        (r"\operatorname{log10} n", r"\log_{10} n"),
        ("log 2 n", r"\log(2n)"),
        ("O(n lg n)", "O(n log n)"),
        (r"O(n \lg n)", "O(n log n)"),
        ("O(bnd)", "O(b n d)"),
        ("O(bd(n+1))", "O(b d (n+1))"),
        ("O(nd_model)", "O(n d_model)"),
        ("O(seq_len^2 d)", r"O(d\,\text{seq_len}^2)"),
        ("s_{i_max}", r"s_{i_{\max}}"),
    ],
)
def test_spellings_of_one_thing(text, same) -> None:
    assert compare(same, text, S).kind == "equal"


@pytest.mark.parametrize("text", ["lg n", r"\lg n", "lg(n)"])
def test_lg_has_no_base_outside_of_an_order(text) -> None:
    with pytest.raises(Unreadable, match="base 2 to some"):
        parse(text, S)
    assert parse("lg", {"l": "scalar", "g": "scalar"}) == parse("l g", {"l": "scalar", "g": "scalar"})


@pytest.mark.parametrize("word", ["sin", "cos", "tanh", "foo", "sigmoid"])
def test_a_word_before_a_bracket_is_one_word(word) -> None:
    with pytest.raises(IllTyped, match=f"^{word} is not declared"):
        parse(f"{word}(x)", S)
    with pytest.raises(Unreadable, match=f"{word} is no function"):
        parse(f"O(n {word}(n))", S)


def test_functions_are_no_products_of_declared_letters() -> None:
    letters = dict.fromkeys("sincotaxh", "scalar")
    for text in ("sin(x)", "cos x", "tanh(x)"):
        with pytest.raises(IllTyped, match="is not declared"):
            parse(text, letters)
    assert parse("cs(x)", letters) == parse("c s (x)", letters)


def test_a_function_that_is_nearly_spelt_right_is_named() -> None:
    with pytest.raises(IllTyped, match="the function softmax is known"):
        parse("softmx(s)", S)


def test_long_words_in_an_order_are_one_name() -> None:
    names = {part.name for part in parse("O(sequence n)", S).body.factors}  # pyright: ignore[reportAttributeAccessIssue]
    assert names == {"sequence", "n"}


L = {
    "x": "scalar",
    "y": "scalar",
    "n": "natural",
    "u": "vector[d]",
    "A": "matrix[n,n]",
    "q": "random vector[d] ~ N(0, I)",
}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("xy", "x y"),
        ("nx", "n x"),
        ("xyu", "x y u"),
        ("xpi", r"x \pi"),
        ("xe^y", "x e^y"),
        ("x2", "x 2"),
        ("u2", "u_2"),
        ("u12", "u_{12}"),
        ("A12", "A_{1,2}"),
        ("x^2y", "x^2 y"),
        ("x^ny", "x^n y"),
        ("2xy^2", "2 x y^2"),
        ("u_iu_i", "u_i u_i"),
        (r"\sum_iu_i", r"\sum_i u_i"),
        (r"\sum_ie^{u_i}", r"\sum_i e^{u_i}"),
        ("A_ij", "A_{ij}"),
        ("A_ii", "A_{ii}"),
        (r"u_iu_j\delta_ij", r"u_i u_j \delta_{ij}"),
        ("u_i u_j I_ij", "u_i u_j I_{ij}"),
        ("expx", r"\exp(x)"),
        ("logn", r"\log n"),
        ("xlogn", r"x\log n"),
        ("sqrtn", r"\sqrt n"),
        ("log2(n)", r"\log_2(n)"),
        ("log2[n]", r"\log_2(n)"),
        ("log2{n}", r"\log_2(n)"),
        ("log2 n", r"\log_2 n"),
        (r"log2 \pi", r"\log_2 \pi"),
        (r"log2\left(n\right)", r"\log_2(n)"),
        (r"log2\big(n\big)", r"\log_2(n)"),
        (r"log2\Big(n\Big)", r"\log_2(n)"),
        ("log10(n)", r"\log_{10}(n)"),
        ("log2n", r"\log(2n)"),
        (r"\log2 n", r"\log(2 n)"),
        ("E(q)", "E[q]"),
        (r"E\left[q\right]", "E[q]"),
        (r"E\{q\}", "E[q]"),
        ("E_q[q]", "E[q]"),
        ("E_{q}[q]", "E[q]"),
        ("nE[q]", "n E[q]"),
        ("sum(u)", r"\operatorname{sum}(u)"),
        ("sum_i u_i", r"\sum_i u_i"),
        ("prod_i u_i", r"\prod_i u_i"),
        (r"\Sigma_i u_i", r"\sum_i u_i"),
        (r"\Pi_i u_i", r"\prod_i u_i"),
        ("O(abcd)", "O(a b c d)"),
        ("O(nlogn)", r"O(n \log n)"),
        ("O(abc)", "O(a b c)"),
        ("O(ab(n+1))", "O(a b (n+1))"),
        (r"\Omega(n)", "Ω(n)"),
        (r"O\left(n\right)", "O(n)"),
        (r"O\!\left(n\right)", "O(n)"),
        (r"O{}(n)", "O(n)"),
        ("O[n]", "O(n)"),
        ("O{n}", "O(n)"),
        (r"O\{n\}", "O(n)"),
    ],
)
def test_runs_of_letters_are_cut_up(text, same) -> None:
    assert parse(text, L) == parse(same, L)


@pytest.mark.parametrize("name", ["foo", "loss", "seq_len", "d_model", "head_dim"])
def test_a_long_name_is_one_name_where_it_is_declared(name) -> None:
    assert parse(f"x {name} x", {"x": "scalar", name: "scalar"}).factors[1].name == name  # pyright: ignore
    assert parse(f"{name}^2", {name: "scalar"}).base.name == name  # pyright: ignore
    if "_" in name:
        assert parse(f"O({name} n)", {}).body.factors[0].name == name  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("O(abcde)", {"abcde"}),
        ("O(abcd)", {"a", "b", "c", "d"}),
        ("O(seq_len)", {"seq_len"}),
        ("O(seq len)", {"s", "e", "q", "l", "n"}),
        ("O(d_model d_k)", {"d_model", "d_k"}),
        ("O(d_{ff})", {"d_ff"}),
        (r"O(n_{\text{heads}})", {"n_heads"}),
    ],
)
def test_names_in_orders(text, names) -> None:
    assert set(symbols_of(parse(text, {}))) == names


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("the x", "this reads like words, not like mathematics", "the"),
        ("x is y", "this reads like words, not like mathematics", "is"),
        ("foo bar", "this reads like words, not like mathematics", "foo"),
        ("abc", "this reads like words, not like mathematics", "abc"),
        ("I know", "this reads like words, not like mathematics", "know"),
        ("O(foo(n))", "foo is no function that qkv reads", "foo"),
        ("O(tanh n)", "tanh is no function that qkv reads", "tanh"),
        ("x + lg n", r"lg is of base 2 to some, of base 10 to others: write \log_2", "lg"),
        ("(" * 61 + "x" + ")" * 61, "brackets are nested more than 60 deep", "("),
        ("x + (y]", "] closes nothing that is open: what is open is (", "]"),
        ("x + y]", "] closes nothing that is open", "]"),
        (r"x + \langle y)", r") closes nothing that is open: what is open is \langle", ")"),
        ("x + |y)", ") closes nothing that is open: what is open is |", ")"),
        ("x + (y", "( is never closed", "("),
        ("x + [y", "[ is never closed", "["),
        ("x^{y", "{ is never closed", "{"),
        (r"x + \sqrt[3 y", "[ is never closed", "["),
        (r"x + \begin{pmatrix} y", r"\begin is never closed", r"\begin"),
        ("x + |y", "| is never closed", "|"),
        ("x + ((y)", "( is never closed", "("),
    ],
)
def test_what_is_refused(text, reason, place) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, L)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


def test_how_deep_brackets_may_be() -> None:
    assert parse("(" * 60 + "x" + ")" * 60, L) == parse("x", L)


def test_a_declared_name_wins_over_what_a_word_means_by_itself() -> None:
    for word in ("log", "exp", "max", "tr", "sum", "sqrt", "E", "O", "pi", "Sigma", "Pi", "inf", "lg", "e", "I", "sin"):
        assert parse(f"{word} x", {word: "scalar", "x": "scalar"}).factors[0].name == word  # pyright: ignore
    assert parse("log2 x", {"log": "scalar", "x": "scalar"}) == parse("(log) 2 x", {"log": "scalar", "x": "scalar"})
    assert parse("log2", {"log_2": "scalar"}).name == "log_2"  # pyright: ignore


def test_two_letters_below_a_delta_are_two_indices() -> None:
    below = {"s": "vector[k]"}
    assert parse(r"s_n s_u \delta_nu", below) == parse(r"s_n s_u \delta_{n,u}", below)
    assert parse("s_n s_u I_nu", below) == parse(r"s_n s_u \delta_{n,u}", below)
    declared = {"delta": "vector[k]", "nu": "index[k]", "I": "vector[k]"}
    assert parse(r"\delta_nu", declared) == parse(r"\delta_{\nu}", declared)
    assert parse("I_nu", declared) == parse(r"I_{\nu}", declared)
    indices = {"A": "matrix[k,k]", "i": "index[k]", "j": "index[k]"}
    assert parse("A_ij", indices) == parse("A_{i,j}", indices)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("log3(n)", r"\log_3(n)"),
        ("log3 n", r"\log_3 n"),
        ("log16(n)", r"\log_{16}(n)"),
        ("log2.5(n)", r"\log_{2.5}(n)"),
        (r"\text{log3}(n)", r"\log_3(n)"),
        ("O(n log3(n))", r"O(n \log_3(n))"),
    ],
)
def test_any_digits_right_behind_log_are_its_base(text, same) -> None:
    assert parse(text, S) == parse(same, S)


@pytest.mark.parametrize("sign", [r"\cdot", r"\times", r"\div", r"\pm", r"\le", r"\ne", "+"])
def test_digits_behind_log_are_its_argument_where_a_sign_follows(sign) -> None:
    for base in ("2", "3"):
        assert parse(f"log{base} {sign} x", S) == parse(rf"\log({base}) {sign} x", S)
    assert parse(r"\left(log3 \right) x", S) == parse(r"\log(3) x", S)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"\sum_ie^{s_i}", r"\sum_{i} e^{s_i}"),
        (r"\sum_ixe^{s_i}", r"\sum_{i} x e^{s_i}"),
        (r"\sum_ije^{s_i + s_j}", r"\sum_{i,j} e^{s_i + s_j}"),
        ("s_ie^x", "s_{i} e^x"),
    ],
)
def test_a_power_of_e_right_behind_a_declared_index_is_no_index(text, same) -> None:
    declared = {**S, "i": "index[n]", "j": "index[n]"}
    assert parse(text, declared) == parse(same, declared)


def test_an_e_below_stays_an_index_where_it_is_declared_and_a_letter_of_a_longer_word() -> None:
    declared = {"A": "matrix[n,n]", "i": "index[n]", "e": "index[n]"}
    assert parse("A_ie^2", declared) == parse("(A_{i,e})^2", declared)
    with pytest.raises(IllTyped, match="x_base is not declared"):
        parse("x_base^2", S)
