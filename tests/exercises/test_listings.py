"""Reading listings, whole and damaged, and the shapes in them against PyTorch."""

from __future__ import annotations

import pytest
import torch

from qkv.exercises.listings import marked, read, shape_of, size_of
from qkv.exercises.solvers.tensors import execute, shown

from .listing_texts import METHOD, MODULE, STEP


@pytest.mark.parametrize(
    ("text", "label"),
    [("x = ___(a)___", "a"), ("x = ____B____", "B"), ("f([BLANK])", "1"), ("f(x, ?)", "1"), ("y = ______", "1")],
)
def test_blanks_become_names(text: str, label: str):
    assert read(text).blanks == (label,)
    assert f"BLANK_{label}" in marked(text)


def test_damaged_listings_read_as_the_whole_ones():
    whole = execute(STEP).shapes
    glued = "\n".join(line.replace("11    q", "11q").replace("def ", "def") for line in STEP.splitlines())
    flat = "\n".join(" ".join(line.split()) for line in STEP.splitlines())
    assert execute(glued).shapes == whole
    assert execute(flat).shapes == whole
    module = MODULE.replace("class Attention", "classAttention").replace("def forward", "defforward")
    assert execute(module).shapes == execute(MODULE).shapes


def test_sizes_and_shapes():
    assert size_of("d//h") == size_of("d / h")
    assert size_of("2*(n + 1)") == size_of("2n + 2")
    assert size_of("n +") is None
    assert shape_of("[b, n+1, 2*d]") is not None
    assert shape_of("(b, ...)") is None


def test_nothing_misfits_in_whole_listings():
    for text in (MODULE, STEP, METHOD):
        assert not execute(text).misfits


@pytest.mark.parametrize(
    "code",
    [
        "x.view(3, 5, 7, 11).transpose(1, 2)",
        "x.unsqueeze(1)",
        "x[:, None, :, :]",
        "x.permute(2, 0, 1)",
        "x @ w",
        "torch.cat([x, x], dim=1)",
        "torch.einsum('bnd,dk->bkn', x, w)",
        "x.sum(dim=1, keepdim=True)",
        "x.reshape(15, -1)",
        "torch.softmax(x @ x.transpose(-2, -1), dim=-1) @ x",
        "x.transpose(0, 2).mT",
        "x.mean(dim=-1)",
    ],
)
def test_shapes_of_operations_against_torch(code: str):
    x, w = torch.zeros(3, 5, 77), torch.zeros(77, 13)
    expected = eval(code, {"torch": torch, "x": x, "w": w})
    run = execute(f"y = {code}", {"x": (3, 5, 77), "w": (77, 13)})
    assert not run.misfits
    assert shown(run.shapes["y"]) == str(list(expected.shape))


@pytest.mark.parametrize(
    "code", ["x @ x", "x.view(2, 2)", "torch.einsum('bnd,nk->bk', x, w)", "torch.cat([x, w], dim=0)"]
)
def test_what_does_not_fit_is_found(code: str):
    assert execute(f"y = {code}", {"x": (3, 5, 77), "w": (77, 13)}).misfits
