"""Every word and sign that is read, compared with another way to write the same."""

import pytest

from qkv.errors import QkvError, Unreadable
from qkv.maths import parse
from qkv.maths.tree import Call

LETTERS = [
    "alpha",
    "α",
    "beta",
    "β",
    "gamma",
    "γ",
    "delta",
    "δ",
    "epsilon",
    "ε",
    "zeta",
    "ζ",
    "eta",
    "η",
    "theta",
    "θ",
    "iota",
    "ι",
    "kappa",
    "κ",
    "lambda",
    "λ",
    "mu",
    "μ",
    "nu",
    "ν",
    "xi",
    "ξ",
    "pi",
    "π",
    "rho",
    "ρ",
    "sigma",
    "σ",
    "tau",
    "τ",
    "upsilon",
    "υ",
    "phi",
    "φ",
    "chi",
    "χ",
    "psi",
    "ψ",
    "omega",
    "ω",
    "Gamma",
    "Γ",
    "Delta",
    "Δ",
    "Theta",
    "Θ",
    "Lambda",
    "Λ",
    "Xi",
    "Ξ",
    "Pi",
    "Π",
    "Sigma",
    "Σ",
    "Upsilon",
    "Υ",
    "Phi",
    "Φ",
    "Psi",
    "Ψ",
    "Omega",
    "Ω",
]
VARIANTS = [
    "varepsilon",
    "epsilon",
    "varphi",
    "phi",
    "vartheta",
    "theta",
    "varrho",
    "rho",
    "varsigma",
    "sigma",
    "varkappa",
    "kappa",
    "varpi",
    "pi",
    "ϵ",
    "epsilon",
    "ϕ",
    "phi",
    "ϑ",
    "theta",
    "ϱ",
    "rho",
    "ϖ",
    "pi",
    "ϰ",
    "kappa",
    "µ",
    "mu",
    "ς",
    "sigma",
]


@pytest.mark.parametrize(("name", "sign"), list(zip(LETTERS[::2], LETTERS[1::2], strict=True)))
def test_a_greek_letter_by_name_command_and_sign(name: str, sign: str) -> None:
    symbols = {name: "vector[d]"}
    trees = [parse(text, symbols) for text in (f"\\{name}", sign, name)]
    assert trees[0] == trees[1] == trees[2]
    assert trees[0].name == name


@pytest.mark.parametrize(("variant", "name"), list(zip(VARIANTS[::2], VARIANTS[1::2], strict=True)))
def test_a_variant_of_a_letter_is_that_letter(variant: str, name: str) -> None:
    written = variant if len(variant) == 1 else f"\\{variant}"
    assert parse(written, {name: "vector[d]"}).name == name


SYMBOLS = {
    "x": "scalar",
    "y": "positive",
    "n": "natural",
    "v": "vector[d]",
    "u": "vector[d]",
    "w": "vector[3]",
    "A": "matrix[d,d]",
    "x_hat": "scalar",
    "x_bar": "scalar",
    "x_tilde": "scalar",
    "q": "random vector[d] ~ N(v, y I)",
}
# Ways to write one thing, a line for each thing.
SAME = [
    [r"\frac{x}{y}", r"\dfrac{x}{y}", r"\tfrac{x}{y}", r"\cfrac{x}{y}", r"\nicefrac{x}{y}", r"\sfrac{x}{y}"],
    [r"\frac{x}{y}", r"\flatfrac{x}{y}", "x/y", "x⁄y", "x∕y", "x÷y", r"x \div y", r"{x \over y}"],
    [r"\binom{n}{2}", r"\dbinom{n}{2}", r"\tbinom{n}{2}"],
    [r"x \cdot y", "x·y", "x⋅y", "x∙y", "x•y", r"x \bullet y", "x y", r"x\,y", r"x \quad y"],
    [r"x \times y", "x × y", "x * y", r"x \ast y", "x ∗ y"],
    [r"v \odot u", "v ⊙ u", "v ∘ u", r"v \circ u"],
    [r"v \otimes u", "v ⊗ u"],
    [r"v^T u", r"v^\top u", r"v^{\intercal} u", "vᵀu", "v^⊤ u", "v^⊺ u", r"v^{T}u"],
    [r"\log y", r"\ln y", "log(y)", "ln(y)"],
    [r"\operatorname{tr}(A)", r"\operatorname{Tr}(A)", "trace(A)", r"\mathrm{Trace}(A)", "tr A"],
    [r"\operatorname{diag}(v)", r"\operatorname{Diag}(v)", "diag(v)"],
    [r"\operatorname{softmax}(w)", r"\operatorname{Softmax}(w)", r"\text{softmax}(w)"],
    [r"\operatorname{Var}(q^T u)", r"\operatorname{var}(q^T u)", "Var[q^T u]"],
    [r"\operatorname{Cov}(q, q)", r"\operatorname{cov}(q, q)"],
    [r"\operatorname{sign}(x)", r"\operatorname{sgn}(x)", "sign(x)"],
    [r"\operatorname{ReLU}(x)", "relu(x)"],
    [r"\max(x, y)", "max(x, y)"],
    [r"\min(x, y)", "min(x, y)"],
    [r"|x|", "∣x∣", r"\lvert x \rvert", "abs(x)"],
    [r"\|v\|", "‖v‖", "∥v∥", r"\lVert v \rVert", "norm(v)"],
    [r"\sqrt{y}", "√y", "sqrt(y)"],
    [r"\sum_{i=1}^3 w_i", "∑_{i=1}^3 w_i", "sum_{i=1}^3 w_i", r"\sum\limits_{i=1}^3 w_i"],
    [r"\prod_{i=1}^3 w_i", "∏_{i=1}^3 w_i", "prod_{i=1}^3 w_i"],
    [r"\frac{\partial}{\partial x} x^2", "∂/∂x x²"],
    [r"\nabla_v (v^T v)", "∇_v (v^T v)"],
    [r"\langle v, u \rangle", "⟨v, u⟩", "〈v, u〉"],
    [r"\mathbf{1}^T v", "𝟏^T v", "𝟙^T v"],
    [r"v + \mathbf{0}", "v + 𝟎", "v + 𝟘"],
    [r"\mathbb{E}[q]", "𝔼[q]", "E[q]"],
    [r"\frac{1}{2} x", "½ x", r"\frac12 x"],
    [r"\frac{1}{4} x", "¼ x"],
    [r"\frac{3}{4} x", "¾ x"],
    [r"\frac{1}{3} x", "⅓ x"],
    [r"\frac{2}{3} x", "⅔ x"],
    ["x - y", "x − y", "x – y"],
    ["x^{2} + 3", "x² + 3", "x²\u00a0+\u20093", "x²\u202f+\u20023", "x²\u2003+\u20053", "x²\u200a+\t3", "x²\n+\r3"],
    ["x^{10}", "x¹⁰"],
    ["x^{-1}", "x⁻¹"],
    ["w_1 + w_2 + w_3", "w₁ + w₂ + w₃"],
    ["x <= y", r"x \le y", r"x \leq y", r"x \leqslant y", "x ≤ y", "x ⩽ y"],
    ["x >= y", r"x \ge y", r"x \geq y", r"x \geqslant y", "x ≥ y", "x ⩾ y"],
    ["x < y", r"x \lt y"],
    ["x > y", r"x \gt y"],
    ["x != y", r"x \ne y", r"x \neq y", "x ≠ y"],
    [r"\hat{x}", r"\widehat{x}"],
    [r"\bar{x}", r"\overline{x}"],
    [r"\tilde{x}", r"\widetilde{x}"],
    [r"\mathbf{v}", r"\boldsymbol{v}", r"\bm{v}", r"\vec{v}", r"{\bf v}", r"\overrightarrow{v}", r"\pmb{v}", "v"],
    [r"\displaystyle x + \left( y \right)", r"x + \bigl(y\bigr)", "x + (y)"],
    [
        r"\begin{pmatrix} x \\ y \end{pmatrix}",
        r"\begin{bmatrix} x \\ y \end{bmatrix}",
        r"\begin{matrix} x \\ y \end{matrix}",
        r"\begin{array}{c} x \\ y \end{array}",
    ],
]


@pytest.mark.parametrize("texts", SAME, ids=lambda texts: texts[0])
def test_many_ways_to_write_one_thing(texts: list[str]) -> None:
    first, *others = [parse(text, SYMBOLS) for text in texts]
    for text, tree in zip(texts[1:], others, strict=True):
        assert tree == first, text


REFUSED = {
    "a set of numbers is not an expression": [r"x \mathbb{R}", "x ℝ"],
    "after ∈": [r"x \in y", "x ∈ y"],
    "how something is distributed": [r"x \sim y", "x ∼ y"],
    "leaves a factor open": [r"x \propto y", "x ∝ y"],
    "an arrow is not an expression": [
        r"x \to y", "x → y", r"x \rightarrow y", r"x \Rightarrow y", "x ⇒ y", r"x \implies y", "x ⟹ y",
        r"x \Longrightarrow y", r"x \iff y", "x ⇔ y", "x ⟺ y", r"x \mapsto y",
    ],
    "∴ separates two statements": [r"x \therefore y", "x ∴ y"],
    "dots leave open": [r"x + \ldots + y", "x + … + y", r"x + \cdots + y", "x + ⋯ + y", r"x + \dots", r"x \vdots y"],
    "integrals are not read": [r"\int x", "∫ x"],
    "quantifiers are not read": [r"\forall x", "∀ x", r"\exists x", "∃ x"],
}  # fmt: skip


@pytest.mark.parametrize(("words", "text"), [(words, text) for words, texts in REFUSED.items() for text in texts])
def test_what_is_no_expression_is_told_so(words: str, text: str) -> None:
    with pytest.raises(Unreadable, match=words):
        parse(text, SYMBOLS)


@pytest.mark.parametrize("name", ["cot", "sinh", "cosh", "arcsin", "arccos", "arctan", "erf", "gelu"])
def test_functions_that_are_not_read_are_named(name: str) -> None:
    for text in (f"{name}(x)", f"\\operatorname{{{name}}}(x)"):
        with pytest.raises(QkvError, match=name):
            parse(text, SYMBOLS)


RELATIONS = {
    "=": ["=", "==", ":=", r"\equiv", r"\coloneqq", "≡"],
    "≈": [r"\approx", r"\simeq", r"\approxeq", "≈", "≃", "≅"],
    "<": ["<", r"\lt"],
    ">": [">", r"\gt"],
    "<=": ["<=", r"\le", r"\leq", r"\leqslant", "≤", "⩽"],
    ">=": [">=", r"\ge", r"\geq", r"\geqslant", "≥", "⩾"],
    "!=": ["!=", r"\ne", r"\neq", "≠"],
}


@pytest.mark.parametrize(("sign", "written"), [(sign, one) for sign, many in RELATIONS.items() for one in many])
def test_relations(sign: str, written: str) -> None:
    chain = parse(f"x {written} y", SYMBOLS)
    assert chain.signs == (sign,)  # pyright: ignore
    assert [member.name for member in chain.members] == ["x", "y"]  # pyright: ignore


SKIPPED = (
    "displaystyle", "textstyle", "scriptstyle", "scriptscriptstyle", "big", "Big", "bigg", "Bigg", "bigl", "bigr",
    "bigm", "Bigl", "Bigr", "Bigm", "biggl", "biggr", "biggm", "Biggl", "Biggr", "Biggm", "negthinspace", "negmedspace",
    "negthickspace", "nonumber", "notag", "quad", "qquad", "boxed", "limits", "nolimits", "mathstrut", "strut",
    "thinspace", "medspace", "thickspace", "enspace", "fbox", "mathopen", "mathclose", "mathbin", "mathrel", "mathord",
    "bf", "rm", "it", "cal", "sf", "tt", "bfseries", "hfill", "space", "left", "right", "middle", "mleft", "mright",
    ",", ";", ":", "!", ">", "(", ")", "[", "]", " ",
)  # fmt: skip


@pytest.mark.parametrize("word", SKIPPED)
def test_commands_that_mean_nothing(word: str) -> None:
    assert parse(rf"x \{word} (y)", SYMBOLS) == parse("x (y)", SYMBOLS)
    if word not in ("limits", "nolimits", ")", "]", "boxed", "fbox"):
        assert parse(rf"softmax\{word} (w)", SYMBOLS) == parse("softmax(w)", SYMBOLS)
        assert parse(rf"O\{word} (n)", SYMBOLS) == parse("O(n)", SYMBOLS)


@pytest.mark.parametrize("word", ["hspace", "vspace", "mspace", "label", "tag", "phantom", "hphantom", "vphantom"])
def test_commands_whose_argument_means_nothing(word: str) -> None:
    assert parse(rf"x \{word}{{3y}} y", SYMBOLS) == parse("x y", SYMBOLS)


@pytest.mark.parametrize("word", ["rm", "bf", "it", "sf", "tt", "cal"])
def test_old_styles(word: str) -> None:
    assert parse(rf"{{\{word} v}}^T u", SYMBOLS) == parse("v^T u", SYMBOLS)
    assert parse(rf"{{ \{word} softmax }}(w)", SYMBOLS) == parse("softmax(w)", SYMBOLS)
    assert parse(rf"v_{{\{word} max}}", {"v_max": "scalar"}) == parse("v_max", {"v_max": "scalar"})


BLOCKS = (
    "aligned", "align", "split", "gathered", "gather", "equation", "alignat", "alignedat", "eqnarray", "multline",
)  # fmt: skip
MATRICES = ("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "psmallmatrix", "bsmallmatrix", "array")


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    for star in ("", "*"):
        text = rf"\begin{{{name}{star}}} x &= y \\ &= n \end{{{name}{star}}}"
        assert parse(text, SYMBOLS) == parse("x = y = n", SYMBOLS)


@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name: str) -> None:
    for star in ("", "*"):
        text = rf"\begin{{{name}{star}}} x & y \\ 1 & n \end{{{name}{star}}}"
        assert parse(text, SYMBOLS) == parse("[[x, y], [1, n]]", SYMBOLS)


SENTENCES = (
    "the", "is", "are", "was", "be", "and", "or", "of", "because", "answer", "dont", "don", "not", "know", "therefore",
    "thus", "hence", "where", "when", "if", "so", "we", "it", "its", "to", "by", "for", "with", "then", "choose",
    "equals", "equal", "gives", "since", "which", "that", "this", "there", "has", "have", "than", "as", "from", "at",
    "on", "an", "into", "would", "should", "could", "can", "mean", "means", "value", "yes", "no", "none",
)  # fmt: skip


@pytest.mark.parametrize("word", SENTENCES)
def test_words_of_sentences(word: str) -> None:
    letters = dict.fromkeys({*word, "x"}, "scalar")
    for text in (f"x {word} x", f"{word} x", f"{word}'x"):
        with pytest.raises(Unreadable, match="this reads like words, not like mathematics"):
            parse(text, letters)
    assert parse(f"x {word} x", {**letters, word: "scalar"}).shape == ()
    assert parse(word, letters).shape == ()


@pytest.mark.parametrize("name", ["cot", "sinh", "cosh", "arcsin", "arccos", "arctan", "erf", "gelu"])
def test_functions_that_are_not_read_are_no_products(name: str) -> None:
    letters = dict.fromkeys({*name, "x"}, "scalar")
    for text in (f"{name}(x)", f"{name} x", f"x {name}[x]"):
        with pytest.raises(Unreadable, match=f"{name} is not declared"):
            parse(text, letters)
    with pytest.raises(Unreadable, match=f"{name} is not a function that qkv reads"):
        parse(f"O({name} n)", {})
    if not name.startswith("arc"):
        assert parse(f"{name}+x", letters).shape == ()


FUNCTIONS = {
    "exp": "exp", "log": "log", "ln": "log", "tr": "trace", "Tr": "trace", "trace": "trace", "Trace": "trace",
    "diag": "diag", "Diag": "diag", "softmax": "softmax", "Softmax": "softmax", "argmax": "argmax", "max": "max",
    "min": "min", "norm": "norm", "abs": "abs", "relu": "relu", "ReLU": "relu", "sign": "sign", "sgn": "sign",
    "det": "det", "sum": "sum",
}  # fmt: skip


@pytest.mark.parametrize(("written", "name"), FUNCTIONS.items())
def test_functions_by_every_name(written: str, name: str) -> None:
    argument = "A" if name in ("trace", "det") else "w"
    for text in (
        f"{written}({argument})",
        rf"\operatorname{{{written}}}({argument})",
        rf"\text{{{written}}}({argument})",
    ):
        tree = parse(text, SYMBOLS)
        assert isinstance(tree, Call)
        assert tree.name == name
    if written != "sum":
        assert parse(rf"\{written}({argument})", SYMBOLS) == parse(f"{written}({argument})", SYMBOLS)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("x ± y", r"x \pm y"),
        ("x ∓ y", r"x \mp y"),
        ("x ∓ y", r"x \pm (-y)"),
        ("∞ x", r"\infty x"),
        ("v⊤u", r"v^T u"),
        ("v⊺ u", r"v^T u"),
        (r"v \top u", r"v^T u"),
        (r"v \intercal u", r"v^T u"),
        ("v.T u", "v^T u"),
        ("v.T @ u", "v^T u"),
        ("x**2", "x^2"),
        ("x_hat", r"\hat x"),
        (r"\begin{pmatrix} x \cr y \end{pmatrix}", "(x, y)"),
        (r"\lbrack x, y \rbrack", "[x, y]"),
        (r"\lbrace x \rbrace y", "x y"),
        (r"\{x\} y", "x y"),
        (r"\vert x \vert", "|x|"),
        (r"\Vert v \Vert", r"\|v\|"),
        (r"\left. x \right.", "x"),
        (r"\left|x\right|", "|x|"),
        (r"\operatorname*{softmax}(w)", "softmax(w)"),
        (r"x\ y", "x y"),
    ],
)
def test_signs_and_brackets(text: str, same: str) -> None:
    assert parse(text, SYMBOLS) == parse(same, SYMBOLS)


def test_primes_by_every_sign() -> None:
    symbols = {"x'": "scalar", "x''": "vector[d]", "x": "matrix[d,d]", "y_1'": "scalar"}
    for text in ("x'", "x′", "x’", r"x^\prime", r"x^{\prime}", r"x^ \prime", "x '"):
        assert parse(text, symbols).shape == (), text
    for text in ("x''", "x″", "x′′", r"x^{\prime\prime}", r"x^{\prime \prime}"):
        assert parse(text, symbols).shape == ("d",), text
    for text in ("y_1'", r"y_1^\prime", "y_{1}'", r"y_{1}^{\prime}", "y_1′"):
        assert parse(text, symbols).name == "y_1'", text
