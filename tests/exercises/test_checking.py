"""Answers judged over the record: every form, what is refused as no answer, known mistakes, and labelled answers."""

import random
import tomllib
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from qkv.errors import OptionError, OptionTypeError
from qkv.exercises import Also, Answer, Asked, Convention, Exercise, Finding, Given, Option, bank, solving
from qkv.exercises import mistakes as registry
from qkv.exercises.checking import check, planted
from qkv.exercises.findings import _entries
from qkv.exercises.forms.arrays import cells_of, entries, lengths, written
from qkv.exercises.outcome import Outcome, joined, known_mistakes, right, unread, wrong

LABELLED = sorted((Path(__file__).parent / "labelled").glob("*.toml"))
SIZES = {"b": "natural", "d": "natural", "n": "natural", "h": "natural"}
VECTOR = {"mu": "vector[d]", "sigma": "positive", "d": "natural"}


def judged(gold: Answer, text: str, quantity: str = "other", **options) -> Outcome:
    """The outcome of a text against a right answer, for a question that nothing solves."""
    record = {name: options.pop(name) for name in ("givens", "conventions") if name in options}
    exercise = Exercise(asked=[Asked(label="a", quantity=quantity, **options)], **record)
    return check(exercise, "a", text, gold=gold)


MEAN = Answer(r"\mu^T \mu", form="formula", symbols=VECTOR)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (r"\|\mu\|^2", "right"),
        (r"The answer is $\mu^T\mu$.", "right"),
        ("so it's mu^T mu", "right"),
        (r"mean = \mu^T\mu", "right"),
        (r"Its mean equals $\mu^\top \mu$, since both are independent.", "right"),
        (r"\boxed{\mu^\top\mu}", "right"),
        (r"\[ \mu^\top\mu \]", "right"),
        (r"**Answer:** \(\sum_{i=1}^{d}\mu_i^{2}\)", "right"),
        ("mu^T mu or ||mu||^2", "right"),
        (r"d \mu^2", "conditional"),
        (r"\mu\mu^T", "wrong"),
        ("0", "wrong"),
        (r"\boxed{d}", "wrong"),
    ],
)
def test_a_formula_in_a_short_sentence_is_read(text, kind):
    assert judged(MEAN, text, "mean", object="q^T k").kind == kind


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (r"\sqrt{d} or d \mu^2", "several"),
        ("I doubt it is mu^T mu", "hedged"),
        ("maybe mu^T mu", "hedged"),
        ("mu^T mu?", "hedged"),
        ("I think 0", "hedged"),
        ("0 if sigma = 1", "hedged"),
        ("not d", "denied"),
        ("it isn't mu^T mu", "denied"),
        (r"\neq d", "denied"),
        ("> d", "denied"),
        ("d, 2d", "several"),
        ("mu^T mu, 2d", "several"),
        (r"\boxed{d} and \boxed{\mu^T\mu}", "several"),
        (r"variance = \mu^T\mu", "other_quantity"),
        ("std = d", "other_quantity"),
        ("the mean of q is mu", "other_quantity"),
        (r"\sum_i \mu_i = \mu^T \mu", "other_quantity"),
        (r"mean = \sum_i \mu_i = \mu^T \mu", "chain"),
        ("mu + 1", "ill_typed"),
        ("x^T x + d", "unreadable"),
        ("it depends on the mean, I would say", "hedged"),
        ("the usual one", "unreadable"),
        (r"\boxed{\mu^T\mu", "torn"),
        ("", "no_answer"),
        ("d" * 70_000, "too_long"),
    ],
)
def test_what_is_no_answer_is_unread(text, code):
    outcome = judged(MEAN, text, "mean", object="q^T k")
    assert (outcome.kind, outcome.codes) == ("unread", (code,))


def test_names_that_are_not_declared_are_renamed_only_where_one_renaming_fits():
    root = Answer("sqrt(d)", form="formula", symbols={"d": "natural"})
    assert judged(root, r"\sqrt{d_k}", "scale_for_variance").condition == "d_k means d"
    assert judged(root, "n", "scale_for_variance").kind == "unread"
    assert judged(root, "sigma = sqrt(d)", "scale_for_variance").kind == "unread"
    given = [Given(symbol="d", role="head_width", value=64)]
    assert judged(root, "8", "scale_for_variance", givens=given)
    assert judged(root, "7", "scale_for_variance", givens=given).kind == "wrong"


def test_an_answer_that_is_not_worked_out():
    random_scores = {"d": "natural", "q": "random vector[d] ~ N(0, I)", "k": "random vector[d] ~ N(0, I)"}
    variance = Answer("d", form="formula", symbols=random_scores)
    outcome = judged(variance, "Var(q^T k)", "variance", object="q^T k")
    assert (outcome.kind, outcome.codes) == ("incomplete", ("not_evaluated",))
    numbers = Answer("(1, 2)", (1, 2), "vector", symbols={"x": "vector[2]"})
    assert judged(numbers, "2 x", "output").kind == "unread"
    rounded = Answer("(0.5, 0.25)", (0.5, 0.25), "vector")
    assert judged(rounded, "0.33*(1, 0) + 0.17*(1, 1)").kind == "unread"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2.62 MB", "right"),
        ("2621440", "right"),
        ("2.5 MiB", "right"),
        ("2,621,440 bytes", "right"),
        ("about 2.6 MB", "right"),
        ("2.62", "conditional"),
        ("2.63 MB", "conditional"),
        ("2.62 GB", "wrong"),
        ("2621441", "wrong"),
    ],
)
def test_numbers_with_units(text, kind):
    assert judged(Answer("2621440", 2621440, unit="B"), text, "cache_bytes").kind == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("12.288 kB", "right"),
        ("12288 bytes", "right"),
        ("12 KiB", "right"),
        ("0.0123 MB", "right"),
        ("12.288 kB per token", "right"),
        ("24.6 kB", "wrong"),
        ("12.288", "conditional"),
    ],
)
def test_bytes_in_every_unit_when_the_answer_has_a_prefix(text, kind):
    sizes = {"layers": 12, "kv_heads": 4, "head_width": 64, "dtype": "float16"}
    givens = tuple(Given(role=role, value=value) for role, value in sizes.items())
    exercise = Exercise(givens=givens, asked=(Asked(quantity="cache_bytes", object="token"),))
    assert solving.answer(exercise, exercise.asked[0]).unit == "kB"
    assert check(exercise, "", text).kind == kind


def test_counts_percentages_and_digits():
    count = Answer("12582912", 12582912)
    kinds = {
        text: judged(count, text, "parameters").kind for text in ("12.6M", "12.58 million", "12.6", "13M", "12.6B")
    }
    assert kinds == {
        "12.6M": "right",
        "12.58 million": "right",
        "12.6": "conditional",
        "13M": "wrong",
        "12.6B": "wrong",
    }
    share = Answer("0.75", Fraction(3, 4))
    assert all(judged(share, text).kind == "right" for text in ("75%", "3/4", "0.75", "75 percent"))
    assert judged(share, "0.749").kind == judged(share, "75").kind == "conditional"
    loose = {"tolerance": Convention(value=0.05)}
    assert judged(share, "0.78", conventions=loose).kind == "right"
    assert judged(share, "0.78").kind == "wrong"


def test_what_a_right_answer_in_another_form_is_not_called():
    count = Answer("5012", 5012)
    assert judged(count, "about 5000").kind == "conditional"
    assert judged(count, "≈ 5.0e3").kind == "right"
    variance = Answer("d", form="formula", symbols={"d": "natural"})
    for text in ("O(d)", "d\n\n2d", "d = 64", "the output is 3, so d is 2", r"\pm d^2"):
        assert judged(variance, text, "variance").kind == "unread", text
    weights = Answer(r"\operatorname{diag}(a) - a a^T", form="formula", symbols={"a": "vector[n]", "n": "natural"})
    assert judged(weights, r"J_{ij} = a_i (\delta_{ij} - a_j)", "jacobian").kind == "right"
    assert judged(weights, "a_i (1 - a_i)", "jacobian").kind == "unread"
    product = Answer("X W", form="formula", symbols={"X": "matrix[3,2]", "W": "matrix[2,5]"})
    for text in ("X W", "X W (3x5)", r"Q = X W \in \mathbb{R}^{3\times 5}", "X W, 3 × 5"):
        assert judged(product, text, "matrix_form", object="Q").kind == "right", text
    assert judged(product, "X W (5x3)", "matrix_form", object="Q").kind == "unread"
    assert judged(product, "3 × 5", "matrix_form", object="Q").kind == "unread"
    vector = Answer("(-7.94, 0.067)", (-7.9407, 0.06676), "vector")
    assert judged(vector, "The first component is about -7.94.", "output").kind == "unread"


def test_other_conventions():
    other = Also("50", 50, convention="one operation per multiply-add")
    taken = (Finding("assumed", {"convention": "operations", "value": 2}),)
    assert judged(Answer("100", 100, also=(other,), assumed=taken), "50", "flops").kind == "right"
    outcome = judged(Answer("100", 100, also=(other,)), "50", "flops")
    assert (outcome.kind, outcome.condition) == ("conditional", other.convention)
    assert judged(Answer("100", 100, also=(Also("10^2"),)), "10^2", "flops").kind == "right"


def test_arrays_are_read_in_every_usual_notation():
    draw = random.Random(7)
    for rows, columns in ((2, 3), (3, 2), (5, 7)):
        table = [[str(draw.randint(-9, 9)) for _ in range(columns)] for _ in range(rows)]
        ways = [
            "[" + ", ".join(f"[{', '.join(row)}]" for row in table) + "]",
            "[" + "\n ".join(f"[{' '.join(row)}]" for row in table) + "]",
            r"\begin{bmatrix}" + r"\\".join(" & ".join(row) for row in table) + r"\end{bmatrix}",
            "[" + "; ".join(" ".join(row) for row in table) + "]",
            "torch.tensor([" + ", ".join(f"[{', '.join(row)}]" for row in table) + "])",
        ]
        assert all(cells_of(way) == table for way in ways)
        gold = Answer(written(table), tuple(tuple(map(int, row)) for row in table), "matrix")
        assert all(judged(gold, way).kind == "right" for way in ways)
        assert judged(gold, "\n".join(" ".join(row) for row in table)).kind == "right"
        named = ", ".join(f"q_{i} = ({', '.join(row)})" for i, row in enumerate(table, 1))
        assert judged(gold, named, object="Q").kind == "right"
        assert judged(gold, named.rpartition(", q")[0], object="Q").kind == "incomplete"
        row, column = draw.randrange(rows), draw.randrange(columns)
        table[row][column] = str(int(table[row][column]) + 1)
        outcome = judged(gold, written(table))
        assert (outcome.kind, outcome.findings[0].data["place"]) == ("wrong", f"{row + 1}, {column + 1}")


@pytest.mark.slow
def test_layouts_and_sizes_of_arrays():
    vector = Answer("(1, 2, 3)", (1, 2, 3), "vector")
    for text in ("[[1], [2], [3]]", "[[1, 2, 3]]", "(1, 2, 3)^T", r"\begin{pmatrix}1\\2\\3\end{pmatrix}", "1, 2 and 3"):
        assert judged(vector, text).kind == "right", text
    assert judged(vector, "(1, 2)").codes == ("sizes",)
    matrix = Answer("[[1, 2, 3], [4, 5, 6]]", ((1, 2, 3), (4, 5, 6)), "matrix")
    assert judged(matrix, "[[1, 4], [2, 5], [3, 6]]").kind == "conditional"
    said = {"layout": Convention(value="rows")}
    assert judged(matrix, "[[1, 4], [2, 5], [3, 6]]", conventions=said).kind == "wrong"
    assert judged(matrix, "(4, 5, 6)").kind == "incomplete"
    tensor = Answer("[[[1, 2]], [[3, 4]]]", (((1, 2),), ((3, 4),)), "tensor")
    assert judged(tensor, "[[[1, 2]], [[3, 4]]]").kind == "right"
    assert judged(tensor, "[[[1, 2]], [[3, 5]]]").kind == "wrong"
    large = [[str(i * j) for j in range(90)] for i in range(90)]
    whole = Answer(written(large), tuple(tuple(map(int, row)) for row in large), "matrix")
    assert judged(whole, written(large)).kind == "right"
    assert lengths(large) == (90, 90)
    assert sum(1 for _ in entries(large)) == 8100


def test_entries_of_a_vector_by_name():
    scores = Answer("(2, 8, -20)", (2, 8, -20), "vector")
    assert judged(scores, "z_{3,1} = 2, z_{3,2} = 8, z_{3,3} = -20", "scores", row=3).kind == "right"
    assert judged(scores, "z32 = 8, z31 = 2 and z33 = -20", "scores", row=3).kind == "right"
    assert judged(scores, r"$z_{3,1} = q_3^\top k_1 = 2$", "scores", row=3).kind == "incomplete"
    assert judged(scores, "z_{3,1} = 2, z_{3,2} = 8, z_{3,3} = 20", "scores", row=3).kind == "wrong"


def test_several_objects():
    items = {
        "time": Answer("O(n^2 d)", form="class", symbols=SIZES),
        "space": Answer("O(n d)", form="class", symbols=SIZES),
    }
    both = Answer("", form="class", items=items)
    for text in ("time: O(n^2 d); space: O(n d)", "Space O(nd), time O(n^2 d).", "O(n^2 d), O(n d)",
                 "**Time:** $\\Theta(n^2 d)$\n**Memory:** $\\Theta(nd)$"):  # fmt: skip
        assert judged(both, text, "growth_time+growth_space").kind == "right", text
    assert judged(both, "time O(n^2 d)", "growth_time+growth_space").kind == "incomplete"
    assert judged(both, "time O(n^2 d), space O(n)", "growth_time+growth_space").kind == "wrong"
    assert judged(both, "time maybe O(n)", "growth_time+growth_space").kind == "unread"
    twice = judged(both, "time: O(n^2 d), space: O(n d), time: O(n)", "growth_time+growth_space")
    assert "several" in twice.codes
    lookup = {
        "scores": Answer("(3, 11)", (3, 11), "vector"),
        "index": Answer("2", 2),
        "output": Answer("(1, 4)", (1, 4), "vector"),
    }
    best = Answer("(1, 4)", (1, 4), "vector", items=lookup)
    kinds = {
        text: judged(best, text, "argmax").kind
        for text in ("(1, 4)", "index 2, output (1, 4)", "index 2", "output (1, 5)")
    }
    assert list(kinds.values()) == ["right", "right", "incomplete", "wrong"]


def test_growth_classes():
    cost = Answer("O(b d^2 + b n d)", form="class", symbols=SIZES)
    right_ones = (
        "O(bd^2+bnd)",
        r"\Theta(bd(d+n))",
        "b d^2 + b n d",
        r"\mathcal{O}(b d^2 + bnd)",
        "time: O(bd^2 + bnd)",
    )
    assert all(judged(cost, text, "growth_time").kind == "right" for text in right_ones)
    assert judged(cost, "O(bnd)", "growth_time").kind == "wrong"
    for text in ("Ω(bd^2+bnd)", "h O(bnd)", "linear in n", "O(x)", "space: O(bnd)", "O(bd^2 + bnd) or O(bnd)"):
        assert judged(cost, text, "growth_time").kind == "unread", text


def test_shapes_are_not_renamed():
    shape = Answer("[h, d, q]", form="shape", symbols={"h": "natural", "d": "natural", "q": "natural = d/h"})
    for text in ("(h, d, q)", "h×d×q", "torch.Size([h, d, q])", "[h, d, d/h]", "shape: (h, d, q)"):
        assert judged(shape, text, "shape").kind == "right", text
    for text in ("[d, h, q]", "[h, d]", "[h, d, q, 1]"):
        assert judged(shape, text, "shape").kind == "wrong", text
    for text in ("[a, d, q]", "[h, d, q] or [d, q]", "h d q", "30"):
        assert judged(shape, text, "shape").kind == "unread", text


def test_choices():
    options = [
        Option(label=label, text=text) for label, text in (("i", "x_{b,j}"), ("ii", "x_{c,j}"), ("iii", "x_{b,k}"))
    ]
    gold = Answer("(i), (iii)", ("i", "iii"), "choice")
    asked = {"quantity": "dependence", "options": options, "several": True}
    for text in (
        "(i), (iii)",
        "i and iii",
        "(iii) (i)",
        "I, III",
        "options i and iii",
        "x_{b,j} and x_{b,k}",
        "(i), (iii): the same row",
    ):
        assert judged(gold, text, **asked).kind == "right", text
    for text in ("i", "all", "none of them", "(i), (ii)"):
        assert judged(gold, text, **asked).kind == "wrong", text
    for text in ("(i) or (iii)", "not (ii)", "all but (ii)", "the row", "", "(iv)"):
        assert judged(gold, text, **asked).kind == "unread", text
    one = Answer("(b)", "b", "choice")
    several = judged(one, "b and c", "dependence", options=[Option(label=each, text=each * 9) for each in "abc"])
    assert several.codes == ("several",)


def test_blanks_and_code():
    einsum = Answer('einsum("bd,hdq->bhq", x, W_q)', form="blank")
    for text in (
        'torch.einsum("ni,hij->nhj", x, W_q)',
        '"bd,hdq->bhq"',
        "hdq,bd->bhq",
        'q = einsum("hdq,bd->bhq", W_q, x)',
    ):
        assert judged(einsum, text, "blank").kind == "right", text
    for text in ('einsum("bd,hdq->hbq", x, W_q)', "bd,hdq->bq", 'einsum("hdq,bd->bhq", x, W_q)'):
        assert judged(einsum, text, "blank").kind == "wrong", text
    for text in ("x @ W_q", 'einsum("bd,hdq->bhq", x, W_k)', "bd->bhq", "the einsum"):
        assert judged(einsum, text, "blank").kind == "unread", text
    layer = Answer("nn.Linear(d_model, 3 * d_model)", form="blank", symbols={"d_model": "natural"})
    assert judged(layer, "torch.nn.Linear(d_model, d_model * 3)", "blank").kind == "right"
    assert judged(layer, "nn.Linear(d_model, d_model)", "blank").kind == "wrong"
    assert judged(layer, "nn.Linear(d_model, 3 * d_model, bias=False)", "blank").kind == "unread"
    offered = [Option(label="1", text="self.heads"), Option(label="2", text="self.width")]
    name = Answer("self.heads", form="blank")
    assert judged(name, "self.heads", "blank").kind == judged(name, "1", "blank", options=offered).kind == "right"
    assert judged(name, "self.width", "blank", options=offered).kind == "wrong"
    assert judged(name, "self.width", "blank").kind == "unread"
    assert judged(name, "heads or self.heads", "blank").kind == "right"
    assert judged(name, "self.heads or self.width", "blank").kind == "unread"


def test_proofs():
    claim = Answer(r"\|q\|^2 = q^T q", form="proof", symbols={"q": "vector[d]", "d": "natural"})
    for text in (
        r"\|q\|^2 = \sum_i q_i^2 = q^T q",
        r"$\|q\|^2 = \sum_{j=1}^d q_j^2$ (by definition)" + "\n$= q^T q$",
        r"\begin{align}\|q\|^2 &= \sum_i q_i^2 \\ &= q^T q\end{align}",
        r"q^T q = \sum_i q_i q_i = \|q\|^2",
    ):
        assert judged(claim, text, "identity").kind == "right", text
    refuted = judged(claim, r"\|q\|^2 = \sum_i q_i = q^T q", "identity")
    assert (refuted.kind, refuted.findings[0].data["after"]) == ("wrong", r"\sum_i q_i")
    for text, code in ((r"\|q\|^2 = q^T q", "restated"), (r"\|q\|^2 = \sum_i q_i^2", "proof_open")):
        outcome = judged(claim, text, "identity")
        assert (outcome.kind, outcome.codes) == ("incomplete", (code,))
    for text in ("it is obvious", r"\|q\|^2 = w = q^T q", ""):
        assert judged(claim, text, "identity").kind == "unread"
    bound = Answer(r"2 a b \le a^2 + b^2", form="proof", symbols={"a": "scalar", "b": "scalar"})
    assert judged(bound, r"2ab \le 2ab + (a-b)^2 = a^2 + b^2", "identity").kind == "right"
    # A claim whose names nothing ties together refutes no link.
    types = {**dict.fromkeys("QKqk", "matrix[n,d]"), "i": "index[n]", "j": "index[n]"}
    loose = Answer("(Q K^T)_{ij} = q_i^T k_j", form="proof", symbols=types)
    assert judged(loose, r"(Q K^T)_{ij} = \sum_l q_{il} k_{jl} = q_i^T k_j", "identity").kind == "unread"


def softmax(**options):
    return Exercise(
        givens=[Given(role="scores", value=[0, 0])], asked=[Asked(label="a", quantity="softmax", **options)]
    )


def test_known_mistakes_are_named(monkeypatch):
    planted = {
        "no scaling": Answer("(1, 3)", (1, 3), "vector"),
        "mask forgotten": Answer("(1/2, 1/2)", (0.5, 0.5), "vector"),
    }
    for name, answer in planted.items():
        monkeypatch.setitem(registry.MISTAKES, name, lambda exercise, asked, answer=answer: answer)
    monkeypatch.setitem(registry.MISTAKES, "key for value", lambda exercise, asked: None)
    exercise = softmax(mistakes=("no scaling", "mask forgotten", "key for value", "one that is not known"))
    assert check(exercise, "a", "(1, 3)").mistakes == ("no scaling",)
    assert check(exercise, "a", "(1, 4)").mistakes == ()
    assert check(exercise, "a", "(1/2, 1/2)").mistakes == ()
    assert check(exercise, "a", "maybe (1, 3)").mistakes == ()


def test_an_answer_that_only_a_named_mistake_reads_is_wrong(monkeypatch):
    wide = Answer("sqrt(w)", form="formula", symbols={"w": "natural"})
    monkeypatch.setitem(registry.MISTAKES, "model width for head width", lambda exercise, asked: wide)
    root = Answer("d + 1", form="formula", symbols={"d": "natural"})
    outcome = judged(root, "sqrt(w)", mistakes=["model width for head width"])
    assert (outcome.kind, outcome.mistakes) == ("wrong", ("model width for head width",))
    assert judged(root, "sqrt(v)", mistakes=["model width for head width"]).kind == "unread"


def test_every_word_of_an_outcome_is_in_the_data():
    outcome = check(softmax(), "a", "(1, 0)")
    assert outcome.words() == "entry 1 is 1 and should be 1/2"
    assert outcome.words(spoilers=False) == "entry 1 is not right"
    spoiled, plain = outcome.as_dict(), outcome.as_dict(spoilers=False)
    assert spoiled["findings"][0]["data"]["right"] == "1/2"
    assert "1/2" not in str(plain)
    assert plain["kind"] == "wrong"
    codes = {"right", "different", "hedged", "several", "missing_piece", "unsolved", "said", "not_said", "against"}
    assert codes <= set(_entries())


def test_outcomes_of_pieces():
    assert joined({"a": right(), "b": right()})
    assert joined({"a": right(), "b": wrong("different")}).kind == "wrong"
    assert joined({"a": right(), "b": unread("missing_piece", name="b")}).kind == "incomplete"
    assert joined({"a": unread("missing_piece", name="a")}).kind == "unread"
    assert joined({"a": right(), "b": unread("missing_piece", name="b")}, frozenset("b"))


def test_mistakes_are_described_as_mistakes():
    assert len(known_mistakes()) > 90
    for name, known in known_mistakes().items():
        assert known.believed.startswith("you "), name
        assert known.question.endswith("?"), name
        assert not known.right.endswith("."), name


def test_the_mistakes_of_the_bank_are_known():
    for name in bank.names():
        exercise = bank.named(name)
        assert {each for asked in exercise.asked for each in asked.mistakes} <= set(known_mistakes()), name


def test_what_cannot_be_judged():
    nothing = Exercise(asked=[Asked(label="a", quantity="softmax")])
    assert check(nothing, "a", "(1, 0)").codes == ("unsolved",)
    assert check(softmax(), "", "(1/2, 1/2)")
    with pytest.raises(OptionError):
        check(softmax(), "b", "1")
    with pytest.raises(OptionTypeError):
        check(softmax(), "a", 1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "text", ["\x00", "\\", "$$$$", "(((((", "[[[[", "=" * 50, "\\begin{bmatrix}", "≈", "1" * 5000, "(" * 3000]
)
def test_broken_texts_are_unread(text):
    for form in ("number", "vector", "matrix", "formula", "class", "shape", "choice", "blank", "proof"):
        gold = Answer(
            "[[1, 2], [3, 4]]" if form == "matrix" else "(1, 2)" if form == "vector" else "d",
            form=form,
            symbols={"d": "natural"},
        )
        assert judged(gold, text, options=[Option(label="a", text="b")]).kind in (
            "unread",
            "wrong" if text.startswith("1") else "unread",
        )


@pytest.mark.slow
@pytest.mark.parametrize("path", LABELLED, ids=lambda path: path.stem)
def test_labelled_answers(path):
    """No right answer is called wrong, and no answer that is not right is called right."""
    exercise, counts, faults = bank.named(path.stem), Counter(), []
    labels = set(exercise.labels)
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["answer"]:
        if entry["part"] not in labels:
            continue
        outcome = check(exercise, entry["part"], entry["answer"])
        counts[entry["kind"], outcome.kind] += 1
        if (entry["kind"] == "right" and outcome.kind == "wrong") or (entry["kind"] != "right" and outcome):
            faults.append(f"{entry['id']} is {entry['kind']}, not {outcome}")
    judged_right = sum(count for (kind, _), count in counts.items() if kind == "right")
    print(f"{path.stem}: {counts['right', 'unread']} of {judged_right} right answers are unread")
    assert not faults, "\n".join(faults)


def test_a_question_and_its_mistakes_are_solved_once_in_a_check(monkeypatch):
    exercise, solved, solve = bank.named("by-hand", 3), Counter(), solving._answer

    def counting(record, asked):
        solved[asked.label] += record is exercise
        return solve(record, asked)

    monkeypatch.setattr(solving, "_answer", counting)
    outcome = check(exercise, "b", "(1, 2, 3)")
    assert outcome.kind in ("wrong", "unread")
    assert solved["b"] <= 2  # once to sixty digits, once to the usual ones
    with solving.remembering():
        first = planted(exercise, exercise.asked[1], "query and key swapped")
        assert planted(exercise, exercise.asked[1], "query and key swapped") is first
        assert solving.answer(exercise, exercise.asked[1]) is solving.answer(exercise, exercise.asked[1])
    assert solving.answer(exercise, exercise.asked[1]) is not solving.answer(exercise, exercise.asked[1])


def test_equal_records_that_are_not_the_same_are_solved_apart():
    """1 equals 1.0, and the answers are written differently."""
    records = [
        Exercise(givens=[Given(role="scores", value=[one, 2])], asked=[Asked(quantity="softmax")]) for one in (1, 1.0)
    ]
    with solving.remembering():
        assert len({id(solving.answer(record, record.asked[0])) for record in records}) == 2


def test_a_mistake_is_named_for_its_own_answer_and_for_an_equal_one():
    exercise = bank.named("scaling")
    for asked in exercise.asked:
        for name in asked.mistakes:
            wrong_answer = planted(exercise, asked, name)
            if wrong_answer is not None:
                for text in (wrong_answer.text, f"({wrong_answer.text}) 1"):
                    assert name in check(exercise, asked.label, text).mistakes, (asked.label, name, text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (r"\sum_i a_i^2 - 2\sum_i a_i^3 + (\sum_i a_i^2)^2", "right"),
        (r"\sum_i a_i^2 (1 - a_i)^2 + 2 \sum_{j<i} a_i^2 a_j^2", "right"),
        (r"\sum_i a_i^2 (1 - a_i)^2 + \sum_{i \ne j} a_i^2 a_j^2", "right"),
        (r"\sum_i a_i^2 (1 - a_i)^2 + \sum_{i<j} a_i^2 a_j^2", "wrong"),
        (r"a_i^2 (1 - a_i)^2", "wrong"),
    ],
)
def test_a_sum_over_pairs_binds_both_indices_though_the_exercise_has_them(text, kind):
    assert check(bank.named("saturation"), "a(iii)", text).kind == kind


def test_the_vector_of_a_feature_map_is_not_its_width():
    assert "D" in solving.solve(bank.named("kernels"))["b(ii)"].answer.text


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("time O(N D^2 M), space O(N D^2 + D^2 M)", "right"),
        ("time O(N D^3), space O(N D^2 + D^3)", "right"),
        ("time O(N D M), space O(N D^2 + D^2 M)", "wrong"),
    ],
)
def test_a_size_may_be_written_by_the_one_that_the_question_equates_it_with(text, kind):
    assert check(bank.named("kernels"), "d", text).kind == kind


@pytest.mark.parametrize(("text", "kind"), [(r"4\epsilon^2", "right"), (r"n^2 \epsilon^2", "right"), ("n", "wrong")])
def test_each_bound_of_the_solution_is_right_where_the_question_does_not_say_which(text, kind):
    assert check(bank.named("saturation"), "a(iv)", text).kind == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("d", "right"),
        (r"d \sigma^4 + 2 \sigma^2 \mu^T \mu", "unread"),
        (r"d \sigma^4", "unread"),
        (r"2 d \sigma^4 + 2 \sigma^2 \mu^T \mu", "wrong"),
        (r"d \sigma^4 + \sigma^2", "wrong"),
    ],
)
def test_a_general_formula_is_not_wrong_where_the_special_case_is_asked(text, kind):
    assert check(bank.named("scaling"), "b", text).kind == kind
