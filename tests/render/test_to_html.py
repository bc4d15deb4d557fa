"""MathML of each node, and valid pages."""

from xml.etree import ElementTree

import pytest

from qkv.maths import tree as t
from qkv.render import mathml

ARITY = {"msup": 2, "msub": 2, "msubsup": 3, "mfrac": 2, "munder": 2, "munderover": 3, "math": 1}
LEAVES = {"mi", "mn", "mo"}
CORE = {*ARITY, *LEAVES, "mrow", "msqrt", "mtable", "mtr", "mtd"}


def test_every_element_is_of_mathml_core_and_has_its_children(samples):
    for name, node in samples.items():
        for each in ElementTree.fromstring(mathml(node)).iter():
            assert each.tag in CORE, name
            assert len(each) == ARITY.get(each.tag, len(each)), name
            if each.tag in LEAVES:
                assert each.text, name
                assert not len(each), name
            else:
                assert len(each), name
                assert not each.text, name


def test_parentheses_stand_at_the_ends_of_their_row(samples):
    """Browsers stretch a fence, and tell an opening bar from a closing one, by its place in the row."""
    for node in samples.values():
        for row in ElementTree.fromstring(mathml(node)).iter("mrow"):
            fences = [place for place, each in enumerate(row) if each.get("fence")]
            assert fences in ([], [0, 2])
            assert not fences or [row[n].get("form") for n in fences] == ["prefix", "postfix"]


def said(node):
    return "".join(ElementTree.fromstring(mathml(node)).itertext()).replace("\u2062", "").replace("\u2061", "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dot", "μ⊤μ"),
        ("mean", "𝔼[q⊤k]"),
        ("variance", "Var(q⊤k)"),
        ("moments", "dσ4+2σ2μ⊤μ"),
        ("difference", "d−σ−3−12d"),
        ("negative", "−(d+n)"),
        ("scaled vector", "(μ⊤μ)q"),
        ("two products", "(μ⊤μ)(q⊤k)"),
        ("sum then factor", "(∑i=1dμi)d"),
        ("factor then sum", "d∑i=1dμi"),
        ("sum in a product", "q⊤(dA)k"),
        ("pairs", "∑i<jμiμj"),
        ("unequal", "∑i≠jμiμj"),
        ("double", "∑i,jμiμj"),
        ("product", "∏i=1d(μi+1)"),
        ("until", "∑i=1n+1d"),
        ("inverse", "(A−1)⊤"),
        ("hadamard", "μ⊙(q⊙k)"),
        ("numbers", "2·3·2d"),
        ("power of a fraction", "(d2)2"),
        ("power of a negative", "(−2)2"),
        ("derivative of a product", "∂∂σ(dσ)"),
        ("decimal", "0.250"),
        ("small", "6.90×10−13"),
        ("large", "1.5×107"),
        ("rounded", "≈0.25"),
        ("chain", "μ⊤μ≤d≈0.25"),
        ("either", "d±d"),
        ("powers", "μq2+(x′)2"),
        ("names", "dmodel+x′+(μq)i"),
        ("row", "Qi·"),
        ("column", "Q·j"),
        ("first", "Q1,j"),
        ("vector", "(1,−4,32)"),
    ],
)
def test_parentheses_are_where_reading_needs_them(samples, name, text):
    assert said(samples[name]) == text


def test_names_are_escaped():
    hostile = t.Symbol((), "<mi>&", t.Type("scalar"))
    assert said(hostile) == "<mi>&"
    assert mathml(hostile, block=True).startswith('<math display="block">')
