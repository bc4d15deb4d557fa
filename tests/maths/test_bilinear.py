"""What is read as a bilinear form, from trees built by hand."""

import pytest

from qkv.errors import OptionError
from qkv.maths.moments import DEEPEST, form_of, number, random_symbols
from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Divide,
    Expect,
    Index,
    Law,
    Multiply,
    Part,
    Special,
    Sum,
    Symbol,
    Transpose,
    Type,
)

ZERO, IDENTITY = Special(("d",), "zeros"), Special(("d", "d"), "identity")
LAW = Law(ZERO, IDENTITY, True)
Q, K = (Symbol(("d",), name, Type("vector", ("d",), LAW)) for name in "qk")
A = Symbol(("d", "d"), "A", Type("matrix", ("d", "d")))
B = Symbol(("d",), "b", Type("vector", ("d",)))


def row(node):
    return Transpose((1, *node.shape), node)


def dotted(left, right):
    return Contract((), row(left), right)


def test_names_come_in_reading_order_and_means_are_sure():
    assert list(random_symbols(Add((), (dotted(K, B), dotted(Q, K))))) == ["k", "q"]
    assert random_symbols(dotted(Expect(("d",), Q), B)) == {}


def test_parts_of_a_form():
    middle = Contract((), Contract((1, "d"), row(Q), A), K)
    form = form_of(Add((), (middle, Multiply((), (number(3), dotted(B, Q))), number(5))), "")
    assert form.pairs == {("q", "k"): A}
    assert form.linear == {"q": Multiply(("d",), (number(3), B))}
    assert form.constant == number(5)


def test_the_other_order_is_the_transpose():
    form = form_of(Add((), (dotted(Q, K), Contract((), Contract((1, "d"), row(K), A), Q))), "")
    assert form.pairs == {("q", "k"): Add(("d", "d"), (IDENTITY, Transpose(("d", "d"), A)))}


def test_what_cancels_is_gone():
    form = form_of(Add((), (dotted(Q, K), Multiply((), (number(-1), dotted(K, Q))))), "")
    assert form.pairs == {}


def test_squares_are_refused():
    with pytest.raises(OptionError, match="multiplied by itself"):
        form_of(dotted(Q, Q), "q^T q")


C = Symbol((), "c", Type("scalar"))
X, Y = (Symbol((), name, Type("scalar", (), Law(number(0), number(1), True))) for name in "xy")


def parts(node):
    form = form_of(node, "")
    return form.constant, form.linear, form.pairs


def test_a_sum_of_entries_is_a_product_with_ones():
    assert parts(Call((), "sum", (Q,))) == (number(0), {"q": Special(("d",), "ones")}, {})
    shifted = Call((), "sum", (Add(("d",), (Q, B)),))
    assert form_of(shifted, "").constant == Contract((), row(Special(("d",), "ones")), B)
    assert form_of(shifted, "").linear == {"q": Special(("d",), "ones")}


def test_terms_of_one_name_are_added():
    twice = dotted(B, Add(("d",), (Q, Contract(("d",), A, Q))))
    assert parts(twice)[1] == {"q": Contract(("d",), Transpose(("d", "d"), Add(("d", "d"), (IDENTITY, A))), B)}
    apart = Add((), (dotted(B, Q), dotted(Contract(("d",), A, B), Q)))
    assert parts(apart)[1] == {"q": Add(("d",), (B, Contract(("d",), A, B)))}
    assert parts(Add((), (dotted(B, Q), Multiply((), (number(-1), dotted(B, Q))))))[1] == {}


def test_quotients_by_what_is_sure():
    share = Multiply(("d",), (Divide((), number(1), C), B))
    assert parts(Divide((), dotted(B, Q), C))[1] == {"q": share}
    assert parts(dotted(B, Divide(("d",), Q, C)))[1] == {"q": share}
    with pytest.raises(OptionError, match="x stands in something that is not linear in it"):
        form_of(Divide((), C, X), "c/x")
    with pytest.raises(OptionError, match="q, x stands in something that is not linear in it"):
        form_of(dotted(B, Divide(("d",), Q, X)), "b^T q/x")


def test_random_scalars():
    assert parts(X) == (number(0), {"x": number(1)}, {})
    assert parts(Multiply((), (number(3), X, C))) == (number(0), {"x": Multiply((), (number(3), C))}, {})
    assert parts(Multiply((), (X, Y)))[2] == {("x", "y"): number(1)}
    assert parts(Multiply((), (Y, X)))[2] == {("y", "x"): number(1)}
    assert parts(Multiply((), (X, Add((), (Y, C))))) == (number(0), {"x": C}, {("x", "y"): number(1)})
    assert parts(Multiply((), (X, dotted(B, Q))))[2] == {("x", "q"): B}
    assert parts(dotted(B, Multiply(("d",), (X, B))))[1] == {"x": dotted(B, B)}
    assert parts(dotted(Q, Multiply(("d",), (X, B))))[2] == {("q", "x"): B}
    assert parts(dotted(Multiply(("d",), (X, B)), Multiply(("d",), (Y, B))))[2] == {("x", "y"): dotted(B, B)}
    assert parts(dotted(Multiply(("d",), (C, X, B)), B))[1] == {"x": Multiply((), (C, dotted(B, B)))}
    shifted = dotted(B, Multiply(("d",), (Add((), (X, C)), B)))
    assert parts(shifted) == (Multiply((), (C, dotted(B, B))), {"x": dotted(B, B)}, {})


def test_rows_and_sums_over_an_index():
    left = Contract((), Contract((1, "d"), row(Q), A), B)
    assert parts(left)[1] == {"q": Contract(("d",), A, B)}
    i = Index((), "i", "d")

    def at(node):
        return Part((), node, (i,))

    assert parts(Sum((), (i,), Multiply((), (at(Q), at(B)))))[1] == {"q": B}
    assert parts(Sum((), (i,), at(Q)))[1] == {"q": Special(("d",), "ones")}
    assert parts(Sum((), (i,), Multiply((), (C, at(Q), at(K)))))[2] == {("q", "k"): Multiply(("d", "d"), (C, IDENTITY))}
    for body in (
        Multiply((), (at(Q), at(B), at(B))),
        Multiply((), (at(Q), i)),
        Multiply((), (X, C)),
        Multiply((), (at(Q), Part((), A, (i, i)))),
    ):
        with pytest.raises(OptionError, match="the sum over i is no dot product"):
            form_of(Sum((), (i,), body), "")
    for other in (Sum((), (i,), at(Q), product=True), Sum((), (i,), at(Q), (("<", i, number(2)),))):
        with pytest.raises(OptionError, match="not linear"):
            form_of(other, "")


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (Multiply((), (X, Y, X)), "three random things or more"),
        (Multiply((), (dotted(Q, K), X)), "three random things or more"),
        (Multiply((), (X, dotted(Q, K))), "three random things or more"),
        (Multiply((), (dotted(Q, K), dotted(Q, K))), "three random things or more"),
        (Multiply((), (X, X)), "x is multiplied by itself"),
        (dotted(Q, Multiply(("d",), (X, K))), "a vector is multiplied by more than one random thing"),
        (dotted(B, Multiply(("d",), (X, Y, B))), "a vector is multiplied by more than one random thing"),
        (dotted(B, Multiply(("d",), (dotted(B, Q), B))), "a vector is multiplied by more than one random thing"),
        (Call((), "exp", (X,)), "x stands in something that is not linear in it"),
        (dotted(B, Call(("d",), "exp", (Q,))), "q stands in something that is not linear in it"),
    ],
)
def test_what_is_no_such_form_is_refused(node, why):
    with pytest.raises(OptionError, match=why):
        form_of(node, "the text")


def test_refusals_name_the_text_and_the_shape():
    with pytest.raises(OptionError, match=r"expression.*the text"):
        form_of(Multiply((), (X, X)), "the text")
    with pytest.raises(OptionError, match="a scalar"):
        form_of(Q, "q")


def test_depth_and_the_number_of_terms_are_limited():
    names = [Symbol((), f"x{k}", X.type) for k in range(201)]
    assert len(form_of(Add((), tuple(names[:200])), "").linear) == 200
    with pytest.raises(OptionError, match="more than 200 terms"):
        form_of(Add((), tuple(names)), "")

    def nested(node, depth):
        for _ in range(depth):
            node = Add(node.shape, (node,))
        return node

    assert form_of(nested(X, DEEPEST), "").linear == {"x": number(1)}
    with pytest.raises(OptionError, match="nested too deeply"):
        form_of(nested(X, DEEPEST + 1), "")
    assert form_of(dotted(B, nested(Q, DEEPEST - 1)), "").linear == {"q": B}
    with pytest.raises(OptionError, match="nested too deeply"):
        form_of(dotted(B, nested(Q, DEEPEST)), "")


def test_what_is_zero_is_left_out():
    form = form_of(Add((), (dotted(Q, K), dotted(ZERO, Q))), "")
    assert form.linear == {}
    assert form_of(Multiply((), (number(0), X)), "").linear == {}
    assert list(form.names) == ["q", "k"]
