"""What a text gives is found with its role; what is not certain has the role "other"."""

import random
import time

import pytest

from qkv.exercises.sheets.givens import find_definitions, find_givens


def found(text: str, context: str = "") -> list[tuple[object, ...]]:
    return [(given.role, given.symbol, given.value) for given in find_givens(text, context)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"Let $q = (1, 2)$, $k_1 = [1, 0]^T$, $k_2 = [0, 3]^T$.",
         [("query", "q", [1, 2]), ("key", "k", [[1, 0], [0, 3]])]),
        ("attention on x1 = (1, 2), x2 = (0, 1/2)", [("tokens", "x", [[1, 2], [0, "1/2"]])]),
        (r"$\mathbf{Q} = \mathbf{K} = \begin{bmatrix} 1 & 0 \\ 0 & 5 \end{bmatrix}$",
         [("query", "Q", [[1, 0], [0, 5]]), ("key", "K", [[1, 0], [0, 5]])]),
        (r"$W^Q = W^K = I_2$", [("query_weight", "W_Q", [[1, 0], [0, 1]]), ("key_weight", "W_K", [[1, 0], [0, 1]])]),
        ("W_V = [1 0; 0 3]", [("value_weight", "W_V", [[1, 0], [0, 3]])]),
        ("V = np.array([[1, 2], [3, 4]])", [("value", "V", [[1, 2], [3, 4]])]),
        ("Keys: (1, 0), (0, 1) and (1, 1). Values: {[\n2\n3\n],\n[\n5\n7\n]}",
         [("key", "", [[1, 0], [0, 1], [1, 1]]), ("value", "", [[2, 3], [5, 7]])]),
        ("the query q=\n5\n-1\nis used", [("query", "q", [5, -1])]),
        ("the scores [1, 2, 5]", [("scores", "", [1, 2, 5])]),
        ("layer normalisation of x = [1, 2, 6]", [("input", "x", [1, 2, 6])]),
        ("J = [[1, 2], [3, 4]]", [("other", "J", [[1, 2], [3, 4]])]),
        ("the mask M = [[1, 0], [1, 1]]", [("mask", "M", [[1, 0], [1, 1]])]),
    ],
)  # fmt: skip
def test_arrays(text: str, expected: list[tuple[object, ...]]) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(
    ("text", "role", "symbol", "value"),
    [
        (r"$d_\text{model} = 640$", "width", "d_model", 640),
        ("L = 11 layers", "layers", "L", 11),
        ("$h = 7$ heads", "heads", "h", 7),
        ("with 7 heads of size 48", "head_width", "", 48),
        ("5 KV heads", "kv_heads", "", 5),
        ("key/value heads: 5", "kv_heads", "", 5),
        ("d_k=48", "head_width", "d_k", 48),
        ("a vocabulary of 31,000", "vocabulary", "", 31000),
        ("a context of 6k tokens", "length", "", 6000),
        ("a context length of 6144", "length", "", 6144),
        ("a 7-token input", "length", "", 7),
        ("batch size 24", "batch", "", 24),
        ("N tokens", "length", "N", None),
        ("D-dimensional embeddings", "width", "D", None),
        ("$h$ heads", "heads", "h", None),
        ("a 13B-parameter model", "parameters", "", 13 * 10**9),
        ("trained on 3T tokens", "training_tokens", "", 3 * 10**12),
        ("24 experts", "experts", "", 24),
        ("top-3 routing", "active_experts", "", 3),
        ("2 shared experts", "shared_experts", "", 2),
        ("d_ff = 1,408", "ff_width", "d_ff", 1408),
        ("an FFN hidden size of 1408", "ff_width", "", 1408),
        ("a sliding window of 96 tokens", "window", "", 96),
        ("temperature 3", "temperature", "", 3),
        ("epsilon = 1e-6", "epsilon", "epsilon", 1e-6),
        ("a polynomial kernel of degree 3", "degree", "", 3),
        ("position 5", "position", "", 5),
        ("on a 4x8 slice", "chips", "", "4x8"),
        ("24 GPUs", "chips", "", 24),
        ("num_groups = 3", "groups", "num_groups", 3),
        (r"$2^{12}$ tokens", "length", "", 4096),
        ("5e9 parameters", "parameters", "", 5 * 10**9),
    ],
)  # fmt: skip
def test_sizes(text: str, role: str, symbol: str, value: object) -> None:
    assert (role, symbol, value) in found(text)


@pytest.mark.parametrize(
    ("text", "role", "value", "unit"),
    [
        ("197 TFLOP/s", "rate", 197, "TFLOP/s"),
        ("989 TFLOPS", "rate", 989, "TFLOPS"),
        ("1.6 TB/s of bandwidth", "bandwidth", 1.6, "TB/s"),
        ("NVLink at 450 GB/s", "link", 450, "GB/s"),
        ("24 GB of HBM", "memory", 24, "GB"),
        ("at 35% MFU", "utilisation", 35, "%"),
        ("20 ms per step", "seconds", 20, "ms"),
    ],
)
def test_machine_figures(text: str, role: str, value: object, unit: str) -> None:
    assert (role, value, unit) in [(given.role, given.value, given.unit) for given in find_givens(text)]


SIZES = ["of dimension 96", "of size 96", "of width 96", "each of dimension 96", "with a head dimension of 96"]
HEADS = [("KV", "kv_heads"), ("key/value", "kv_heads"), ("", "heads"), ("attention", "heads"), ("query", "heads")]


@pytest.mark.parametrize("size", [*SIZES, "of head dimension 96", "with dimension 96 each"])
@pytest.mark.parametrize(("heads", "role"), HEADS)
def test_heads_and_their_width(heads: str, role: str, size: str) -> None:
    assert [(given.role, given.value) for given in find_givens(f"A layer has 5 {heads} heads {size}.")] == [
        (role, 5),
        ("head_width", 96),
    ]


def test_ambiguous_letters_are_other_without_words() -> None:
    for letter in "nNKDTBS":
        assert found(f"Let {letter} = 5.") == [("other", letter, 5)]
    assert found("The sequence length is N = 5.") == [("length", "N", 5)]
    assert ("width", "d", 96) in found("A transformer has L = 3 layers and d = 96.")


def test_tables_of_hyperparameters() -> None:
    table = (
        "| hyperparameter | value |\n|---|---|\n| n_layers (L) | 12 |\n"
        "| d_model (D) | 1,280 |\n| n_kv_heads (K) | 5 |\n"
        "| Vocabulary size | 31,000 |\n| colour | 3 |"
    )
    assert found(table) == [
        ("layers", "L", 12),
        ("width", "D", 1280),
        ("kv_heads", "K", 5),
        ("vocabulary", "Vocabulary size", 31000),
        ("other", "colour", 3),
    ]
    assert [role for role, *_ in found("| layers | heads | d_model |\n|---|---|---|\n| 3 | 5 | 70 |")] == [
        "layers",
        "heads",
        "width",
    ]
    lines = "- Hidden size: 70\n- Number of layers: 3\n- Attention heads: 5\n"
    assert found(lines) == [("width", "", 70), ("layers", "", 3), ("heads", "", 5)]


@pytest.mark.parametrize(
    ("text", "laws"),
    [
        (r"$q, k \sim \mathcal{N}(0, I_d)$", {"q": "N(0, I)", "k": "N(0, I)"}),
        ("vectors withq,k iid∼N(µ,σ 2I)", {"q": "N(mu, sigma^2 I)", "k": "N(mu, sigma^2 I)"}),
        ("The components of q and k are independent with mean 0 and variance 3.",
         {"q": "iid mean 0 variance 3", "k": "iid mean 0 variance 3"}),
        ("Entries of q and k are i.i.d., zero mean, unit variance.",
         {"q": "iid mean 0 variance 1", "k": "iid mean 0 variance 1"}),
        ("Let q and k have i.i.d. entries, uniform on [-2, 2].", {"q": "uniform(-2, 2)", "k": "uniform(-2, 2)"}),
        ("Let x be a standard normal vector.", {"x": "N(0, I)"}),
    ],
)  # fmt: skip
def test_laws(text: str, laws: dict[str, str]) -> None:
    assert {given.symbol: given.law for given in find_givens(text) if given.role == "law"} == laws


def test_shapes_of_symbols() -> None:
    shapes = {
        given.symbol: given.shape
        for given in find_givens(r"$X \in \mathbb{R}^{n \times 5}$ and $W_Q, W_K \in \mathbb{R}^{5 \times d}$")
    }
    assert shapes == {"X": ("n", 5), "W_Q": (5, "d"), "W_K": (5, "d")}


def test_formats_machines_and_models() -> None:
    givens = find_givens("Llama-2 7B on an A100 80GB with weights in int4 and the KV cache in fp8, unlike GPT-2 XL.")
    assert [(given.role, given.value, given.of) for given in givens] == [
        ("model", "Llama-2 7B", ""), ("machine", "A100 80GB", ""), ("dtype", "int4", "weights"),
        ("dtype", "fp8", "cache"),
    ]  # fmt: skip


def test_supposed_figures_are_changes() -> None:
    givens = find_givens(
        "With h = 7 heads, what if one reduced the number of KV heads to 1? And if you increased $h$ to 14?"
    )
    assert [(given.role, given.value, given.of) for given in givens] == [
        ("heads", 7, ""),
        ("kv_heads", 1, "change"),
        ("heads", 14, "change"),
    ]


def test_context_gives_what_the_text_does_not() -> None:
    givens = find_givens("Now with 3 heads.", "A model with 5 heads and 7 layers.")
    assert [(given.role, given.value, given.span is None) for given in givens] == [
        ("heads", 3, False),
        ("layers", 7, True),
    ]


def test_listings_are_kept_and_interpreted() -> None:
    code = "n_heads = 2\nX = np.arange(6).reshape(2, 3)\nexpected_output = [1]"
    givens = find_givens(f"Run attention.\n\n```python\n{code}\n```\n")
    assert [(given.role, given.symbol) for given in givens] == [("listing", ""), ("heads", "n_heads"), ("tokens", "X")]
    assert givens[0].value == code


def test_definitions() -> None:
    text = r"Let $C = \mathrm{softmax}(QK^\top/\sqrt{d})V$ where $q_i = W_Q^T x_i$ and $d = 5$, $W = [1, 2]$."
    assert [each.text for each in find_definitions(text)] == [r"C = softmax(QK^T/\sqrt{d})V", "q_i = W_Q^T x_i"]


def test_spans_quote_the_text() -> None:
    draw = random.Random(5)
    for _ in range(50):
        numbers = [draw.randrange(2, 900) for _ in range(4)]
        text = (
            rf"A model with ${numbers[0]}$ layers, \textbf{{{numbers[1]} heads}} and "
            rf"$\mathbf{{q}} = [{numbers[2]}, {numbers[3]}]$ "
            r"for $\mathbf{\mu}$."
        )
        quoted = {given.role: text[slice(*given.span)] for given in find_givens(text) if given.span}
        assert quoted["layers"] == str(numbers[0])
        assert quoted["heads"] == str(numbers[1])
        assert quoted["query"].endswith(f"[{numbers[2]}, {numbers[3]}]")


@pytest.mark.slow
def test_long_texts_take_bounded_time() -> None:
    began = time.perf_counter()
    for text in (
        "x = " * 20_000,
        "q, k " * 20_000,
        "7 heads, " * 3000,
        "| a | 7 |\n" * 5000,
        "[" * 50_000,
        "mean " * 20_000,
    ):
        find_givens(text)
    assert time.perf_counter() - began < 15
