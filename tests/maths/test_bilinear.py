"""What is read as a bilinear form, from trees built by hand."""

import pytest

from qkv.errors import OptionError
from qkv.maths.bilinear import form_of, randoms
from qkv.maths.combining import number
from qkv.maths.tree import Add, Contract, Expect, Law, Multiply, Special, Symbol, Transpose, Type

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
    assert list(randoms(Add((), (dotted(K, B), dotted(Q, K))))) == ["k", "q"]
    assert randoms(dotted(Expect(("d",), Q), B)) == {}


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
