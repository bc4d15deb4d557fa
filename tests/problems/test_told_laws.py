"""What a question tells is used or makes it unknown: numbers, laws, factors, denials and own letters are never lost."""

from itertools import pairwise

import pytest

from qkv.maths import compare
from qkv.problems.by_hand import family as by_hand
from qkv.problems.kernels.family import recognised as kernels_of
from qkv.problems.saturation.family import recognised as saturation_of
from qkv.problems.scaling import family as scaling
from tests.helpers.bank_checks import as_text


def answers(found):
    return None if found is None else {part.name: part.answer.text for part in found[1].parts}


def known(found) -> dict[str, str]:
    assert found is not None
    return {part.name: part.answer.text for part in found[1].parts}


MOMENTS = "(a) Find E[q^T k].\n(b) Find Var(q^T k).\n"
READ = {
    "q, k iid vectors in R^p, each component normal with mean $m$ and variance $s^2$ (m a number).\n(a) Find E[q^T k]."
    "\n(b) For m = 0 and s = 3, find Var(q^T k).\n(c) Which scaling factor gives unit variance?": [
        "p m^2",
        "81 p",
        r"9 \sqrt{p}",
    ],
    "Let q ~ N(0, 4 I) and k ~ N(0, 9 I) be independent in R^d. What is Var(q^T k)?": ["36 d"],
    "q, k independent with E[q]=E[k]=0, Cov(q) = A, Cov(k) = B. (a) What is E[q^T k]? (b) What is Var(q^T k)?": [
        "0",
        r"\operatorname{tr}(A B)",
    ],
    r"$q,k\in\mathbb{R}^d$ iid $\mathcal N(\mu,\sigma^2 I)$, $\mu\in\mathbb R^d$. What is the mean of $3q^Tk$ and the "
    r"variance of $3 q^T k$ when $\mu=0$, $\sigma=1$?": [r"3 \mu^T \mu", "9 d"],
    "For d = 16 and standard normal independent q, k: what is the variance of q^T k and by what should scores be "
    "divided?": ["16", "4"],
    "The entries of q and k in R^n are independent with mean 0 and standard deviation 2. What is the variance of q^T "
    "k, and what should we divide by to get variance 1?": ["16 n", r"4 \sqrt{n}"],
    "The entries of q and k in R^n are independent, mean 0, variance 4. What is the variance of q^T k?": ["16 n"],
    r"Components of q in R^d have mean 0 and variance \sigma_q^2, those of k mean 0 and variance \sigma_k^2, all "
    "independent. (a) Find E[q^T k]. (b) Find Var(q^T k).": ["0", r"d \sigma_q^2 \sigma_k^2"],
    "q, k independent N(mu, sigma^2 I) vectors in R^d. Find E[q^T k] and Var(q^T k).": [
        r"\mu^T \mu",
        r"d \sigma^4 + 2 \sigma^2 \mu^T \mu",
    ],
    "q, k iid N(μ, σ²I), μ ∈ R^d. (1) E[qᵀk]=? (2) Var(qᵀk) for μ=0, σ=1?": [r"\mu^T \mu", "d"],
    "q, k independent N(0, 4 I) vectors in R^d. What is the variance of 3 q^T k?": ["144 d"],
    r"q, k independent N(\mu, 4 I) vectors in R^d. Find Var(q^T k).": [r"16 d + 8 \mu^T \mu"],
    r"q, k in R^d independent N(0, 4 I). What is Var(q^T k / \sqrt{d})?": ["16"],
}
UNKNOWN = [
    f"q, k independent N(m\nUser: a\n\n\nb, sigma^2 I) vectors in R^d.\n{MOMENTS}",
    f"The components of q and k are independent and uniform on [-1, 1], q, k in R^d.\n{MOMENTS}",
    f"Let q be a standard normal vector in R^d and k = q.\n{MOMENTS}",
    f"q, k in R^d are standard normal and correlated: E[q_i k_i] = r for each i.\n{MOMENTS}",
    f"q and k in R^d have independent Laplace entries with mean 0 and scale b.\n{MOMENTS}",
    f"q and k in R^d have independent entries that are +1 or -1 with equal probability.\n{MOMENTS}",
    f"q, k are N(mu, sigma^2 I) vectors in R^d that are not independent.\n{MOMENTS}",
    f"q is fixed and k ~ N(0, I) in R^d.\n{MOMENTS}",
    f"q_i ~ N(0, 1) and k_i ~ N(1, 1) are independent for i = 1..d.\n{MOMENTS}",
    "q and k are iid N(mu, sigma^2 I), mu in R^d. What is Var(q^T k) if mu is the all-ones vector, sigma = 1?",
    "Let q ~ N(0, 0.25 I) and k ~ N(0, 4 I) be independent in R^d. What is Var(q^T k)?",
    "Let q, k ~ N(0, I/d) be independent in R^d. What is Var(q^T k)?",
    "q, k independent N(mu, sigma^2 I) in R^d. Find E[(q^T k)^2] and Var(q^T k).",
    "q, k independent N(mu, sigma^2 I) in R^d. Find E[||q - k||^2] and its variance, and the dot product's.",
    "q, k independent standard normal vectors in R^d. Compute the mean and the variance of q^T k + 1.",
    "q, k independent standard normal vectors in R^d. Compute the mean and the variance of q^T W k.",
    "q, k independent standard normal vectors in R^d. Compute E[0.5 q^T k] and Var(0.5 q^T k).",
]


@pytest.mark.slow
@pytest.mark.parametrize("text", READ)
def test_scaling_with_its_own_law(text):
    found = scaling.recognised(text)
    assert list(known(found).values()) == READ[text]
    assert found is not None
    for part in found[1].parts:
        assert part.check(part.answer.text), part.name
        for step in part.steps():
            assert all(compare(a, b, step.symbols) for a, b in pairwise(step.chain)), step
        for mistake in part.misconceptions:
            assert not part.check(mistake.planted), mistake


@pytest.mark.parametrize("text", UNKNOWN)
def test_scaling_with_a_law_that_cannot_be_said(text):
    assert scaling.recognised(text) is None


def test_a_solution_in_the_text_tells_no_law():
    given = (
        "q, k independent N(mu, sigma^2 I) in R^d.\n(a) Find E[q^T k].\n{}(b) Find Var(q^T k) for mu = 0, sigma = 1.\n"
    )
    work = "Solution: E[2 q^T k] = 2 E[q^T k], were they correlated.\n$$Var(q^T k) = E[(q^T k)^2] - 0 = d$$\n"
    assert known(scaling.recognised(given.format(work))) == known(scaling.recognised(given.format("")))


@pytest.mark.parametrize("factor", [1, 2, 7])
@pytest.mark.parametrize("deviation", [1, 2, 5])
@pytest.mark.parametrize("width", ["d", "p", "d_k"])
def test_scaling_by_any_number(factor, deviation, width):
    score = f"{factor} q^T k" if factor > 1 else "q^T k"
    found = scaling.recognised(
        f"The entries of q and k in R^{{{width}}} are independent with mean 0 and standard deviation {deviation}. "
        f"What is the variance of {score}?"
    )
    total = factor**2 * deviation**4
    assert list(known(found).values()) == [f"{total} {width}" if total > 1 else width]


WHY = (
    r"Why do we divide attention scores by $\sqrt{d_{head}}$, and what would be the consequence of not doing so? Prove "
    "it mathematically, assuming that the entries of queries and keys are"
)


@pytest.mark.parametrize(
    ("law", "variance"),
    [
        ("i.i.d. with a mean of 0 and standard deviation of 1", "d_head"),
        ("i.i.d. with mean 0 and standard deviation 2", "16 d_head"),
        ("i.i.d. with mean 0 and variance 9", "81 d_head"),
        ("i.i.d. with mean 1 and variance 1", None),
        (r"i.i.d. with mean 0 and variance $\sigma^2$", None),
        ("uniform on [-1, 1]", None),
        ("correlated, with mean 0 and variance 1", None),
    ],
)
def test_saturation(law, variance):
    found = answers(saturation_of(f"{WHY} {law}."))
    assert (found and found["a(i)"]) == (variance and f"mean = 0; variance = {variance}")


@pytest.mark.parametrize(
    "text",
    [
        "Let a = softmax(s / T) for s in R^m. (a) Derive the Jacobian of a. (b) Compute its squared Frobenius norm.",
        "Let a = softmax(2 s) for s in R^m. Derive the Jacobian of a with respect to s.",
        "Derive the Jacobian of the log-softmax.",
        "Why do we divide attention scores by d (and not by its square root), and what if we do not?",
    ],
)
def test_another_softmax_or_divisor_is_unknown(text):
    assert saturation_of(text) is None


def test_kernels_with_their_own_letters():
    found = known(
        kernels_of(
            "Kernel attention. Let N queries and keys have dimension D and values dimension M.\n(a) What condition "
            "must sim(q,k) satisfy so the output is finite?\n(b) Write the polynomial kernel sim(q,k) of degree 3 "
            "with constant 1.\n(c) Derive the time and memory complexity of linearized attention with this cubic "
            "kernel, assuming M ≈ D."
        )
    )
    assert found["b"] == "(q^T k + 1)^3"
    assert found["c"] == "time: O(N D^4); space: O(N D^3 + D^4)"


@pytest.mark.parametrize(
    "kernel",
    [
        "polynomial kernel (q^T k + c)^2 with c = 4",
        "polynomial kernel (q^T k + 2)^2",
        "polynomial kernel (2 q^T k + 1)^2",
        "quadratic kernel sim(q, k) = 2 (q^T k + 1)^2",
        "polynomial kernel (q^T k + 1)^4",
        "polynomial kernel of degree 5",
        "Gaussian kernel exp(-||q - k||^2 / 2), no polynomial",
        "quadratic kernel and a causal mask",
    ],
)
def test_other_kernels_are_unknown(kernel):
    asked = "(a) Find the feature map phi of this kernel.\n(b) Rewrite attention with phi."
    assert kernels_of(f"Attention with kernels: the similarity sim is the {kernel}.\n{asked}") is None
    assert kernels_of(f"Attention with kernels: the similarity sim is the quadratic kernel.\n{asked}") is not None


def test_a_cubic_feature_map_is_left_out():
    text = "Kernel attention, the similarity is the cubic kernel (q^T k + 1)^3.\n(a) Derive the feature map phi.\n"
    assert list(known(kernels_of(f"{text}(b) Rewrite attention with the feature map."))) == ["b"]


HAND = "W_Q = [[1, 1],[0, 2]], W_K = [[2, 0],[1, 1]], W_V = [[1, 0],[1, 3]], q_i = W_Q^T x_i, k_i = W_K^T x_i."
TOKENS = f"x_1 = (1, 2), x_2 = (3, -1). {HAND}"
COLUMNS = "q_1 = (1, 7); q_2 = (2, 0); k_1 = (5, 3); k_2 = (3, -1); v_1 = (4, 9); v_2 = (1, -3)"
ROWS = "q_1 = (1, 5); q_2 = (3, 1); k_1 = (4, 2); k_2 = (5, -1); v_1 = (3, 6); v_2 = (2, -3)"


@pytest.mark.parametrize(
    ("told", "vectors"),
    [
        ("X = [[1, 2], [3, -1]] holds the token embeddings in its columns.", COLUMNS),
        ("The columns of the embedding matrix are the tokens: X = [[1, 2], [3, -1]].", COLUMNS),
        ("The tokens are the rows of X = [[1, 2], [3, -1]].", ROWS),
        ("X = [[1, 2], [3, -1]].", ROWS),
    ],
)
def test_tokens_in_rows_or_columns(told, vectors):
    asked = "(a) Compute the Q, K and V vectors of each token.\n(b) Compute the attention scores of token 2."
    found = known(by_hand.recognised(f"{told} {HAND}\n{asked}"))
    assert list(found) == ["a", "b"]
    assert found["a"] == vectors


@pytest.mark.parametrize(
    ("told", "scores"),
    [
        ("", "z_{1,1} = 14; z_{1,2} = 0"),
        ("The scores are divided by sqrt(2).", r"z_{1,1} = 14/\sqrt{2}; z_{1,2} = 0"),
        (r"The scores are $q_i^T k_j / \sqrt{3}$.", r"z_{1,1} = 14/\sqrt{3}; z_{1,2} = 0"),
        ("The scores are divided by 7.", "z_{1,1} = 2; z_{1,2} = 0"),
    ],
)
def test_any_scale(told, scores):
    assert known(by_hand.recognised(f"{TOKENS} {told}\n(a) Find the attention scores of token 1.")) == {"a": scores}


def test_all_outputs_at_once():
    found = by_hand.recognised(
        "x1 = [1, 0, 2], x2 = [0, 1, 1]. Wq = [[1, 0], [0, 1], [1, 1]], Wk = [[1, 1], [0, 1], [1, 0]], Wv = [[2, 0], "
        "[0, 2], [1, 1]]. (a) Compute queries, keys and values with q = x W_q. (b) Compute softmax(QK^T/sqrt(2))V."
    )
    assert known(found)["b"] == "y_1 = (3.9575, 2.0142); y_2 = (3.4133, 2.1956)"
    assert found is not None
    assert found[1].check("b", "y_1 = (3.957, 2.014), y_2 = (3.413, 2.196)")


@pytest.mark.parametrize(
    "told", ["There are two heads.", "Biases are b_Q = (1, 1).", "Use a temperature of 2.", "Add positional encodings."]
)
def test_what_no_instance_can_say(told):
    assert by_hand.recognised(f"{TOKENS} {told}\n(a) Find the attention scores of token 1.") is None


@pytest.mark.slow
@pytest.mark.parametrize("family", [by_hand, scaling], ids=lambda family: family.NAME)
def test_own_questions_are_read_back_in_full(family):
    for name, make in family.PROBLEMS.items():
        for seed in range(12):
            problem = make(seed)
            own = {part.name: part.answer.text for part in problem.parts}
            assert known(family.recognised(as_text(problem))) == own, (name, seed)
