"""The ways in which people write derivatives."""

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.reading import parse
from qkv.maths.tree import Derivative, Divide
from qkv.maths.verdict import compare

S = {
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
    first, *others = [parse(text, S) for text in texts]
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
        assert compare(gold, answer, {**S, "u": "vector[3]", "A": "matrix[3,3]"}).kind == "equal", gold


@pytest.mark.parametrize(
    "text", [r"\frac{d}{dx} x^2", r"\frac{dy}{dx}", r"\frac{d^2 y}{dx^2}", "dy/dx", r"\frac{df}{du_1}"]
)
def test_a_declared_d_leaves_it_open(text) -> None:
    with pytest.raises(Unreadable, match=r"write .partial for a derivative"):
        parse(text, {**S, "d": "natural"})
    with pytest.raises(Unreadable, match=r"write .partial for a derivative"):
        parse(text, {**S, "w": "vector[d]"})


def test_a_declared_d_over_naturals_or_alone_is_a_number() -> None:
    with_d = {**S, "d": "natural"}
    assert isinstance(parse(r"\frac{dn}{dh}", with_d), Divide)
    for text in (r"\frac{1}{d x}", r"\frac{d}{x}", r"\frac{d \cdot y}{d \cdot x}", r"\frac{d y^2}{d x^2}", "d x/y"):
        assert not isinstance(parse(text, with_d), Derivative), text
    assert parse(r"O(\frac{dn}{dx})", {}) == parse(r"O((d n)/(d x))", {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"\frac{\partial}{\partial x}", "nothing to act on"),
        (r"\frac{\partial}{\partial x} \odot u", "nothing to act on"),
        (r"\frac{\partial f}{\partial x^2}", "not as many"),
        (r"\frac{\partial^2 f}{\partial x}", "not as many"),
        (r"\frac{\partial^9 f}{\partial x^9}", "up to order 4"),
        (r"\frac{f}{\partial x}", "a derivative is written"),
        (r"\partial x \partial y", "∂ stands only in a derivative"),
        (r"\partial \cdot x/\partial x", "∂ stands only in a derivative"),
        (r"\nabla f", "∇ as ∇_x f"),
        (r"\frac\partial{\partial x}" * 60 + "x", "more than 12 derivatives"),
        ("∂/∂x" * 400 + "x", "more than 12 derivatives"),
        ("d/dx " * 300 + "x", "more than 12 derivatives"),
    ],
)
def test_what_is_no_derivative(text, said) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, S)
    assert said in caught.value.reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"\frac{\partial^2 u^Tu}{\partial u^2}", "name two components"),
        (r"\nabla_x x^2", "∇ is read of a scalar"),
        (r"\nabla_u u", "∇ is read of a scalar"),
        (r"\frac{\partial f}{\partial 2}", "a name or a component"),
        (r"d u^2", "d is not declared"),
        (r"\frac{d}{x}", "d is not declared"),
    ],
)
def test_derivatives_of_what_has_none(text, said) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, S)
    assert said in caught.value.reason
