"""Identities that must be proved, near misses that must not be, and normal forms as text."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product

import pytest

from qkv.maths.algebra.normal import NotNormal, TooLarge, is_zero, normal, same, term_count
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Add, Call, Multiply, Number, Order, Power, Symbol, Type

NAMES = {
    "a": "scalar", "b": "scalar", "c": "scalar", "x": "scalar", "p": "positive", "r": "positive", "z": "nonnegative",
    "d": "natural", "n": "natural", "m": "natural", "h": "natural",
    "mu": "vector[d]", "u": "vector[d]", "v": "vector[d]", "s": "vector[n]", "t": "vector[3]", "q": "vector[d]",
    "A": "matrix[d,d]", "B": "matrix[d,d]", "Q": "matrix[n,d]", "K": "matrix[m,d]", "V": "matrix[m,h]",
    "S": "matrix[n,n]", "G": "matrix[2,2]", "H": "matrix[2,2]",
    "phi": "map vector[d] -> vector[f]", "sim": "map vector[d], vector[d] -> scalar",
}  # fmt: skip


EQUAL = [
    # index plumbing
    (r"\mu^T\mu", r"\|\mu\|^2"),
    (r"\mu^T\mu", r"\sum_i \mu_i^2"),
    (r"\mu^T\mu", r"\operatorname{tr}(\mu\mu^T)"),
    (r"u^T v", r"v^T u"),
    (r"(AB)^T", r"B^T A^T"),
    (r"\operatorname{tr}(AB)", r"\operatorname{tr}(BA)"),
    (r"\operatorname{tr}(A^T B)", r"\sum_i \sum_j A_{ij} B_{ij}"),
    (r"\|A\|_F^2", r"\operatorname{tr}(A A^T)"),
    (r"(QK^T)_{ij}", r"Q_i^T K_j"),
    (r"\sum_j K_{ij} q_j", r"(K q)_i"),
    (r"A(u + v)", r"A u + A v"),
    (r"u \odot v", r"\operatorname{diag}(u) v"),
    (r"u^T \operatorname{diag}(v) u", r"\sum_i v_i u_i^2"),
    (r"(u^T v)^2", r"u^T v v^T u"),
    (r"\operatorname{tr}(ABA)", r"\operatorname{tr}(A^2 B)"),
    (r"\sum_{i=1}^{d} 1", r"d"),
    (r"\mathbf{1}_d^T \mathbf{1}_d", r"d"),
    (r"\operatorname{tr}(I_d)", r"d"),
    (r"\sum_{i=1}^{n} i", r"n(n+1)/2"),
    (r"\sum_{i=1}^{n} i^2", r"n(n+1)(2n+1)/6"),
    (r"\sum_{i \ne j} s_i s_j", r"(\sum_i s_i)^2 - \sum_i s_i^2"),
    (r"\sum_{i<j} s_i s_j", r"\frac12 \sum_{i \ne j} s_i s_j"),
    (r"\sum_{i<j} (s_i - s_j)^2", r"n s^T s - (\mathbf{1}^T s)^2"),
    (r"\sum_{1 \le i < j \le n} 1", r"n(n-1)/2"),
    (r"t^T t", r"t_1^2 + t_2^2 + t_3^2"),
    (r"(1,4,3)^T t", r"t_1 + 4 t_2 + 3 t_3"),
    (r"[[1,2],[3,4]] [[0,1],[1,0]]", r"[[2,1],[4,3]]"),
    # a function of three indices that may go round, but not be swapped
    (r"\sum_{i,j,k} \exp(A_{ij} A_{jk} A_{ki}) u_i v_j", r"\sum_{i,j,k} \exp(A_{ij} A_{jk} A_{ki}) u_j v_k"),
    # powers and roots
    (r"\frac{1}{\sqrt{n}}", r"\sqrt{1/n}"),
    (r"\sqrt{n d}", r"\sqrt{n}\sqrt{d}"),
    (r"\sqrt{12}", r"2\sqrt{3}"),
    (r"1/\sqrt{2}", r"\sqrt{2}/2"),
    (r"\sqrt{x^2}", r"|x|"),
    (r"\sqrt{p^2}", r"p"),
    (r"|a b|", r"|a||b|"),
    (r"|x|^2", r"x^2"),
    (r"|a - b|", r"|b - a|"),
    (r"\frac{(a+b)^2}{a+b}", r"a+b"),
    (r"\frac{a}{a+b} + \frac{b}{a+b}", r"1"),
    (r"\frac{1}{a-b}", r"-\frac{1}{b-a}"),
    (r"\frac{1}{1/a + 1/b}", r"\frac{ab}{a+b}"),
    (r"\frac{d p}{\sqrt{d}}", r"\sqrt{d} p"),
    (r"\|x \mu\|", r"|x| \|\mu\|"),
    (r"2^{n+1}", r"2 \cdot 2^n"),
    (r"\sqrt{\mu^T\mu}^2", r"\mu^T\mu"),
    (r"\frac{\mu^T\mu}{\|\mu\|}", r"\|\mu\|"),
    (r"\sqrt{d^2 + 2d + 1}", r"d + 1"),
    (r"\sqrt{4p^2 + 4 p r + r^2}", r"2p + r"),
    (r"\sqrt{a^2 - 2ab + b^2}", r"|b - a|"),
    (r"\sqrt{x^4 + 2x^2 + 1}", r"x^2 + 1"),
    (r"\frac{1}{a^2 + 2ab + b^2}", r"\frac{1}{(a+b)^2}"),
    (r"\sqrt{p + 2\sqrt{p} + 1}", r"\sqrt{p} + 1"),
    (r"|d - 1|", r"d - 1"),
    (r"|1 - n d|", r"n d - 1"),
    (r"\sqrt{d^2 - 2d + 1}", r"d - 1"),
    (r"\sqrt{n - 1}\sqrt{d}", r"\sqrt{d (n - 1)}"),
    (r"\sqrt{a}\sqrt{b}", r"\sqrt{a b}"),
    (r"\sqrt{a b}", r"\sqrt{a}\sqrt{b}"),
    (r"\sqrt{u_i}\sqrt{v_i}", r"\sqrt{u_i v_i}"),
    (r"\log(a b)", r"\log a + \log b"),
    # functions
    (r"\exp(a+b)", r"\exp(a)\exp(b)"),
    (r"\exp(\log p)", r"p"),
    (r"\log(n d)", r"\log n + \log d"),
    (r"\log(p^3)", r"3\log p"),
    (r"\log \exp(x)", r"x"),
    (r"\max(a, b)", r"\max(b, a)"),
    (r"\max(a, b) + \min(a, b)", r"a + b"),
    (r"\max(a, \max(b, c))", r"\max(c, a, b)"),
    (r"relu(x)", r"\max(0, x)"),
    (r"relu(x) - relu(-x)", r"x"),
    (r"\mathbf{1}^T softmax(s)", r"1"),
    (r"softmax(s + x \mathbf{1})", r"softmax(s)"),
    (r"softmax(s)_i", r"\frac{\exp(s_i)}{\sum_j \exp(s_j)}"),
    (r"\sum_i \sum_j softmax(S)_{ij}", r"n"),
    (r"\operatorname{argmax}(softmax(s))", r"\operatorname{argmax}(s)"),
    (r"\max(p s)", r"p \max(s)"),
    (r"\prod_{i=1}^{n} \exp(s_i)", r"\exp(\sum_i s_i)"),
    (r"\prod_{i=1}^{n} p", r"p^n"),
    # matrices
    (r"A A^{-1}", r"I"),
    (r"(AB)^{-1}", r"B^{-1} A^{-1}"),
    (r"(A^T)^{-1}", r"(A^{-1})^T"),
    (r"(A+B) A^{-1}", r"I + B A^{-1}"),
    (r"(2A)^{-1}", r"\frac12 A^{-1}"),
    (r"G^{-1} G", r"I_2"),
    # attention
    (r"(softmax(QK^T/\sqrt{d}) V)_i", r"\sum_j softmax(QK^T/\sqrt{d})_{ij} V_j"),
    (r"\sum_j \phi(q)^T\phi(K_j) V_j", r"(\sum_j V_j \phi(K_j)^T) \phi(q)"),
    (r"\frac{\sum_j \phi(q)^T\phi(K_j) V_j}{\sum_j \phi(q)^T\phi(K_j)}",
     r"\frac{(\sum_j V_j \phi(K_j)^T) \phi(q)}{\phi(q)^T \sum_j \phi(K_j)}"),
    (r"\sum_j (q^T K_j)^2", r"q^T K^T K q"),
]  # fmt: skip


UNPROVED = [
    (r"\mu^T\mu", r"(\mathbf{1}^T\mu)^2"),
    (r"\mu^T\mu", r"\|\mu\|"),
    (r"(AB)^T", r"A^T B^T"),
    (r"\operatorname{tr}(AB)", r"\operatorname{tr}(A)\operatorname{tr}(B)"),
    (r"\operatorname{tr}(AB)", r"\operatorname{tr}(A B^T)"),
    (r"AB", r"BA"),
    (r"A^T A", r"A A^T"),
    (r"(AB)^{-1}", r"A^{-1}B^{-1}"),
    (r"A (A^T)^{-1}", r"I_d"),
    (r"\sqrt{x^2}", r"x"),
    (r"\sqrt{a^2 + b^2}", r"a + b"),
    (r"\log(a b)", r"\log a + \log b + 1"),
    (r"\frac{1}{a+b}", r"\frac1a + \frac1b"),
    (r"\sum_{i<j} s_i", r"\sum_{i<j} s_j"),
    (r"\sum_{i<j} s_i s_j", r"\sum_{i \ne j} s_i s_j"),
    (r"softmax(2s)", r"softmax(s)"),
    (r"\max(x s)", r"x \max(s)"),
    (r"\operatorname{argmax}(-s)", r"\operatorname{argmax}(s)"),
    (r"\exp(a b)", r"\exp(a)\exp(b)"),
    (r"\sum_i u_i v_i^2", r"\sum_i u_i^2 v_i"),
    (r"\sum_i \sum_j A_{ij}^2 A_{ji}", r"\sum_i \sum_j A_{ij}^2 A_{ij}"),
    (r"sim(u, v)", r"sim(v, u)"),
    (r"\sum_{i,j,k} \exp(A_{ij} A_{jk} A_{ki}) u_i v_j", r"\sum_{i,j,k} \exp(A_{ij} A_{jk} A_{ki}) u_j v_i"),
    (r"x^{1/3}", r"|x|^{1/3}"),
    (r"\sum_j Q_{ij} q_j", r"\sum_j Q_{ij} q_j^2"),
    (r"|d - 2|", r"d - 2"),
    (r"|n - d|", r"n - d"),
    (r"|p - 1|", r"p - 1"),
    (r"\sqrt{a^2 + 2ab + b^2}", r"a + b"),
    (r"\sqrt{a^2 + 2ab - b^2}", r"|a + b|"),
    (r"\sqrt{a b}", r"\sqrt{a}\sqrt{c}"),
    # a root says something of what stands under it, not of its neighbour
    (r"\sqrt{u_i + v_i} |u_j + v_j|", r"\sqrt{u_i + v_i} (u_j + v_j)"),
    (r"\sqrt{u_i} |u_j|", r"\sqrt{u_i} u_j"),
    (r"\sqrt{u_1 + v_1} |u_2 + v_2|", r"\sqrt{u_1 + v_1} (u_2 + v_2)"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_identities_are_proved(left: str, right: str) -> None:
    a = parse(left, NAMES)
    b = parse(right, NAMES, expected=a.shape)
    assert same(a, b)
    assert same(b, a)


@pytest.mark.parametrize(("left", "right"), UNPROVED)
def test_near_misses_are_not(left: str, right: str) -> None:
    a, b = parse(left, NAMES), parse(right, NAMES)
    assert a.shape == () or b.shape == () or a.shape == b.shape
    assert not same(a, b)
    assert not same(b, a)


@pytest.mark.slow
@pytest.mark.parametrize("text", sorted({left for left, _ in EQUAL}))
def test_adding_one_or_doubling_is_noticed(text: str) -> None:
    node = parse(text, NAMES)
    two = Number((), Fraction(2))
    if node.shape == ():
        assert not same(node, Add((), (node, two)))
    assert not is_zero(node)
    assert is_zero(Add(node.shape, (node, parse(f"-({text})", NAMES))))


def test_normal_forms_are_hashable_and_readable() -> None:
    one, other = normal(parse(r"\mu^T\mu", NAMES)), normal(parse(r"\sum_i \mu_i \mu_i", NAMES))
    assert one == other
    assert len({one, other}) == 1
    assert term_count(one) == 1
    assert repr(one) == "Normal(Σ mu[1]^2)"


def test_shapes_are_never_confused() -> None:
    assert not same(parse(r"\mu^T", NAMES), parse(r"\mu", NAMES))
    assert not same(parse(r"\mu\mu^T", NAMES), parse(r"\mu^T\mu", NAMES))


def test_definitions_are_read_as_what_they_stand_for() -> None:
    names = {**NAMES, "w": "vector[n] = softmax(s)", "g": "natural = d/h", "M": "matrix[n,m] = Q K^T"}
    assert same(parse(r"\mathbf{1}^T w", names), parse("1", names))
    assert same(parse("g h", names), parse("d", names))
    assert same(parse("M_{ij}", names), parse("Q_i^T K_j", names))


def test_what_costs_too_much_is_given_up() -> None:
    letters = [Symbol((), name, Type("scalar")) for name in "abcdefgh"]
    large = Power((), Add((), tuple(letters)), Number((), Fraction(30)))
    with pytest.raises(TooLarge):
        normal(large)
    assert not same(large, Add((), (large, letters[0])))
    assert same(large, large)


def test_an_entry_of_a_written_matrix_is_picked_and_not_searched_for() -> None:
    names = {
        "X": "matrix[3,2] = [[2, 3], [-1, 0], [1, -2]]",
        "W": "matrix[2,3] = [[1, 0, 2], [0, 1, -3]]",
        "A": "matrix[3,3] = softmax(X W)",
    }
    normal(parse("(A X)_3", names), work=1_000)
    assert same(parse("X_{3i}", names), parse("X_{1i} + X_{3i} - X_{1i}", names))
    assert not same(parse("X_{3i}", names), parse("X_{2i}", names))


def test_classes_of_growth_have_no_normal_form() -> None:
    node = Order((), "O", parse("n", NAMES))
    with pytest.raises(NotNormal):
        normal(node)
    with pytest.raises(NotNormal):
        same(node, node)
    with pytest.raises(NotNormal, match="Order has no normal form"):
        is_zero(node)


LAYER = {
    "x": "vector[d]", "gamma": "scalar", "beta": "scalar", "epsilon": "positive",
    "mu": r"scalar = \frac{1}{d} \mathbf{1}^T x", "sigma": r"scalar = \sqrt{\frac{1}{d} \|x - \mu \mathbf{1}\|^2}",
    "y": r"vector[d] = \gamma (x - \mu \mathbf{1}) / \sigma + \beta \mathbf{1}",
    "w": r"vector[d] = \gamma (x - \mu \mathbf{1}) / \sqrt{\sigma^2 + \epsilon} + \beta \mathbf{1}",
}  # fmt: skip


def test_the_length_of_a_normalised_vector() -> None:
    plain, with_epsilon = (parse(rf"\|{name} - \beta \mathbf{{1}}\|", LAYER) for name in "yw")
    shorter = parse(r"|\gamma| \sqrt{d} \frac{\sigma}{\sqrt{\sigma^2 + \epsilon}}", LAYER)
    assert same(plain, parse(r"|\gamma| \sqrt{d}", LAYER))
    assert same(with_epsilon, shorter)
    for wrong in (r"\gamma \sqrt{d}", r"|\gamma| d", r"|\gamma| \sqrt{d - 1}"):
        assert not same(plain, parse(wrong, LAYER))
    assert not same(with_epsilon, parse(r"|\gamma| \sqrt{d}", LAYER))
    assert not same(plain, shorter)


@pytest.mark.parametrize(
    "text",
    [
        r"(A - A)^{-1}", r"(A - A)^{-1} (A - A)", r"(A B - A B)^{-1}", r"(G - G)^{-1} G", r"(0 A)^{-1}",
        r"\operatorname{diag}(u - u)^{-1}",
        r"0^{-1}", r"1/0", r"\frac{0}{0}", r"\frac{1}{a - a}", r"\frac{1}{(a+b)^2 - a^2 - 2ab - b^2}", r"\log(a - a)",
        r"\frac{1}{\frac{a}{a+b} + \frac{b}{a+b} - 1}", r"[[1,2],[2,4]]^{-1}", r"\frac{1}{\det(A - A)}",
    ],
)  # fmt: skip
def test_what_has_no_value_has_no_normal_form(text: str) -> None:
    node = parse(text, NAMES)
    with pytest.raises(NotNormal):
        normal(node)
    with pytest.raises(NotNormal):
        same(node, parse(text, NAMES))


def test_a_sign_that_is_known_holds_from_one_on() -> None:
    names = [Symbol((), name, Type("natural")) for name in "dn"]
    chance, known = random.Random(5), 0
    for _ in range(200):
        powers = [(chance.randint(-4, 4), chance.randint(0, 2), chance.randint(0, 2)) for _ in range(3)]
        parts = []
        for c, *ks in powers:
            factors = (Power((), name, Number((), Fraction(k))) for name, k in zip(names, ks, strict=True))
            parts.append(Multiply((), (Number((), Fraction(c)), *factors)))
        body = Add((), tuple(parts))
        if same(Call((), "abs", (body,)), body):
            known += 1
            for d, n in product((1, 2, 3, 7), repeat=2):
                assert sum(c * d**j * n**k for c, j, k in powers) >= 0, powers
    assert known > 40


NOTATION_NAMES = {
    "x": "scalar", "y": "scalar", "a": "scalar", "b": "scalar", "s": "vector[n]", "F": "matrix[n,n]", "n": "natural",
    "t": "vector[3]", "phi": "map vector[n] -> vector[n]", "g": "map scalar -> scalar", "m": "vector[n]",
    "q": "random vector[n] ~ (m, F)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0", "0"),
        ("3", "3"),
        ("1", "1"),
        ("x", "x"),
        ("-x", "-1 x"),
        ("-x/2", "-1/2 x"),
        ("2x^2 - 1/3", "-1/3 + 2 x^2"),
        ("x y", "x y"),
        (r"\sqrt 2", "2^1/2"),
        (r"\pi", "pi"),
        (r"\exp(x)", "exp(x)"),
        (r"\log(x)^2", "log(x)^2"),
        ("1/(a + b)", "sum(a + b)^-1"),
        (r"\|t\|", "sum(t[=1]^2 + t[=2]^2 + t[=3]^2)^1/2"),
        ("s", "s[#0]"),
        ("t", "t[=1], t[=2], t[=3]"),
        ("s_3", "s[=3]"),
        ("s_i", "s[i]"),
        (r"\exp(s_i)", "exp(s[p0])[i]"),
        (r"\sum_i s_i", "Σ s[1]"),
        (r"s^T F s", "Σ F[1,2] s[1] s[2]"),
        (r"\sum_{i<j} s_i s_j^2", "Σ less[1,2] s[1] s[2]^2"),
        (r"\phi(s)_2", "map:phi/1(s[r0])[=2]"),
        ("g(x)", "map:g/0(x)"),
        (r"\max(s)", "largest(s[r0], n)"),
        (r"F^{-1}", "inverse(F[r0,r1], n)[#0,#1]"),
        ("q_1", "q[=1]"),
        (r"E[\exp(q_1)]", "expect(exp(q[=1]))"),
        (r"\max(x, y, a)", "max(a, x, y)"),
    ],
)
def test_normal_forms_are_shown(text: str, shown: str) -> None:
    assert repr(normal(parse(text, NOTATION_NAMES))) == f"Normal({shown})"
