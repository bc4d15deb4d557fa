"""qkv.attention: worked examples, dimensions, results, derivatives and tracing."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import qkv
from qkv import features, masks
from qkv.cli.tour import worked_example

FOUR = {
    "softmax": qkv.Softmax(),
    "argmax": qkv.Argmax(),
    "polynomial": qkv.Polynomial(),
    "features": qkv.FeatureMap(features.elu1),
}


def inputs(dtype=torch.float64, *, batch=2, heads=6, kv=3, len_q=5, len_k=7, width=11, width_v=13, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, heads, len_q, width), (batch, kv, len_k, width), (batch, kv, len_k, width_v))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def test_three_tokens_by_hand() -> None:
    example = worked_example()
    # The second query's last coordinate is −2: 2·(−1) − 3·0. A printed solution has it as +2.
    assert example["queries"] == [[2, 3, -5], [-1, 0, -2], [1, -2, 8]]
    assert example["keys"] == [[-6, 0, 1], [0, 0, 1], [4, 0, -3]]
    assert example["values"] == [[16, 27], [-8, 0], [8, -18]]
    assert example["scores"][2] == [2, 8, -20]
    assert example["unscaled"]["weights"] == pytest.approx([0.00247, 0.99753, 6.90e-13], rel=2e-3)
    assert example["unscaled"]["output"] == pytest.approx([-7.94, 0.067], abs=5e-3)
    assert example["scaled"]["output"] == pytest.approx([-7.27, 0.82], abs=5e-3)


def test_argmax_by_hand() -> None:
    query = torch.tensor([[1.0, 1.0, 2.0]])
    key = torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 4.0], [5.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    value = torch.tensor([[2.0, 0.0, 1.0], [1.0, 4.0, 3.0], [0.0, -1.0, 4.0], [1.0, 0.0, -1.0]])
    out = qkv.attention(query, key, value, similarity=qkv.Argmax())
    assert out.tolist() == [[1.0, 4.0, 3.0]]


def test_quadratic_kernel_can_vanish() -> None:
    query, key = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0], [-1.0, 3.0]])
    assert qkv.attention(query, key, torch.ones(2, 5), similarity=qkv.Polynomial()).tolist() == [[0.0] * 5]


@pytest.mark.parametrize("name", FOUR)
def test_polynomial_is_its_feature_map_and_dimensions_agree(name: str) -> None:
    query, key, value = inputs(heads=1, kv=1)
    whole = qkv.attention(query, key, value, similarity=FOUR[name])
    three = qkv.attention(query[:, 0], key[:, 0], value[:, 0], similarity=FOUR[name])
    two = qkv.attention(query[1, 0], key[1, 0], value[1, 0], similarity=FOUR[name])
    assert three.shape == (2, 5, 13)
    assert two.shape == (5, 13)
    torch.testing.assert_close(whole[:, 0], three)
    torch.testing.assert_close(three[1], two)


@pytest.mark.parametrize(("degree", "offset"), [(1, 1.0), (2, 1.0), (2, 0.0), (3, 0.5), (4, 2.0)])
def test_polynomial_equals_its_features(degree: int, offset: float) -> None:
    query, key, value = inputs()
    one = qkv.attention(query, key, value, similarity=qkv.Polynomial(degree, offset))
    other = qkv.attention(query, key, value, similarity=qkv.FeatureMap(features.polynomial(degree, offset)))
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dims", [2, 3, 4])
def test_what_is_returned_and_in_which_order(dims: int) -> None:
    query, key, value = inputs()
    cut = {4: lambda t: t, 3: lambda t: t[:, 0], 2: lambda t: t[0, 0]}[dims]
    query, key, value = cut(query), cut(key), cut(value)
    rows = query.shape[:-1]
    out, lse, weights = qkv.attention(query, key, value, return_lse=True, return_weights=True)
    assert (out.shape, lse.shape, weights.shape) == ((*rows, 13), rows, (*rows, 7))
    only_lse = qkv.attention(query, key, value, return_lse=True)
    only_weights = qkv.attention(query, key, value, return_weights=True)
    assert [len(only_lse), len(only_weights)] == [2, 2]
    torch.testing.assert_close(only_lse[1], lse)
    torch.testing.assert_close(only_weights[1], weights)
    torch.testing.assert_close(weights.sum(-1), torch.ones(rows, dtype=weights.dtype))


def test_softcap_and_sink_by_their_definition() -> None:
    query, key, value = inputs(heads=2, kv=2)
    sink = torch.tensor([0.3, -1.0], dtype=torch.float64)
    scores = 3.0 * torch.tanh(query @ key.transpose(-1, -2) / math.sqrt(11) / 3.0)
    extended = torch.cat([scores, sink.reshape(1, 2, 1, 1).expand(2, 2, 5, 1)], dim=-1)
    expected = extended.softmax(-1)[..., :7] @ value
    for backend in ("reference", "blockwise"):
        out, lse = qkv.attention(
            query, key, value, similarity=qkv.Softmax(softcap=3.0, sink=sink), return_lse=True, backend=backend
        )
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(lse, extended.logsumexp(-1))


def test_a_number_for_a_sink_serves_every_head() -> None:
    query, key, value = inputs()
    one = qkv.attention(query, key, value, similarity=qkv.Softmax(sink=0.5))
    each = qkv.attention(query, key, value, similarity=qkv.Softmax(sink=torch.full((6,), 0.5, dtype=torch.float64)))
    assert torch.equal(one, each)


def test_any_similarity_is_the_general_equation() -> None:
    query, key, value = inputs()
    similarity = qkv.Similarity(lambda q, k: torch.exp(-torch.cdist(q, k)))
    sims = torch.exp(-torch.cdist(query, key.repeat_interleave(2, 1)))
    expected = sims @ value.repeat_interleave(2, 1) / sims.sum(-1, keepdim=True)
    for backend in ("reference", "blockwise", "auto"):
        torch.testing.assert_close(qkv.attention(query, key, value, similarity=similarity, backend=backend), expected)


def test_learned_similarities_learn_in_blocks_too() -> None:
    query, key, value = inputs(torch.float32)
    weight = torch.randn(11, 11, requires_grad=True)
    similarity = qkv.Similarity(lambda q, k: torch.exp((q @ weight) @ k.transpose(-1, -2) / 11))
    grads = []
    for backend in ("reference", "blockwise"):
        out = qkv.attention(query, key, value.requires_grad_(), similarity=similarity, backend=backend)
        grads.append(torch.autograd.grad(out.square().sum(), weight)[0])
    torch.testing.assert_close(*grads)
    assert grads[0].abs().max() > 0


class TestArgmaxLearnsValuesOnly:
    def test_gradients(self) -> None:
        for backend in ("reference", "argmax"):
            query, key, value = (t.requires_grad_() for t in inputs())
            out = qkv.attention(query, key, value, similarity=qkv.Argmax(), backend=backend)
            weights = qkv.attention(query, key, value, similarity=qkv.Argmax(), return_weights=True)[1]
            grad = torch.randn_like(out)
            dq, dk, dv = torch.autograd.grad(out, (query, key, value), grad)
            assert not dq.any()
            assert not dk.any()
            chosen = (weights.unflatten(1, (3, 2)).transpose(-1, -2) @ grad.unflatten(1, (3, 2))).sum(2)
            torch.testing.assert_close(dv, chosen)

    def test_a_step_of_descent_moves_values_and_nothing_else(self) -> None:
        query, key, value = (torch.nn.Parameter(t) for t in inputs())
        before = [t.detach().clone() for t in (query, key, value)]
        optimizer = torch.optim.SGD([query, key, value], lr=0.1)
        qkv.attention(query, key, value, similarity=qkv.Argmax()).square().sum().backward()
        optimizer.step()
        moved = [not torch.equal(t, b) for t, b in zip((query, key, value), before, strict=True)]
        assert moved == [False, False, True]


RECIPES = {
    "encoder": (masks.encoder(lengths=[4, 7]), 7),
    "decoder": (masks.decoder(), 7),
    "decoder, padded on the left": (masks.decoder(keep=torch.arange(7) >= torch.tensor([[2], [0]])), 7),
    "cross": (masks.cross(lengths=[4, 7]), 5),
}


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_leaks_through_the_three_recipes(recipe: str, backend: str) -> None:
    mask, len_q = RECIPES[recipe]
    query, key, value = inputs(heads=2, kv=1, len_q=len_q)
    extent = masks.Extent(2, 2, len_q, 7)
    resolved = mask.resolved(extent)

    def answer(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return qkv.attention(query, k, v, mask=mask, backend=backend).sum((1, 3))

    by_key, by_value = torch.autograd.functional.jacobian(answer, (key, value))
    reach = (by_key.abs().sum((3, 5)) + by_value.abs().sum((3, 5))) > 0  # (batch, query, batch, key)
    for b in range(2):
        assert not reach[b, :, 1 - b].any()
        for i in range(len_q):
            for j in range(7):
                assert bool(reach[b, i, b, j]) == resolved.allows(b, 0, i, j, extent)


GRADCHECK = {
    ("reference", "softmax"): qkv.Softmax(softcap=4.0),
    ("reference", "polynomial"): qkv.Polynomial(),
    ("reference", "features"): qkv.FeatureMap(features.elu1),
    ("sdpa", "softmax"): qkv.Softmax(),
    ("blockwise", "softmax"): qkv.Softmax(),
    ("blockwise", "softcap"): qkv.Softmax(softcap=4.0),
    ("blockwise", "polynomial"): qkv.Polynomial(),
}


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("case", GRADCHECK, ids="-".join)
def test_gradients_are_derivatives(case: tuple[str, str], dropout: float) -> None:
    similarity, backend = GRADCHECK[case], case[0]
    if backend == "sdpa" and dropout:
        pytest.skip("PyTorch's flash kernel has no dropout on the CPU")
    tensors = [t.requires_grad_() for t in inputs(heads=2, kv=1, len_q=3, len_k=5, width=2, width_v=3)]

    def answer(*t: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return qkv.attention(*t, similarity=similarity, backend=backend, mask=qkv.Causal(2), dropout=dropout)

    assert gradcheck(answer, tensors)
    # Dropout only scales weights, which one similarity shows as well as three. Along drawn directions: there
    # are many second derivatives.
    if backend == "reference" and (not dropout or case[1] == "softmax"):
        assert gradgradcheck(answer, tensors, fast_mode=True)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
def test_gradients_of_bias_sink_and_lse(backend: str) -> None:
    query, key, value = (t.requires_grad_() for t in inputs(heads=2, kv=1, len_q=3, len_k=5, width=2, width_v=3))
    bias = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def answer(q, k, v, b, s):
        similarity = qkv.Softmax(sink=s)
        return qkv.attention(
            q, k, v, bias=b, similarity=similarity, mask=qkv.Causal(2), return_lse=True, backend=backend
        )

    assert gradcheck(answer, (query, key, value, bias, sink))

    def sink_alone(s):
        return qkv.attention(
            query.detach(), key, value, similarity=qkv.Softmax(sink=s), mask=qkv.Causal(2), backend=backend
        )

    assert gradcheck(sink_alone, (sink,))


@pytest.mark.slow
def test_dropout_keeps_the_mean_and_follows_the_seed() -> None:
    query, key, value = inputs(torch.float32, len_q=64, len_k=64)
    for backend in ("reference", "blockwise"):
        torch.manual_seed(3)
        one = qkv.attention(query, key, value, dropout=0.25, backend=backend)
        torch.manual_seed(3)
        assert torch.equal(one, qkv.attention(query, key, value, dropout=0.25, backend=backend))
        many = torch.stack([qkv.attention(query, key, value, dropout=0.25, backend=backend) for _ in range(300)])
        spread = many.std(0) / math.sqrt(300)
        off = (many.mean(0) - qkv.attention(query, key, value)).abs() / spread
        assert off.mean() < 1.0
        assert not qkv.attention(query, key, value, dropout=1.0, backend=backend).any()


class TestVarlen:
    def test_documents_do_not_see_each_other(self) -> None:
        edges = torch.tensor([0, 4, 4, 9, 10])
        query, key, value = torch.randn(10, 6, 5), torch.randn(10, 3, 5), torch.randn(10, 3, 7)
        packed = qkv.varlen(query, key, value, edges, mask=qkv.Causal())
        together = qkv.attention(
            *(t.transpose(0, 1)[None] for t in (query, key, value)),
            mask=qkv.Causal() & qkv.Segments.from_cu_seqlens(edges),
        )
        torch.testing.assert_close(packed, together[0].transpose(0, 1))

    def test_queries_and_keys_packed_differently(self) -> None:
        query, key = torch.randn(5, 2, 3), torch.randn(9, 2, 3)
        packed = qkv.varlen(query, key, key, torch.tensor([0, 2, 5]), torch.tensor([0, 6, 9]))
        alone = qkv.attention(query[2:].transpose(0, 1), key[6:].transpose(0, 1), key[6:].transpose(0, 1))
        torch.testing.assert_close(packed[2:], alone.transpose(0, 1))

    @pytest.mark.parametrize(
        ("edges", "word"),
        [([0, 2, 4], "cu_seqlens_q"), ([1, 5], "cu_seqlens_q"), ([0, 3, 2, 5], "cu_seqlens_q"), ([], "cu_seqlens_q")],
    )
    def test_wrong_edges(self, edges: list[int], word: str) -> None:
        x = torch.randn(5, 2, 3)
        with pytest.raises(qkv.errors.MaskError, match=word):
            qkv.varlen(x, x, x, torch.tensor(edges, dtype=torch.int64))

    def test_wrong_rank_and_number_of_documents(self) -> None:
        x = torch.randn(5, 2, 3)
        with pytest.raises(qkv.errors.ShapeError, match="packed"):
            qkv.varlen(x[None], x, x, torch.tensor([0, 5]))
        with pytest.raises(qkv.errors.MaskError, match="documents"):
            qkv.varlen(x, x, x, torch.tensor([0, 5]), torch.tensor([0, 2, 5]))


class TestTracing:
    @pytest.mark.slow
    def test_compile_makes_one_graph_with_the_same_answer(self) -> None:
        """In a new process: the shape checks that tests switch on cannot be traced."""
        program = Path(__file__).parent / "helpers" / "compiled_program.py"
        done = subprocess.run([sys.executable, "-W", "ignore", program], capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, done.stderr[-3000:]
        expected = ["softmax", "sigmoid", "argmax", "polynomial", "features", "any", "compat", "poison", "gradient"]
        assert done.stdout.split() == expected

    def test_export(self) -> None:
        class Layer(torch.nn.Module):
            def forward(self, q, k, v):
                return qkv.attention(q, k, v, mask=qkv.Causal(2))

        query, key, value = inputs(torch.float32)
        program = torch.export.export(Layer(), (query, key, value))
        torch.testing.assert_close(program.module()(query, key, value), Layer()(query, key, value))

    @pytest.mark.parametrize("name", FOUR)
    def test_vmap_and_func(self, name: str) -> None:
        query, key, value = inputs(heads=3)
        similarity = FOUR[name]

        def one(q, k, v):
            return qkv.attention(q, k, v, similarity=similarity, mask=qkv.Causal(2))

        torch.testing.assert_close(torch.func.vmap(one)(query, key, value), one(query, key, value))
        forward = torch.func.jacfwd(lambda v: one(query[0, 0], key[0, 0], v))(value[0, 0])
        backward = torch.func.jacrev(lambda v: one(query[0, 0], key[0, 0], v))(value[0, 0])
        torch.testing.assert_close(forward, backward)

    def test_backends_that_read_numbers_are_refused_with_the_reason(self) -> None:
        query, key, value = inputs(heads=3)
        for backend, similarity in (("sdpa", qkv.Softmax()), ("argmax", qkv.Argmax())):
            with pytest.raises(qkv.errors.BackendRefused, match=r"torch\.func"):
                torch.func.vmap(
                    lambda q, k, v, f=backend, s=similarity: qkv.attention(q, k, v, backend=f, similarity=s)
                )(query, key, value)

    def test_autocast_does_not_change_the_arithmetic(self) -> None:
        query, key, value = inputs(torch.float32)
        for backend in ("reference", "blockwise", "sdpa"):
            plain = qkv.attention(query, key, value, backend=backend)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert torch.equal(qkv.attention(query, key, value, backend=backend), plain)


WRONG_FUNCTIONS = {
    "None": lambda q, k: None,
    "a number": lambda q, k: q.sum(),
    "float64": lambda q, k: (q @ k.transpose(-1, -2)).double(),
    "a wrong shape": lambda q, k: q,
    "booleans": lambda q, k: q @ k.transpose(-1, -2) > 0,
}


@pytest.mark.parametrize("name", WRONG_FUNCTIONS)
def test_similarity_functions_that_answer_something_else(name: str) -> None:
    query, key, value = inputs(torch.float32)
    for backend in ("reference", "blockwise"):
        with pytest.raises(qkv.errors.QkvError, match=r"function.*wanted"):
            qkv.attention(query, key, value, similarity=qkv.Similarity(WRONG_FUNCTIONS[name]), backend=backend)


@pytest.mark.parametrize(
    "phi", [lambda x: None, lambda x: x.sum(), lambda x: x.double(), lambda x: x[..., :0], lambda x: x[:, :, :1]]
)
def test_feature_maps_that_answer_something_else(phi) -> None:
    query, key, value = inputs(torch.float32)
    with pytest.raises(qkv.errors.QkvError, match=r"map.*wanted"):
        qkv.attention(query, key, value, similarity=qkv.FeatureMap(phi))


def test_a_default_device_does_not_matter() -> None:
    query, key, value = inputs(torch.float32)
    for mask in (qkv.Causal(2), qkv.Window(1, 1, offset=2), qkv.Padding(lengths=[3, 7]), qkv.Causal(2) | qkv.Causal(0)):
        for similarity in (*FOUR.values(), qkv.FeatureMap(features.polynomial(3))):
            expected = qkv.attention(query, key, value, similarity=similarity, mask=mask)
            with torch.device("meta"):
                assert torch.equal(qkv.attention(query, key, value, similarity=similarity, mask=mask), expected)


def test_a_sink_that_is_not_finite_means_the_same_in_every_backend() -> None:
    query, key, value = inputs()
    for sink in (float("inf"), float("nan"), float("-inf")):
        similarity = qkv.Softmax(sink=torch.full((6,), sink, dtype=torch.float64))
        answers = [
            qkv.attention(query, key, value, similarity=similarity, backend=backend)
            for backend in ("reference", "blockwise")
        ]
        torch.testing.assert_close(*answers, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"mask": qkv.Causal(2)}, {"similarity": qkv.Softmax(softcap=3.0, sink=0.5)}])
def test_second_derivatives_are_right_in_every_backend(options: dict) -> None:
    query, key, value = inputs(heads=2, kv=1, len_q=3, len_k=5, width=2, width_v=3)
    hessians = [
        torch.autograd.functional.hessian(
            lambda q, k, f=backend: qkv.attention(q, k, value, backend=f, **options).square().sum(), (query, key)
        )
        for backend in ("reference", "blockwise", "auto")
    ]
    for hessian in hessians[1:]:
        torch.testing.assert_close(hessian, hessians[0])
    assert hessians[0][0][1].abs().max() > 1e-3


@pytest.mark.parametrize(
    ("backend", "similarity"),
    [("sdpa", qkv.Softmax()), ("blockwise", qkv.Softmax()), ("blockwise", qkv.Softmax(softcap=3.0))],
)
def test_a_mask_that_changes_before_the_backward_pass_is_refused(backend: str, similarity) -> None:
    query, key, value = (t.requires_grad_() for t in inputs())
    buffer = torch.ones(5, 7).tril().bool()
    out = qkv.attention(query, key, value, mask=qkv.Dense.borrowed(buffer), similarity=similarity, backend=backend)
    buffer.fill_(True)
    with pytest.raises(qkv.errors.MaskError, match="clone"):
        out.sum().backward()


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
class TestNanInTheBackwardPass:
    def test_attended_nan_is_not_hidden(self, backend: str) -> None:
        for which in range(3):
            tensors = inputs(heads=1, kv=1)
            tensors[which][0, 0, 2, 3] = float("nan")
            query, key, value = (t.requires_grad_() for t in tensors)
            out = qkv.attention(query, key, value, backend=backend, mask=qkv.Causal(2))
            dq, dk, dv = torch.autograd.grad(out.sum(), (query, key, value))
            rows = [2] if which == 0 else list(range(0 if which else 2, 5))
            assert dq[0, 0, rows].isnan().all()
            assert dk[0, 0, 2].isnan().all()
            assert dq[1].isfinite().all()
            if which == 2:  # the derivative by values does not depend on values
                assert dv.isfinite().all()
                weights = qkv.attention(query, key, value, mask=qkv.Causal(2), return_weights=True)[1]
                torch.testing.assert_close(dv[..., 0], weights.sum(-2))

    def test_nothing_comes_back_from_a_row_that_saw_nothing(self, backend: str) -> None:
        query, key, value = (t.requires_grad_() for t in inputs())
        out = qkv.attention(query, key, value, mask=qkv.Causal(-2), backend=backend)
        grad = torch.ones_like(out)
        grad[:, :, :2] = float("nan")
        for found in torch.autograd.grad(out, (query, key, value), grad):
            assert found.isfinite().all()
