"""Shapes, blanks and changes of listings: every blank that is cut out of a whole listing comes back."""

from __future__ import annotations

import pytest

from qkv.exercises import Exercise, Given, solve
from qkv.exercises.solvers.tensors import execute

from ..listing_texts import MODULE, STEP


def solved(quantity: str, target: str, givens: list[Given], options: tuple[str, ...] = (), **fields):
    listed = [{"label": str(place), "text": text} for place, text in enumerate(options, 1)]
    asked = {"quantity": quantity, "object": target, "options": listed, **fields}
    return solve(Exercise.from_plain({"givens": [given.model_dump() for given in givens], "asked": [asked]})).parts[0]


def listing(text: str) -> list[Given]:
    return [Given(role="listing", value=text)]


CUTS = (
    ("self.d_k = ", "d_model // num_heads"), ("self.W_q = ", "nn.Linear(d_model, d_model)"),
    ("self.W_k = nn.Linear(d_model, ", "d_model"), ("torch.matmul(", "Q"), ("torch.matmul(Q, ", "K.transpose(-2, -1)"),
    ("math.sqrt(", "self.d_k"), ("probs = ", "torch.softmax(scores, dim=-1)"), ("probs = torch.", "softmax"),
    ("torch.softmax(scores, dim=", "-1"), ("torch.matmul(probs, ", "V"), ("length, ", "self.num_heads"),
    ("self.num_heads, ", "self.d_k"), (".transpose(", "1"), ("view(batch, length, ", "self.d_model"),
    ("Q = ", "self.split_heads(self.W_q(Q))"), ("K = self.split_heads(", "self.W_k(K)"),
    ("V = self.split_heads(self.", "W_v"), ("V = self.split_heads(self.W_v(", "V"), ("return self.", "W_o"),
    ("return self.W_o(", "self.join_heads(mixed)"),
)  # fmt: skip


@pytest.mark.parametrize(("before", "piece"), CUTS)
def test_a_blank_of_the_module_comes_back(before: str, piece: str):
    place = MODULE.rindex(before + piece) if before == "view(batch, length, " else MODULE.index(before + piece)
    text = f"{MODULE[:place]}{before}___(a)___{MODULE[place + len(before) + len(piece) :]}"
    part = solved("blank", "a", listing(text))
    assert part.answer is not None, part.refusal
    assert part.answer.text == piece


OPTIONS = {
    "A": ("[h, q]", "[h, d, q]", "[d, q]"),
    "B": ("[d, k]", "[h, d, k]", "[h, k]"),
    "C": (
        'torch.einsum("bd,dq->bhq", x, W_q)',
        'torch.einsum("bd,hdq->bhq", x, W_q)',
        'torch.einsum("bhd,dq->bhq", x, W_q)',
    ),
    "D": (
        'torch.einsum("bd,hdk->bhk", x, W_k)',
        'torch.einsum("bd,dk->bk", x, W_k)',
        'torch.einsum("bd,dk->bhk", x, W_k)',
    ),
}
RIGHT = {"A": "2", "B": "1", "C": "2", "D": "2"}


@pytest.mark.parametrize("letter", OPTIONS)
def test_options_for_the_blanks_of_a_step(letter: str):
    text = STEP.replace("W_q: a tensor with shape [h, d, q]", "W_q: a tensor with shape ____A____")
    text = text.replace("W_k: a tensor with shape [d, k]", "W_k: a tensor with shape ____B____")
    text = text.replace('torch.einsum("bd,hdq->bhq", x, W_q)', "_____C_____").replace(
        'torch.einsum("bd,dk->bk", x, W_k)', "_____D_____"
    )
    part = solved("blank", letter, listing(text), OPTIONS[letter])
    assert part.answer is not None, part.refusal
    assert part.answer.value == RIGHT[letter]


def test_an_einsum_and_a_shape_follow_from_each_other():
    part = solved(
        "blank",
        "c",
        listing(STEP.replace('"bhk,bnk->bhn"', '"____c____"').replace("q, new_K)", "q, new_K) # [b, h, n+1]")),
    )
    assert part.answer is not None, part.refusal
    filled = STEP.replace("bhk,bnk->bhn", part.answer.text)
    assert not execute(filled).misfits
    shape = solved(
        "blank", "W", listing(STEP.replace("W_o: a tensor with shape [h, v, d]", "W_o: a tensor with shape ____W____"))
    )
    assert shape.answer is not None, shape.refusal
    assert shape.answer.text == "[h, v, d]"


def test_a_blank_that_is_not_settled_is_refused():
    part = solved("blank", "a", listing("y = torch.matmul(x, ___(a)___)"))
    assert part.answer is None


@pytest.mark.parametrize("factor", [2, 5])
def test_changes_make_the_listing_fit_again(factor: int):
    change = {"symbol": "W_v", "role": "out_features", "value": f"{factor}*d_model"}
    part = solved("listing_changes", "", listing(MODULE), changes=[change])
    assert part.answer is not None, part.refusal
    assert part.answer.items["W_o"].text == f"nn.Linear({factor}*d_model, d_model)"
    changed = MODULE.replace(
        "self.W_v = nn.Linear(d_model, d_model)", f"self.W_v = nn.Linear(d_model, {factor}*d_model)"
    )
    assert execute(changed).misfits
    changed = changed.replace("self.W_o = nn.Linear(d_model, d_model)", f"self.W_o = {part.answer.items['W_o'].text}")
    changed = changed.replace("length, self.d_model)", f"length, {factor}*self.d_model)")
    split = MODULE[MODULE.index("    def split_heads") : MODULE.index("    def join_heads")]
    values = split.replace("split_heads", "split_values").replace("self.d_k)", f"{factor}*self.d_k)")
    changed = changed.replace(split, split + values).replace("V = self.split_heads", "V = self.split_values")
    assert not execute(changed).misfits
    assert any(
        name.startswith("split_heads") and f"{factor}*d_k" in item.text for name, item in part.answer.items.items()
    )


def sizes(**names: str) -> list[Given]:
    return [Given.model_validate({"role": role, "symbol": name}) for role, name in names.items()]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("Q", "[B, H, N, D/H]"), ("scores", "[B, H, N, M]"), ("concatenated heads", "[B, N, D]"), ("W_O", "[D, D]"),
        ("softmax(Q K^T) V", "[B, H, N, D/H]"), ("K cache", "[B, H, M, D/H]"),
    ],
)  # fmt: skip
def test_tensors_of_attention(target: str, expected: str):
    part = solved("shape", target, sizes(batch="B", length="N", keys_length="M", width="D", heads="H"))
    assert part.answer is not None, part.refusal
    assert part.answer.text == expected


def test_shapes_of_expressions_layers_and_listings():
    tensors = [Given(symbol="Q", role="query", shape=(2, 3, 5, 7)), Given(symbol="K", role="key", shape=(2, 3, 11, 7))]
    for code in ("Q K^T", "Q @ K.transpose(-2, -1)", 'torch.einsum("bhnd,bhmd->bhnm", Q, K)'):
        part = solved("shape", code, tensors)
        assert part.answer is not None, part.refusal
        assert part.answer.text == "[2, 3, 5, 11]"
    layer = solved("shape", "nn.Linear(512, 64).weight", []).answer
    assert layer is not None
    assert layer.text == "[64, 512]"
    found = solved("shape", "logits", listing(STEP)).answer
    assert found is not None
    assert found.text == "[b, h, n + 1]"
    assert solved("shape", "Q K", tensors).answer is None


def test_heads_must_divide_the_width():
    assert solved("head_width", "", [Given(role="width", value=35), Given(role="heads", value=5)]).answer.value == 7  # pyright: ignore[reportOptionalMemberAccess]
    assert solved("head_width", "", [Given(role="width", value=35), Given(role="heads", value=4)]).answer is None
