"""Ranks that disagree all raise an error at once, and can go on."""

import time

import pytest
import torch

import qkv
from qkv.masks import Mask
from qkv.parallel.consensus import mask_text, similarity_text, value_text
from tests.helpers.ranks import SIZE, JobFailed, RankPool

LENGTH = 7
TOTAL = SIZE * LENGTH
SOON = 5.0  # seconds; a sixth of the timeout


def call(mesh, rank_options=(), sizes=(), learns=(), dtype=torch.float32):
    """One call; options, sizes and gradients of some ranks differ."""
    rank = mesh.get_local_rank()
    shape = {"batch": 1, "heads_q": 6, "heads_kv": 3, "width": 5, "width_v": 11} | dict(dict(sizes).get(rank, {}))
    begin = time.monotonic()
    heads = shape["heads_q"], shape["heads_kv"], shape["heads_kv"]
    widths = shape["width"], shape["width"], shape["width_v"]
    own = dict(dict(rank_options).get(rank, {}))
    tensors = [
        torch.ones(shape["batch"], h, LENGTH, width, dtype=own.get("dtype", dtype))
        for h, width in zip(heads, widths, strict=True)
    ]
    own.pop("dtype", None)
    for place in dict(learns).get(rank, ()):
        tensors[place].requires_grad_()
    try:
        qkv.parallel.attention(*tensors, mesh=mesh, **own)
    except qkv.errors.QkvError as error:
        raised = error
    else:
        raised = None
    seconds = time.monotonic() - begin
    again = qkv.parallel.attention(*(torch.ones(1, 1, LENGTH, 2) for _ in range(3)), mesh=mesh)
    assert isinstance(again, torch.Tensor)
    torch.testing.assert_close(again, torch.ones(1, 1, LENGTH, 2))
    return type(raised).__name__, str(raised), seconds


def drawn(seed: int) -> torch.Tensor:
    return torch.rand(TOTAL, TOTAL, generator=torch.Generator().manual_seed(seed)) < 0.5


def nearer(batch, head, query, key):
    return abs(query - key) < 3


def further(batch, head, query, key):
    return abs(query - key) < 4


further.__qualname__ = nearer.__qualname__  # distinguished by its code
BIAS = torch.zeros(LENGTH, TOTAL)
DIFFERENCES = {
    "similarity": ({"similarity": qkv.Argmax()}, "similarity: Softmax(", "Argmax()"),
    "scale": ({"similarity": qkv.Softmax(scale=0.25)}, "similarity: Softmax(scale=None", "scale=0.25"),
    "mask": ({"mask": qkv.Causal()}, "mask: None", "Causal("),
    "dtype": ({"dtype": torch.float64}, "dtype: float32", "float64"),
    "dropout": ({"dropout": 0.5}, "dropout: 0.0", "0.5"),
    "backend": ({"backend": "reference"}, "backend: auto", "reference"),
    "split": ({"split": "gather"}, "split: auto", "gather"),
    "lse": ({"return_lse": True}, "returns: lse False", "lse True"),
    "weights": ({"return_weights": True}, "returns: lse False, weights False", "weights True"),
    "bias": ({"bias": BIAS}, "bias: None", "float32"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_named_on_every_rank(pool: RankPool, name: str) -> None:
    options, usual, other = DIFFERENCES[name]
    for rank, (kind, message, seconds) in enumerate(pool.run(call, SIZE, rank_options={2: options})):
        assert kind == "Disagreement", message
        assert message.startswith(f"axis 'ranks', rank {rank}: the ranks have different arguments. {usual}")
        assert "on ranks 0, 1, 3" in message
        assert f"{other}" in message.split("on ranks 0, 1, 3")[1]
        assert "on rank 2" in message
        assert seconds < SOON


def test_contents_of_masks_are_compared(pool: RankPool) -> None:
    pairs: list[tuple[Mask, Mask]] = [
        (qkv.Dense(drawn(1)), qkv.Dense(drawn(2))),
        (qkv.Padding([TOTAL]), qkv.Padding([TOTAL - 1])),
        (qkv.Causal() & qkv.Window(left=3), qkv.Causal() & qkv.Window(left=4)),
        (qkv.Causal() | qkv.Window(left=3, right=0), qkv.Causal() & qkv.Window(left=3, right=0)),
    ]
    for one, other in pairs:
        options = {rank: {"mask": other if rank == 1 else one} for rank in range(SIZE)}
        for kind, message, _ in pool.run(call, SIZE, rank_options=options):
            assert kind == "Disagreement", (one, other)
            assert ". mask: " in message
        options = {rank: {"mask": one} for rank in range(SIZE)}  # equal masks are accepted
        assert {kind for kind, _, _ in pool.run(call, SIZE, rank_options=options)} == {"NoneType"}


@pytest.mark.parametrize(
    ("sizes", "difference"),
    [
        ({"batch": 2}, "batch: 1 on ranks 0, 1, 2, 2 on rank 3"),
        ({"heads_q": 9}, "heads: 6 of queries, 3 of keys and values on ranks 0, 1, 2, 9 of queries"),
        ({"heads_kv": 2}, "heads: 6 of queries, 3 of keys and values on ranks 0, 1, 2, 6 of queries, 2 of"),
        ({"width": 7}, "width: 5, values 11 on ranks 0, 1, 2, 7, values 11 on rank 3"),
        ({"width_v": 2}, "width: 5, values 11 on ranks 0, 1, 2, 5, values 2 on rank 3"),
    ],
)
def test_sizes_that_differ(pool: RankPool, sizes, difference: str) -> None:
    for kind, message, seconds in pool.run(call, SIZE, sizes={3: sizes}):
        assert kind == "Disagreement"
        assert difference in message
        assert seconds < SOON


def test_gradients_that_differ(pool: RankPool) -> None:
    for kind, message, _ in pool.run(call, SIZE, learns={0: (0, 2)}):
        assert kind == "Disagreement"
        assert "gradients: query, value on rank 0, none on ranks 1, 2, 3" in message


def test_a_rank_that_refuses_its_own_arguments(pool: RankPool) -> None:
    found = pool.run(call, SIZE, rank_options={2: {"dropout": 1.5}})
    for rank, (kind, message, seconds) in enumerate(found):
        if rank == 2:
            assert kind == "OptionError"
            assert message.startswith("dropout: got 1.5")
        else:
            assert kind == "Disagreement"
            assert message.startswith(
                f"axis 'ranks', rank {rank}: rank 2 refused the call: OptionError: dropout: got 1.5"
            )
        assert seconds < SOON


def skip_one(mesh):
    rank, found = mesh.get_local_rank(), []
    tensor = torch.ones(1, 1, 3, 2)
    for turn in range(4):
        if (turn, rank) == (1, 2):
            continue
        try:
            qkv.parallel.attention(tensor, tensor, tensor, mesh=mesh, mask=qkv.Window(left=turn, offset=0))
        except qkv.errors.Disagreement as error:
            found.append((turn, str(error)))
    if rank == 2:  # the call that it skipped
        with pytest.raises(qkv.errors.Disagreement):
            qkv.parallel.attention(tensor, tensor, tensor, mesh=mesh, mask=qkv.Causal())
    return found


def test_a_call_that_a_rank_skipped(pool: RankPool) -> None:
    """From then on the rank is one call behind, and every pair of different calls raises an error."""
    for rank, found in enumerate(pool.run(skip_one, SIZE)):
        assert [turn for turn, _ in found] == ([2, 3] if rank == 2 else [1, 2, 3])
        assert all(". mask: Window(" in message and "on ranks 0, 1, 3" in message for _, message in found)


def forward_and_backward(mesh, odd, split):
    query, key, value = (torch.ones(1, 1, 3, 2, requires_grad=True) for _ in range(3))

    def attend() -> torch.Tensor:
        answer = qkv.parallel.attention(query, key, value, mesh=mesh, split=split)
        assert isinstance(answer, torch.Tensor)
        return answer

    out = attend()
    message, begin = "", time.monotonic()
    try:
        attend() if mesh.get_local_rank() == odd else out.sum().backward()
    except qkv.errors.Disagreement as error:
        message = str(error)
    seconds = time.monotonic() - begin
    attend().sum().backward()
    return message, seconds


@pytest.mark.parametrize(("odd", "split"), [(0, "ring"), (3, "gather")])
def test_one_rank_in_the_forward_pass_and_the_others_in_the_backward_pass(pool: RankPool, odd: int, split: str) -> None:
    others = ", ".join(str(rank) for rank in range(SIZE) if rank != odd)
    for message, seconds in pool.run(forward_and_backward, SIZE, odd=odd, split=split):
        assert f"attention on rank {odd}" in message
        assert "the backward pass of call" in message
        assert f"on ranks {others}" in message
        assert "dtype" not in message
        assert seconds < SOON


def two_backwards(mesh):
    tensors = [torch.ones(1, 1, 3, 2, requires_grad=True) for _ in range(2)]
    outs = [qkv.parallel.attention(t, t, t, mesh=mesh) for t in tensors]
    outs = outs if mesh.get_local_rank() else outs[::-1]
    for out in outs:
        out.sum().backward()  # pyright: ignore[reportAttributeAccessIssue]


def test_backward_passes_in_another_order(pool: RankPool) -> None:
    for answer in pool.run_or_errors(two_backwards, SIZE):
        assert isinstance(answer, JobFailed)
        assert answer.kinds[0] == "Disagreement"
        assert "call: the backward pass of call" in answer.message


def test_texts_are_equal_for_equal_values() -> None:
    assert value_text(nearer) == value_text(nearer) != value_text(further)
    assert value_text(lambda x: x + 1) != value_text(lambda x: x - 1)

    def closing(number: float):
        return lambda x: x + number

    assert value_text(closing(1)) == value_text(closing(1)) != value_text(closing(2))
    assert "0x" not in value_text(closing(object()))  # pyright: ignore[reportArgumentType]
    random = qkv.features.positive_random
    texts = [similarity_text(qkv.FeatureMap(random(width=5, count=11, seed=seed))) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert mask_text(qkv.Dense(drawn(1))) == mask_text(qkv.Dense(drawn(1).numpy())) != mask_text(qkv.Dense(drawn(2)))
    assert mask_text(None) == "None"
