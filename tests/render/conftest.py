"""Trees with every kind of node, built by hand, so that tests of rendering do not depend on the parser."""

from fractions import Fraction

import pytest

from qkv.maths import tree as t

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]><!--",
    "&lt; &amp; &#x3c;",
    r"\input{/etc/passwd} \end{document} \write18{x}",
    "100% $x$ #1 a_b ^ ~ {unbalanced",
    "unbalanced} \\",
    '#eval("1") #import "x" $ sum $ @ref <label> *b* _i_ `raw` = h',
    "] #panic() [",
    "; ) ] }",
    "| a | b | \\| c",
    "# title",
    "- item",
    "1. item",
    "1) item",
    "+ item",
    "=====",
    "> quote",
    "![x](javascript:alert(1)) [y](z) <http://x.y> https://x.y",
    "``` code ` fence ``",
    "**strong** __strong__ ~~gone~~",
    "[bold red]markup[/] [/] \\[x]",
    "a\x1b[31mred\x07\x00\x9b",
    "right\u202eleft\u2066",
    "line\nbreak\n\n\nparagraph\ttab",
    "lone \ud800 surrogate",
    "- {} - -- --- '' `` \"",
    "μᵀμ ≤ ‖μ‖² √d 漢字 🙂 é",
    " leading and trailing ",
    "\\",
    "`",
    "$",
    "$$",
    "&",
    "~",
)


def scalar(name):
    return t.Symbol((), name, t.Type("scalar"))


def vector(name, size):
    return t.Symbol((size,), name, t.Type("vector", (size,)))


def matrix(name, *shape):
    return t.Symbol(shape, name, t.Type("matrix", shape))


def number(value, unit=None, rounded=False):
    return t.Number((), Fraction(value), None if unit is None else Fraction(unit), rounded)


def flipped(node):
    return t.Transpose((1, *node.shape) if len(node.shape) == 1 else node.shape[::-1], node)


def dot(left, right):
    return t.Contract((), flipped(left), right)


def times(*factors):
    shape = next((factor.shape for factor in factors if factor.shape), ())
    return t.Multiply(shape, factors)


def plus(*terms):
    return t.Add(terms[0].shape, terms)


def trees():
    d, n, sigma, gamma = map(scalar, ("d", "n", "sigma", "gamma"))
    mu, q, k, a, s = vector("mu", "d"), vector("q", "d"), vector("k", "d"), vector("a", "n"), vector("s", "n")
    Q, K, V, A = matrix("Q", "n", "d"), matrix("K", "n", "d"), matrix("V", "n", "d"), matrix("A", "d", "d")
    i, j = t.Index((), "i", "d"), t.Index((), "j", "d")
    mu_i, mu_j = t.Part((), mu, (i,)), t.Part((), mu, (j,))
    two, minus = number(2), number(-1)
    root = t.Call((), "sqrt", (d,))
    scores = t.Contract(("n", "n"), Q, flipped(K))
    return {
        "dot": dot(mu, mu),
        "mean": t.Expect((), dot(q, k)),
        "variance": t.Covariance((), dot(q, k), dot(q, k)),
        "covariance": t.Covariance(("d", "d"), q, k),
        "squares": t.Sum((), (i,), t.Power((), mu_i, two)),
        "pairs": t.Sum((), (i, j), times(mu_i, mu_j), (("<", i, j),)),
        "unequal": t.Sum((), (i, j), times(mu_i, mu_j), (("!=", i, j),)),
        "double": t.Sum((), (i, j), times(mu_i, mu_j)),
        "product": t.Sum((), (i,), plus(mu_i, number(1)), product=True),
        "until": t.Sum((), (t.Index((), "i", "n+1"),), d),
        "moments": plus(times(d, t.Power((), sigma, number(4))), times(two, t.Power((), sigma, two), dot(mu, mu))),
        "difference": plus(d, times(minus, sigma), number(-3), times(number("-1/2"), d)),
        "negative": times(minus, plus(d, n)),
        "attention": t.Contract(("n", "d"), t.Call(("n", "n"), "softmax", (t.Divide(("n", "n"), scores, root),)), V),
        "norm": t.Power((), t.Call((), "norm", (mu,)), two),
        "norms": plus(t.Call((), "norm1", (mu,)), t.Call((), "norm_inf", (mu,)), t.Call((), "norm_F", (Q,))),
        "inverse": flipped(t.Power(("d", "d"), A, minus)),
        "jacobian": plus(t.Call(("n", "n"), "diag", (a,)), times(minus, t.Outer(("n", "n"), a, a))),
        "derivative": t.Derivative((), t.Part((), a, (i,)), t.Part((), s, (j,))),
        "derivative of a product": t.Derivative((), times(d, sigma), sigma),
        "vector": t.Written((3,), (number(1), number(-4), number("3/2"))),
        "matrix": t.Written((2, 3), tuple(map(number, range(6)))),
        "decimal": number("0.250", "0.001"),
        "small": number("6.90e-13", "1e-15"),
        "large": number("1.5e7", "1e6"),
        "rounded": number("0.25", "0.01", True),
        "order": t.Order((), "Theta", times(t.Power((), n, two), d)),
        "two values": t.PlusMinus((), root),
        "either": plus(d, t.PlusMinus((), root)),
        "chain": t.Relation((), (dot(mu, mu), d, number("0.25", "0.01", True)), ("<=", "≈")),
        "names": plus(scalar("d_model"), scalar("x'"), t.Part((), vector("mu_q", "d"), (i,))),
        "powers": plus(t.Power((), scalar("mu_q"), two), t.Power((), scalar("x'"), two)),
        "entry": t.Part((), scores, (i, j)),
        "row": t.Part((1, "d"), Q, (i, None)),
        "column": t.Part(("n",), Q, (None, j)),
        "first": t.Part((), Q, (number(1), j)),
        "ones": t.Contract((), flipped(t.Special(("d",), "ones")), mu),
        "specials": plus(times(two, t.Special(("d", "d"), "identity")), t.Special(("d", "d"), "ones")),
        "zeros": t.Special(("d",), "zeros"),
        "sum then factor": times(t.Sum((), (i,), mu_i), d),
        "factor then sum": times(d, t.Sum((), (i,), mu_i)),
        "sum in a product": t.Contract((), t.Contract((1, "d"), flipped(q), times(d, A)), k),
        "weights": t.Divide((), t.Call((), "exp", (mu_i,)), t.Sum((), (j,), t.Call((), "exp", (mu_j,)))),
        "largest": t.Call((), "max", (n, d)),
        "size": t.Call((), "abs", (gamma,)),
        "hadamard": t.Hadamard(("d",), mu, t.Hadamard(("d",), q, k)),
        "map": t.Call((), "sim", (q, k), t.Symbol((), "sim", t.Type("map", (), arguments=(("d",), ("d",))))),
        "numbers": times(two, number(3), t.Power((), two, d)),
        "delta": t.Delta((), i, j),
        "constants": plus(times(two, t.Constant((), "pi")), t.Power((), t.Constant((), "e"), times(minus, d))),
        "infinity": t.Constant((), "infinity"),
        "power of a fraction": t.Power((), t.Divide((), d, two), two),
        "power of a negative": t.Power((), number(-2), two),
        "scaled vector": times(dot(mu, mu), q),
        "two products": times(dot(mu, mu), dot(q, k)),
        "trace": t.Call((), "trace", (A,)),
    }


@pytest.fixture(scope="session")
def samples():
    return trees()


@pytest.fixture(scope="session")
def all_hostile():
    return HOSTILE


@pytest.fixture(params=HOSTILE, ids=range(len(HOSTILE)))
def hostile(request):
    return request.param
