"""What a question tells is used or the question is left alone: heads, layers, letters, numbers, "no", and norms."""

from __future__ import annotations

import pytest

from qkv import problems
from qkv.problems.decoding import family as decoding
from qkv.problems.heads import family as heads
from qkv.problems.heads.reach_told import Reach, reach_in
from qkv.problems.norms import family as norms
from qkv.problems.reading.inline import on_own_lines
from qkv.problems.reading.lettered import Asked, lettered

REACH = "With argmax attention and residual connections, find the receptive field of a node at "
BARE = "With argmax attention and NO residual connections, find the receptive field of a node at "
STEP = "Consider one step of decoding with h heads, width d, batch b and n cached tokens. "
OPTIONS = "(i) x_{i,j} (ii) x_{i',j} (iii) x_{i,j'} (iv) x_{i',j'}"
ASKED = f"(a) Determine which the value of y_{{i,j}} depends on (select all that apply): {OPTIONS}. "


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (REACH + "layer L (i) with a single head, (ii) with 5 heads, (iii) with m heads.", ["2^L", "6^L", "(m+1)^L"]),
        (REACH + "layer n: (i) with one head, (ii) with four heads, (iii) with k heads.", ["2^n", "5^n", "(k+1)^n"]),
        (BARE + "layer n with (i) 2 heads, (ii) k heads.", ["2^n", "k^n"]),
        (REACH + "layer 3 with (i) a single head (ii) two heads (iii) seven heads.", ["8", "27", "512"]),
        (REACH + "the last layer: 12 layers, 8 heads, 512 tokens.", ["512"]),
        (BARE + "layer 6 with two heads in a sequence of 40 tokens.", ["40"]),
        (BARE + "layer 3 with two heads in a sequence of 40 tokens.", ["8"]),
        (REACH + "the third layer with $k$ heads.", ["(k+1)^3"]),
        (
            (
                "Heads attend to one position each (argmax), with residuals.\n(a) What is the "
                "receptive field after 4 layers with "
                "3 heads?\n(b) And with h heads after L layers?\n(c) Repeat (b) without the residual connections."
            ),
            ["256", "(h+1)^L", "h^L"],
        ),
        (
            (
                "Determine the asymptotic time complexity of multi-head attention with query length "
                "T, key length S, head "
                "dimension p and H heads. Then identify the bottleneck (i) when the model width is "
                "large and sequences are short, "
                "(ii) when sequences are long and the model width is small."
            ),
            ["O((T + S)(p H)^2 + T S p H)", "the projections", "the scores and the weighted sums"],
        ),
    ],
)
def test_heads(text: str, answers: list[str]) -> None:
    _answered(heads.recognised(text), answers)


@pytest.mark.parametrize(
    "text",
    [
        "Top-2 attention: each head attends to two positions. Receptive field at layer n with k heads and a residual?",
        "What is the receptive field at layer n when all k heads look at the same position, with a residual?",
        "What is the receptive field of argmax attention at layer n with n heads?",
    ],
)
def test_reach_that_cannot_be_told(text: str) -> None:
    assert heads.recognised(text) is None


@pytest.mark.parametrize(
    ("said", "residual"),
    [
        ("without residual connections", False),
        ("there are no skip connections", False),
        ("residuals are removed", False),
        ("ignore the residual", False),
        ("with residual connections", True),
        ("do not forget the residual", True),
        ("", True),
    ],
)
def test_a_residual_that_is_denied(said: str, residual: bool) -> None:
    found = reach_in(Asked("a", f"How many positions does layer n see with 3 heads, {said}?"))
    assert found == Reach("plain", "3", "n", residual=residual)


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (
            "Multi-head attention (not multi-query). "
            + STEP
            + "\n(a) What is the computational complexity?\n(b) What is the "
            "memory access complexity?",
            ["O(bd^2 + bnd)", "O(d^2 + bd + bnd)"],
        ),
        (
            "Multi-query attention. " + STEP + "Give the FLOPs and the memory traffic in big-O.",
            ["O(bd^2 + bnd)", "O(d^2 + bd + bnd/h)"],
        ),
        (
            "Multi-query attention. "
            + STEP
            + "\n(a) Why does sharing help?\n(b) What is the memory access complexity?",
            ["O(d^2 + bd + bnd/h)"],
        ),
        (
            (
                "In multi-query attention all heads share keys and values. x has shape [B, E], there "
                "are H heads of width P.\n(a) "
                "What is the shape of the query projection W_q?\n(b) What is the shape of W_k?\n(c) "
                "Which einsum computes the "
                "keys?"
            ),
            ["[H, E, P]", "[E, P]", 'einsum("be,ep->bp", x, W_k)'],
        ),
        (
            (
                "A model with width d = 4096, h = 32 heads, n = 8192 cached tokens and batch b = 4 "
                "uses multi-query attention. How "
                "many numbers are read from the KV cache in one decoding step?"
            ),
            [str(2 * 4 * 8192 * 4096 // 32)],
        ),
        (
            (
                "A decoder uses multi-head attention: d_model = 4096, 32 heads, 32 layers, fp16. How "
                "many bytes does the KV cache "
                "take for one sequence of 2048 tokens?"
            ),
            [str(2 * 32 * 4096 * 2048 * 2)],
        ),
    ],
)
def test_decoding(text: str, answers: list[str]) -> None:
    _answered(decoding.recognised(text), answers)


def test_letters_of_the_text_are_kept() -> None:
    found = decoding.recognised(
        f"Multi-query attention. {STEP}\n(a) Why does it help?\n(b) What is the memory access complexity?"
    )
    assert found is not None
    assert [part.name for part in found[1].parts] == ["b"]


@pytest.mark.parametrize(
    "text",
    [
        "How large is the KV cache (in bytes) of a multi-query model with 32 layers and 32 heads?",
        "Multi-query attention shares keys and values between heads while decoding. How many people use it?",
    ],
)
def test_decoding_that_lacks_something(text: str) -> None:
    assert decoding.recognised(text) is None


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (
            r"Prove that for RMSNorm with gain g and no bias the output has norm $\|y\| = g\sqrt{d}$.",
            [r"\|y\| = g \|x\|/\rho = g\sqrt{d}"],
        ),
        (
            r"Prove that layer normalization with gain $g$ and bias $b$ gives $\|y - b 1\| = g\sqrt{d}$.",
            [r"\|y - b 1\| = \|g z\| = g \|z\| = g \sqrt{d}"],
        ),
        (
            "Layer normalization. Input X of shape [B, D].\n"
            + ASKED
            + "Repeat the same analysis for batch normalization.",
            ["Layer norm: (i), (iii). Batch norm: (i), (ii)."],
        ),
        (
            "Input X of shape [B, D].\n" + ASKED + "Repeat the same analysis for batch normalization.",
            ["(i), (iii) for layer norm and (i), (ii) for batch norm"],
        ),
        (
            (
                f"(a) For batch normalization of X in [B, D], which does y_{{i,j}} depend on: "
                f"{OPTIONS}?\n(b) Same for layer "
                "normalization."
            ),
            ["(i), (ii)", "(i), (iii)"],
        ),
        (
            (
                "X has shape [B, T, D]. Which entries does y_{b,t,j} depend on under layer norm, "
                "batch norm and instance norm? (i) "
                "x_{b,t,j} (ii) x_{b',t,j} (iii) x_{b,t',j} (iv) x_{b,t,j'}"
            ),
            ["layer norm: (i), (iv); batch norm: (i), (ii), (iii); instance norm: (i), (iii)"],
        ),
    ],
)
def test_norms(text: str, answers: list[str]) -> None:
    _answered(norms.recognised(text), answers)


@pytest.mark.parametrize(
    "text",
    [
        "Input X of shape [B, D], layer normalization.\n" + ASKED + "Repeat for batch and for instance normalization.",
        "Show that layer normalization does not change when its input is multiplied by c > 0.",
        r"Prove that batch normalization gives $\|y - \beta 1\| = \gamma \sqrt{d}$.",
    ],
)
def test_norms_that_cannot_be_told(text: str) -> None:
    assert norms.recognised(text) is None


CHAIN = "||y - beta 1|| = ||gamma z|| = gamma ||z|| = gamma sqrt(d)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("z = (x - mu 1)/sigma", "right"),
        ("y = gamma z + beta 1", "right"),
        ("", "right"),
        ("z = (x - mu 1)/sigma^2", "wrong"),
        ("sigma^2 = ||x - mu 1||^2", "wrong"),
        ("y = gamma z - beta 1", "wrong"),
    ],
)
def test_definitions_before_a_chain(said: str, kind: str) -> None:
    assert problems.named("norms").check("b", f"{said}, so {CHAIN}" if said else CHAIN).kind == kind


def test_swapped_norms_stay_wrong() -> None:
    problem = problems.named("norms")
    assert problem.check("a", "(i), (iii) for layer norm and (i), (ii) for batch norm")
    assert problem.check("a", "(i), (ii) for layer norm and (i), (iii) for batch norm").kind == "wrong"


def test_two_labels_on_a_line() -> None:
    _, parts = lettered(
        on_own_lines("Given x.\na(i) Find y.\na(ii) Find z.\n(b)(i) Find u.\n(b)(ii) Find v.\n(c) Find w.")
    )
    assert [part.name for part in parts] == ["a(i)", "a(ii)", "b(i)", "b(ii)", "c"]


def _answered(found: tuple[float, problems.Problem] | None, answers: list[str]) -> None:
    assert found is not None
    parts = found[1].parts
    assert len(parts) == len(answers), [part.ask for part in parts]
    for part, answer in zip(parts, answers, strict=True):
        assert part.check(answer), (part.name, part.ask, part.answer.text)
        assert part.check(part.answer.text)
