"""Juxtaposed products and the ways to write derivatives."""

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Derivative, Divide

S = {"q": "vector[d]", "x": "scalar", "Q": "matrix[n,d]"}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("q^T 1", r"q^T \mathbf{1}"),
        ("q^T \\cdot 1", r"q^T \mathbf{1}_d"),
        ("1^T Q 1", r"\mathbf{1}^T Q \mathbf{1}"),
        ("q^T 1 x", r"x q^T \mathbf{1}"),
        ("0^T q", r"\mathbf{0}^T q"),
        ("q^T 0", r"q^T \mathbf{0}"),
        ("(q^T 1)^2", r"(\sum_i q_i)^2"),
    ],
)
@pytest.mark.parametrize("expected", [None, ()])
def test_a_bare_number_after_a_row_is_a_vector(text, same, expected) -> None:
    assert parse(text, S, expected=expected).shape == ()
    assert compare(same, text, S).evidence == "proved"


def test_a_bare_number_elsewhere_is_a_number() -> None:
    assert parse("1 q^T", S).shape == (1, "d")
    assert parse("2 q^T", S).shape == parse("q^T 2", S).shape == (1, "d")
    assert parse("q^T 1.0", S).shape == (1, "d")


@pytest.mark.parametrize("text", [r"[1,1,2]\cdot[1,2,0]^T", r"[1,1,2]^T\cdot[1,2,0]", r"(1,1,2)\cdot(1,2,0)"])
def test_a_dot_between_written_lists_is_their_dot_product(text) -> None:
    assert compare("3", text, {}).kind == "equal"


D = {
    "x": "scalar",
    "y": "scalar",
    "u": "vector[n]",
    "v": "vector[n]",
    "A": "matrix[n,n]",
    "f": "scalar = x^2 y",
    "n": "natural",
    "h": "natural",
}


SAME = [
    (
        r"\frac{\partial (x^2)}{\partial x}",
        r"\frac{\partial x^2}{\partial x}",
        r"\frac{\partial}{\partial x} x^2",
        "∂(x²)/∂x",
        "∂x²/∂x",
        "∂/∂x x²",
        r"\frac{d}{dx} x^2",
        r"\frac{d}{d x}\left(x^2\right)",
        r"\frac{\mathrm d}{\mathrm d x} x^2",
        r"\frac{\mathrm{d} x^2}{\mathrm{d}x}",
        r"\frac{d x^2}{dx}",
        "dx^2/dx",
        "d/dx x^2",
    ),
    (r"\frac{\partial f}{\partial x}", r"\frac{df}{dx}", r"\frac{d f}{d x}", r"\partial f/\partial x", "df/dx"),
    (r"\frac{\partial (u^T A u)}{\partial u}", r"\frac{\partial u^TAu}{\partial u}", r"\nabla_u u^TAu", "∇_{u}(uᵀAu)"),
    (r"\frac{\partial (x y)}{\partial x}", r"\frac{\partial xy}{\partial x}", r"\frac{\partial}{\partial x} xy"),
    (
        r"\frac{\partial v}{\partial u}",
        r"\frac{\partial v^T}{\partial u}",
        r"\frac{\partial \mathbf{v}^\top}{\partial \mathbf{u}}",
    ),
    (r"\frac{\partial (2x)}{\partial x}", r"\frac{\partial 2x}{\partial x}", "∂2x/∂x"),
    (r"\frac{\partial (x + y)}{\partial x}", r"\frac{\partial x + y}{\partial x}", r"\frac{dx + y}{dx}"),
    (r"y \frac{\partial x}{\partial x} + y", r"y\,\frac{\partial}{\partial x} x + y"),
    (
        r"\frac{\partial}{\partial x}\frac{\partial}{\partial x} x^3",
        r"\frac{\partial^2 x^3}{\partial x^2}",
        r"\frac{\partial^2}{\partial x^2} x^3",
        r"\frac{d^2}{dx^2} x^3",
        "∂²x³/∂x²",
    ),
    (
        r"\frac{\partial}{\partial y}\frac{\partial f}{\partial x}",
        r"\frac{\partial^2 f}{\partial x \partial y}",
        "∂²f/∂x∂y",
    ),
    (
        r"\frac{\partial}{\partial u}\frac{\partial u^TAu}{\partial u}",
        r"\frac{\partial^2 u^TAu}{\partial u \partial u^T}",
    ),
    (r"\frac{\partial (u \odot x v)}{\partial x}", r"\frac{\partial}{\partial x} u \odot x v"),
]


@pytest.mark.parametrize("texts", SAME, ids=lambda texts: texts[0])
def test_ways_to_write_one_derivative(texts) -> None:
    first, *others = [parse(text, D) for text in texts]
    for text, other in zip(texts[1:], others, strict=True):
        assert other == first, text


def test_values() -> None:
    for gold, answer in [
        (r"\frac{\partial u^TAu}{\partial u}", r"(A + A^T) u"),
        (r"\frac{d^2}{dx^2} x^3", "6x"),
        (r"\frac{\partial^2 f}{\partial x \partial y}", "2x"),
        (r"\frac{\partial^2 u^TAu}{\partial u_1 \partial u_2}", r"A_{12} + A_{21}"),
        (r"\frac{\partial xy}{\partial x}", "y"),
    ]:
        assert compare(gold, answer, {**D, "u": "vector[3]", "A": "matrix[3,3]"}).kind == "equal", gold


@pytest.mark.parametrize(
    "text", [r"\frac{d}{dx} x^2", r"\frac{dy}{dx}", r"\frac{d^2 y}{dx^2}", "dy/dx", r"\frac{df}{du_1}"]
)
def test_a_declared_d_leaves_it_open(text) -> None:
    with pytest.raises(Unreadable, match=r"write .partial for a derivative"):
        parse(text, {**D, "d": "natural"})
    with pytest.raises(Unreadable, match=r"write .partial for a derivative"):
        parse(text, {**D, "w": "vector[d]"})


def test_a_declared_d_over_naturals_or_alone_is_a_number() -> None:
    with_d = {**D, "d": "natural"}
    assert isinstance(parse(r"\frac{dn}{dh}", with_d), Divide)
    for text in (r"\frac{1}{d x}", r"\frac{d}{x}", r"\frac{d \cdot y}{d \cdot x}", r"\frac{d y^2}{d x^2}", "d x/y"):
        assert not isinstance(parse(text, with_d), Derivative), text
    assert parse(r"O(\frac{dn}{dx})", {}) == parse(r"O((d n)/(d x))", {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"\frac{\partial}{\partial x}", "nothing to act on"),
        (r"\frac{\partial}{\partial x} \odot u", "nothing to act on"),
        (r"\frac{\partial f}{\partial x^2}", "the numbers of ∂ above and below differ"),
        (r"\frac{\partial^2 f}{\partial x}", "the numbers of ∂ above and below differ"),
        (r"\frac{\partial^9 f}{\partial x^9}", "up to order 4"),
        (r"\frac{f}{\partial x}", "a derivative is written"),
        (r"\partial x \partial y", "∂ is read only in a derivative"),
        (r"\partial \cdot x/\partial x", "∂ is read only in a derivative"),
        (r"\nabla f", "∇ as ∇_x f"),
        (r"\frac\partial{\partial x}" * 60 + "x", "more than 12 derivatives"),
        ("∂/∂x" * 400 + "x", "more than 12 derivatives"),
        ("d/dx " * 300 + "x", "more than 12 derivatives"),
    ],
)
def test_what_is_no_derivative(text, said) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, D)
    assert said in caught.value.reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"\frac{\partial^2 u^Tu}{\partial u^2}", "name two components"),
        (r"\nabla_x x^2", "∇ is read of a scalar"),
        (r"\nabla_u u", "∇ is read of a scalar"),
        (r"\frac{\partial f}{\partial 2}", "a name or a component"),
    ],
)
def test_derivatives_of_what_has_none(text, said) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, D)
    assert said in caught.value.reason


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("∂²x y/∂x∂y", r"\frac{\partial}{\partial y}\frac{\partial (x y)}{\partial x}"),
        ("∂³x y/∂x²∂y", r"\frac{\partial}{\partial y}\frac{\partial^2 (x y)}{\partial x^2}"),
        ("∂³x y/∂x∂y²", r"\frac{\partial^2}{\partial y^2}\frac{\partial (x y)}{\partial x}"),
        ("d^2 x y / d x d y", r"\frac{\partial^2 (x y)}{\partial x \partial y}"),
        ("∂x·y/∂x", r"\frac{\partial (x y)}{\partial x}"),
        ("∂(x+y)/∂x", r"\frac{\partial (x + y)}{\partial x}"),
        ("∂x/∂x + y", r"\frac{\partial x}{\partial x} + y"),
        ("∂x/∂x y", r"\frac{\partial x}{\partial x} \cdot y"),
        ("x ∂y/∂x", r"x \cdot \frac{\partial y}{\partial x}"),
        ("x/y ∂y/∂x", r"\frac{x}{y} \cdot \frac{\partial y}{\partial x}"),
        ("∂x/y/∂x", r"\frac{\partial (x/y)}{\partial x}"),
        ("∂/∂x x^2 y", r"\frac{\partial (x^2 y)}{\partial x}"),
        ("2 ∂/∂x x^2 y", r"2 \cdot \frac{\partial (x^2 y)}{\partial x}"),
        ("∂/∂x (-x^2)", r"\frac{\partial (-x^2)}{\partial x}"),
        ("∂²/∂x∂y x y", r"\frac{\partial^2 (x y)}{\partial x \partial y}"),
        (r"\frac{\partial^4 x^5}{\partial x^4}", r"\frac{\partial^2}{\partial x^2}\frac{\partial^2 x^5}{\partial x^2}"),
        (r"\frac{\partial{x}}{\partial{x}}", r"\frac{\partial x}{\partial x}"),
        (r"\frac{{\partial x}}{{\partial x}}", r"\frac{\partial x}{\partial x}"),
        (r"\frac{\partial x}{\partial (x)}", r"\frac{\partial x}{\partial x}"),
        (r"\frac{\partial u^T}{\partial v}", r"\frac{\partial u}{\partial v}"),
        (r"\frac{\partial^2 f}{\partial u \partial u^T}", r"\frac{\partial^2 f}{\partial u \partial u}"),
        (r"\frac{\partial^2 f}{\partial u^T \partial u}", r"\frac{\partial^2 f}{\partial u \partial u}"),
        (r"x \nabla_u (u^T u)", r"x \cdot \frac{\partial (u^T u)}{\partial u}"),
        (r"\nabla_{u} f", r"\frac{\partial f}{\partial u}"),
        (r"\nabla_u (f x)", r"\nabla_u f x"),
        (r"\frac{d x}{d u}", r"\frac{\partial x}{\partial u}"),
        (r"\frac{d}{d u_1} f", r"\frac{\partial f}{\partial u_1}"),
        (r"\frac{\mathrm{d}^2 f}{\mathrm{d}x^2}", r"\frac{\partial^2 f}{\partial x^2}"),
        (r"\frac{d x + y}{d x}", r"\frac{\partial (x + y)}{\partial x}"),
        (r"\frac{d x - y}{d x}", r"\frac{\partial (x - y)}{\partial x}"),
    ],
)
def test_by_a_stroke_or_in_a_fraction(text, same) -> None:
    assert parse(text, D) == parse(same, D)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (r"\frac{\partial x}{\partial A}", ("n", "n")),
        (r"\frac{\partial A}{\partial x}", ("n", "n")),
        (r"\frac{\partial u}{\partial v}", ("n", "n")),
        (r"\frac{\partial u^T}{\partial x}", (1, "n")),
        (r"\frac{\partial A_1}{\partial u}", ("n", "n")),
        (r"\frac{\partial f}{\partial u_1}", ()),
        (r"\frac{\partial f}{\partial A_{12}}", ()),
        (r"\frac{\partial u}{\partial x}", ("n",)),
        (r"\nabla_u f", ("n",)),
    ],
)
def test_shapes(text, shape) -> None:
    tree = parse(text, D)
    assert tree.shape == shape
    assert isinstance(tree, Derivative)
    assert tree.span == (0, len(text))


WRITTEN = r"a derivative is written \frac{\partial f}{\partial x}"


ALONE = r"∂ is read only in a derivative, \frac{\partial f}{\partial x_j}, and ∇ as ∇_x f"


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        (r"1 + \frac{\partial}{\partial x}", "this derivative has nothing to act on", r"\frac{\partial}{\partial x}"),
        (r"1 + \partial/\partial x", "this derivative has nothing to act on", r"\partial/\partial x"),
        ("1 + d/dx", "this derivative has nothing to act on", "d/dx"),
        (r"1 + \nabla_u \cdot u", "this derivative has nothing to act on", r"\nabla_u \cdot u"),
        (
            r"1 + \frac{\partial^5 f}{\partial x^5}",
            "derivatives are read up to order 4",
            r"\frac{\partial^5 f}{\partial x^5}",
        ),
        (
            r"1 + \frac{\partial^{10} f}{\partial x^{10}}",
            "derivatives are read up to order 4",
            r"\frac{\partial^{10} f}{\partial x^{10}}",
        ),
        (r"1 + \frac{\partial^{100} f}{\partial x^{100}}", WRITTEN, r"\frac{\partial^{100} f}{\partial x^{100}}"),
        (r"1 + \frac{\partial^n f}{\partial x^n}", WRITTEN, r"\frac{\partial^n f}{\partial x^n}"),
        (r"1 + \frac{x}{\partial x}", WRITTEN, r"\frac{x}{\partial x}"),
        (r"1 + \frac{\partial + x}{\partial x}", WRITTEN, r"\frac{\partial + x}{\partial x}"),
        (r"1 + \frac{\partial \cdot x}{\partial x}", WRITTEN, r"\frac{\partial \cdot x}{\partial x}"),
        (
            r"1 + \frac{\partial^2 f}{\partial x}",
            "the numbers of ∂ above and below differ",
            r"\frac{\partial^2 f}{\partial x}",
        ),
        (
            r"1 + \frac{\partial f}{\partial x \partial y}",
            "the numbers of ∂ above and below differ",
            r"\frac{\partial f}{\partial x \partial y}",
        ),
        ("1 + ∂^2 f/∂x", "the numbers of ∂ above and below differ", "∂^2 f/∂x"),
        (r"1 + \frac{\partial x}{x}", ALONE, r"\partial x"),
        (r"1 + \frac{\partial x}{\partial \cdot x}", ALONE, r"\partial x"),
        (r"1 + \partial x", ALONE, r"\partial x"),
        (r"1 + \partial x / x", ALONE, r"\partial"),
        ("1 + ∂x y/∂x∂y", ALONE, "∂"),
        (r"1 + \nabla_u", ALONE, r"\nabla"),
        (r"1 + \nabla_{u,v} x", ALONE, r"\nabla"),
        (r"1 + \nabla^2 x", ALONE, r"\nabla"),
        (r"1 + \nabla^u x", ALONE, r"\nabla"),
        (r"1 + \partial_u x", ALONE, r"\partial"),
        ("1 + " + "∂/∂x " * 13 + "x", "more than 12 derivatives in one product are not read", "∂/∂x " * 13 + "x"),
    ],
)
def test_derivatives_that_are_not_read(text, reason, place) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, D)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


def test_twelve_derivatives_are_read() -> None:
    assert parse("∂/∂x " * 12 + "x", D).shape == ()
    assert parse(r"\frac{\partial}{\partial x} " * 12 + "x", D) == parse("∂/∂x " * 12 + "x", D)
    assert parse("d/dx " * 6 + "x", D) == parse("∂/∂x " * 6 + "x", D)


BY = "a derivative is taken with respect to a name or a component of one"


OF_A_SCALAR = "∇ is read of a scalar, with the vector below that it is taken by"


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        (
            r"1 + \frac{\partial A}{\partial u}",
            "this derivative has more than two axes: take that of a component",
            r"\frac{\partial A}{\partial u}",
        ),
        (
            r"1 + \frac{\partial u}{\partial A}",
            "this derivative has more than two axes: take that of a component",
            r"\frac{\partial u}{\partial A}",
        ),
        (
            r"1 + \frac{\partial^2 f}{\partial u^2}",
            "a second derivative is taken by scalars: name two components",
            "u^2",
        ),
        (r"1 + \frac{\partial x}{\partial (u + v)}", BY, "(u + v)"),
        (r"1 + \frac{\partial x}{\partial 2}", BY, "2"),
        (r"1 + \frac{\partial x}{\partial u^T}", BY, "u^T"),
        (r"1 + \nabla_{-u} f", BY, "-u"),
        (r"1 + \nabla_x x", OF_A_SCALAR, r"\nabla_x x"),
        (r"1 + \nabla_u u", OF_A_SCALAR, r"\nabla_u u"),
        (r"1 + \nabla_{u_1} x", OF_A_SCALAR, r"\nabla_{u_1} x"),
        (r"1 + \nabla_A x", OF_A_SCALAR, r"\nabla_A x"),
        ("1 + d x y / d x d y", "d is not declared; x, y, u, v, A, f, n, h are", "d"),
        (r"1 + \frac{d x}{y}", "d is not declared; x, y, u, v, A, f, n, h are", "d"),
        (r"1 + \frac{d + x}{d x}", "d is not declared; x, y, u, v, A, f, n, h are", "d"),
    ],
)
def test_derivatives_that_make_no_sense(text, reason, place) -> None:
    with pytest.raises(Unreadable if "not declared" in reason else IllTyped) as caught:
        parse(text, D)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


def test_a_declared_d_is_told_apart_by_what_it_stands_before() -> None:
    with_d = {**D, "d": "natural"}
    with pytest.raises(Unreadable) as caught:
        parse(r"1 + \frac{dy}{dx}", with_d)
    said = r"d is declared, so that this is a quotient or a derivative: write \partial for a derivative, and d \cdot x"
    assert caught.value.reason == f"{said} for a product"
    assert r"1 + \frac{dy}{dx}"[slice(*caught.value.span)] == r"\frac{dy}{dx}"
    with pytest.raises(Unreadable) as caught:
        parse(r"\frac{d f}{d u_1}", with_d)
    assert r"and d \cdot u for a product" in caught.value.reason


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{\partial y}{\partial x^0}",
        r"\frac{\partial^0 y}{\partial x^0}",
        r"\frac{\partial^0 y}{\partial x}",
        r"\frac{\partial y}{\partial x \partial y^0}",
        "∂y/∂x^0",
    ],
)
def test_a_derivative_that_is_taken_no_times_is_refused(text) -> None:
    with pytest.raises(Unreadable, match="a derivative is taken once or more, not 0 times"):
        parse(text, D)
    with pytest.raises(Unreadable, match="d is not declared"):
        parse(r"\frac{d y}{d x^0}", {"x": "scalar", "y": "scalar"})
