"""Products with their sizes: which size belongs to which name, and which of the two is wrong."""

import pytest

from qkv.problems.judging.answers import Value
from qkv.problems.judging.sized import Products

SYMBOLS = {"X": "matrix[5,2]", "W_Q": "matrix[2,3]", "W_V": "matrix[2,4]"}
BOTH = Products(
    {"Q": Value("X W_Q", SYMBOLS), "V": Value("X W_V", SYMBOLS)},
    {"Q": (("5", "N"), ("3", "D_k")), "V": (("5", "N"), ("4", "D_v"))},
)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (BOTH.text, "right"),
        ("Q = X W_Q (5 x 3), V = X W_V (5 x 4)", "right"),
        ("Q = X W_Q and V = X W_V. Q is 5 by 3 and V is 5 by 4.", "right"),
        ("Q = X W_Q, V = X W_V, with shapes 5×3 and 5×4", "right"),
        (
            r"$\mathbf{Q} = X \mathbf{W}_Q \in \mathbb{R}^{N \times d_k}$; $V = X W_V \in \mathbb R^{N \times D_V}$",
            "right",
        ),
        (
            r"$Q = \begin{bmatrix} - q_1^T - \\ - q_2^T - \end{bmatrix} = X W_Q \in \mathbb{R}^{5 \times 3}$ 5x2 2x3",
            "incomplete",
        ),
        ("Q = X W_Q: 3x5; V = X W_V: 5x4", "wrong"),
        (r"Q = X W_Q \in \mathbb{R}^{D_k \times N}, V = X W_V \in \mathbb{R}^{N \times D_v}", "wrong"),
        ("Q = W_Q X, V = W_V X", "wrong"),
        ("Q = X W_Q, V = X W_V", "incomplete"),
        ("Q is 5x3, V is 5x4", "incomplete"),
        ("Q = X W_Q, 5x3", "incomplete"),
        ("I multiply", "unread"),
        ("", "unread"),
    ],
)
def test_kinds(answer, kind):
    assert BOTH.check(answer).kind == kind


def test_a_planted_order_is_known_again():
    assert BOTH.same("Q = W_Q X; V = W_V X", r"Q = \mathbf{W}_Q \mathbf{X}, V = \mathbf{W}_V \mathbf{X}, 5x3 and 5x4")
    assert not BOTH.same("Q = W_Q X; V = W_V X", BOTH.text)
