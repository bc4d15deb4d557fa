"""The replayer: it accepts the certificates of the prover, refuses changed ones, and accepts nothing false."""

import random

import pytest

from qkv.maths.certificate import prove, steps_of
from qkv.maths.comparison.trial import differ
from qkv.maths.parsing.parse import parse
from qkv.maths.replay import Refused, replay
from qkv.maths.symmetry import declared_symmetric
from qkv.maths.tree import Certificate, Step
from qkv.maths.types import declare
from tests.helpers.certificates import mutations

NAMES = {
    "A": "matrix[d,d]",
    "B": "matrix[d,d]",
    "C": "matrix[k,k]",
    "U": "matrix[d,k]",
    "V": "matrix[k,d]",
    "K": "matrix[n,d]",
    "u": "vector[d]",
    "v": "vector[d]",
    "w": "vector[d]",
    "s": "vector[n]",
    "a": "vector[n] = softmax(s)",
    "q": "random vector[d] ~ N(mu, S)",
    "z": "random vector[d] ~ N(0, I)",
    "p": "random vector[d] ~ (mu, S)",
    "mu": "vector[d]",
    "S": "matrix[d,d]",
    "x": "scalar",
    "y": "scalar",
    "n": "natural",
    "r": "random scalar ~ N(0, 1)",
    "sigma": "positive",
    "lambda": "positive",
    "phi": "map vector[d] -> vector[f]",
}
TRUE = [
    (r"\mu^T\mu", r"\|\mu\|^2"),
    (r"\|u-v\|^2", r"\|u\|^2 + \|v\|^2 - 2 u^T v"),
    (r"\operatorname{tr}(A B)", r"\operatorname{tr}(B A)"),
    (r"(A+UCV)^{-1}", r"A^{-1} - A^{-1}U(C^{-1}+VA^{-1}U)^{-1}VA^{-1}"),
    (r"(A+uv^T)^{-1}", r"A^{-1} - \frac{A^{-1}uv^TA^{-1}}{1+v^TA^{-1}u}"),
    (r"(K^TK+\lambda I)^{-1}K^T", r"K^T(KK^T+\lambda I)^{-1}"),
    (r"(AB)^{-1}", r"B^{-1}A^{-1}"),
    (r"\sum_{i=1}^n a_i", "1"),
    (r"\log x^2", r"2\log|x|"),
    (r"\sqrt{x^3}", r"x\sqrt{x}"),
    (r"\log\sum_{i=1}^n e^{s_i}", r"s_1 + \log\sum_{i=1}^n e^{s_i - s_1}"),
    (r"E[q^T q]", r"\mu^T\mu + \operatorname{tr}(S)"),
    (r"Var(w^T q)", r"w^T S w"),
    (r"E[e^{w^T z}]", r"e^{\|w\|^2/2}"),
    (r"E[e^{w^T q}]", r"e^{w^T\mu + w^T S w/2}"),
    (r"\sum_{i=1}^d \sum_{j=1}^{d} u_i u_j", r"(\sum_{i=1}^d u_i)^2"),
    (r"\sum_{1 \le i < j \le d} u_i u_j", r"\frac{1}{2}((\sum_{i=1}^d u_i)^2 - \|u\|^2)"),
    (r"\phi(u)^T\phi(v)", r"\phi(v)^T\phi(u)"),
    (r"\max(x, y)", r"\frac{1}{2}(x + y + |x - y|)"),
]
FALSE = [
    (r"\mu^T\mu", r"\|\mu\|"),
    (r"A B", r"B A"),
    (r"(A+B)^{-1}", r"A^{-1} + B^{-1}"),
    (r"(u v^T)^{-1} u v^T", "I"),
    (r"x^2/x", "x"),
    (r"\sqrt{x^2}", "x"),
    (r"\sqrt{|x|}", r"\sqrt{x}"),
    (r"(x^2)^{1/4}", r"\sqrt{x}"),
    (r"\log x^2", r"2\log x"),
    (r"e^{\frac{1}{2}\log x^2}", r"\frac{x^3}{x^2}"),
    (r"\sum_{i=1}^n \delta_{i2}", "1"),
    (r"\sum_{i=1}^{n-2} 1", "n - 2"),
    (r"E[(w^T p)^3]", r"3 (w^T\mu)(w^T S w) + (w^T\mu)^3"),
    (r"E[e^{w^T p}]", r"e^{w^T\mu + w^T S w/2}"),
    (r"x^0 \cdot \frac{y}{y}", "1"),
    # Bound variables of two sums, one inside a function of the other.
    (r"\sum_{i=1}^d \exp(\sum_{k=1}^d A_{ik})", r"\sum_{i=1}^d \exp(\sum_{k=1}^d A_{ki})"),
    (r"\sum_{i=1}^d \frac{1}{1 + e^{\sum_{k=1}^d A_{ik}}}", r"\sum_{i=1}^d \frac{1}{1 + e^{\sum_{k=1}^d A_{ki}}}"),
    # Hypotheses that are stronger than what a root, a power, a derivative or an expectation needs.
    (r"\sqrt{x^{2/3}} |x|", r"\sqrt{x^{2/3}} x"),
    (r"x^{-n} |x|", "x^{-n} x"),
    (r"x^{1/n} |x|", "x^{1/n} x"),
    (r"x^y |x|", "x^y x"),
    (r"x^y", "x^y x/x"),
    (r"|x| \frac{\partial}{\partial x} x^{4/3}", r"x \frac{\partial}{\partial x} x^{4/3}"),
    (r"|y| \frac{\partial}{\partial x} (x y^{1/3})", r"y \frac{\partial}{\partial x} (x y^{1/3})"),
    (r"\frac{\partial}{\partial x} (x \sqrt{y})", r"\frac{y}{y} \frac{\partial}{\partial x} (x \sqrt{y})"),
    (r"\sqrt{r} + E[|r|]", r"\sqrt{r} + E[r]"),
    (r"0 \log x", r"0 E[\log r]"),
    (r"0 E[e^{r^2}]", "0"),
    (r"0 E[e^{w^T p}]", "0"),
    (r"\log(x^{2/3})", r"\log(x^{2/3}) \frac{\sqrt{x}^2}{x}"),
    # Needs under a sum that may be empty or has conditions, and at kinks.
    (r"\sum_{i=1}^{n-2} \frac{1}{x}", r"\frac{1}{x} \sum_{i=1}^{n-2} 1"),
    (r"\sqrt{x - y} + \frac{\partial}{\partial x} \max(x, y)^2", r"\sqrt{x - y} + 2 x"),
    (r"\sqrt{x} + \frac{\partial}{\partial x}\frac{\partial}{\partial x} relu(x)^2", r"2 + \sqrt{x}"),
    (r"0 \cdot u^T ((u v^T)^2)^{-1} u", "0"),
    (r"0 \cdot \tan(x)", r"0 \cdot \tan(2x)"),
    (r"|x| \tan(x)", r"x \tan(x)"),
    (r"E[z_1 z_2]", "0"),
]


def trees(gold: str, answer: str):
    first = parse(gold, NAMES)
    return first, parse(answer, NAMES, expected=first.shape)


def certificate_of(gold: str, answer: str, *, turned: bool = False) -> Certificate | None:
    first, second = trees(gold, answer)
    with declared_symmetric(declare(NAMES).types.values()):
        return prove(second, first) if turned else prove(first, second)


@pytest.mark.parametrize(("gold", "answer"), TRUE)
def test_true_claims_have_certificates_that_replay_in_both_orders(gold: str, answer: str) -> None:
    for turned in (False, True):
        found = certificate_of(gold, answer, turned=turned)
        assert found is not None
        replay(found)


@pytest.mark.parametrize(("gold", "answer"), FALSE)
def test_false_claims_have_none(gold: str, answer: str) -> None:
    assert certificate_of(gold, answer) is None
    assert certificate_of(gold, answer, turned=True) is None


@pytest.mark.parametrize(("gold", "answer"), TRUE)
def test_changed_certificates_are_refused(gold: str, answer: str) -> None:
    found = certificate_of(gold, answer)
    assert found is not None
    for changed in mutations(found, random.Random(len(gold)), 12):
        claim = (changed.gold, changed.answer)
        if claim == (found.gold, found.answer) or differ(*claim):
            with pytest.raises(Refused):
                replay(changed)


def test_steps_that_do_not_fit_are_refused() -> None:
    first, second = trees(r"\|u\|^2", r"u^T u")
    fitting = Step("gold", "definition", (0,))
    replay(Certificate(first, second, (fitting,)))
    wrong = [(), (fitting, fitting), (Step("gold", "exponential", (0,)),), (Step("gold", "definition", (1,)),)]
    wrong += [(fitting, Step("answer", "definition", (0,))), (Step("both", "definition", (0,)),)]
    for steps in wrong:
        with pytest.raises(Refused):
            replay(Certificate(first, second, steps))


def test_the_replayer_shares_only_the_tree() -> None:
    import ast
    import inspect

    from qkv.maths import replay as rules
    from qkv.maths import terms

    found = set()
    for module in (terms, rules):
        code = ast.parse(inspect.getsource(module))
        imported = {node.module for node in ast.walk(code) if isinstance(node, ast.ImportFrom)}
        found |= {name for name in imported if name and name.startswith("qkv")}
    assert found == {"qkv.maths", "qkv.maths.terms", "qkv.maths.tree"}


@pytest.mark.parametrize("text", ["(\\sqrt{2})^{2000}", "((2^{999})^{999})^{999}", "E[r^{1000}]"])
def test_large_powers_are_refused_at_once(text: str) -> None:
    first, second = trees(text, f"{text} + 0")
    with pytest.raises(Refused):
        replay(Certificate(first, second, tuple(steps_of("gold", first)) + tuple(steps_of("answer", second))))


def test_work_is_bounded() -> None:
    text = "(x + y + u_1)^{11} (x - v_1)^{11} (x + 2 w_1)^{11}"
    first, second = trees(text, f"{text} + 0")
    with pytest.raises(Refused, match="too much work"):
        replay(Certificate(first, second, ()))


def test_certificates_name_rules_and_places() -> None:
    found = certificate_of(r"\sum_{i=1}^n a_i", "1")
    assert found is not None
    assert [(step.side, step.rule, step.place) for step in found.steps] == [
        ("gold", "definition", (0, 1)),
        ("gold", "definition", (0, 1, 0)),
    ]
