"""The operator qkv::decode: opcheck, and the same answers in compiled graphs as in eager mode."""

import pytest
import torch

import qkv
from qkv.errors import BackendRefused, OptionError

HEADS, GROUP, WIDTH, VALUES = 2, 3, 11, 13


def tokens(n: int, batch: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((HEADS * GROUP, WIDTH), (HEADS, WIDTH), (HEADS, VALUES))
    query, key, value = (torch.randn(batch, heads, n, width, generator=generator) for heads, width in shapes)
    return query, key, value


def make_cache(past: int = 5, **options) -> qkv.KVCache:
    cache = qkv.KVCache(2, HEADS, WIDTH, value_width=VALUES, **options)
    cache.append(*tokens(past, seed=99)[1:])
    return cache


def decode(*arguments, **options) -> torch.Tensor:
    return torch.ops.qkv.decode.default(*arguments, **options)


OPTIONS = {
    "plain": {},
    "scale, cap, sink": {"scale": 0.3, "softcap": 2.0, "sink": torch.randn(HEADS * GROUP)},
    "bias": {"bias": torch.randn(1, HEADS * GROUP, 3, 8)},
    "keep": {"keep": torch.rand(2, 1, 3, 8) > 0.3},
    "argmax": {"argmax": True},
    "ragged": {"lengths": torch.tensor([3, 1])},
    "left": {"lengths": torch.tensor([0, 2]), "left": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=["float32", "int8"])
def test_opcheck(options: dict, dtype: torch.dtype) -> None:
    cache = make_cache(dtype=dtype)
    torch.library.opcheck(torch.ops.qkv.decode.default, (*tokens(3), cache.handle), options)


def test_the_operator_is_a_function_of_its_arguments() -> None:
    cache = make_cache(past=70)
    before = cache.handle.clone()
    one = decode(*tokens(3), cache.handle)
    assert cache.length == 73
    other = decode(*tokens(3), before)
    assert torch.equal(one, other)
    assert cache.length == 73
    assert torch.equal(before, cache.handle)


def test_a_handle_of_a_deleted_cache() -> None:
    cache = make_cache()
    handle = cache.handle.clone()
    del cache
    with pytest.raises(OptionError, match="deleted cache"):
        decode(*tokens(1), handle)


def test_a_handle_ahead_of_its_cache() -> None:
    cache = make_cache()
    handle = cache.handle.clone()
    handle[1:] += 1
    with pytest.raises(OptionError, match="handle"):
        decode(*tokens(1), handle)
    assert cache.length == 5


@pytest.fixture
def compiled():
    """Compiles a function that calls decode, in one graph, and counts the graphs."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def compile_it(function, use=None):
        return torch.compile(function, fullgraph=True, backend=use or backend)

    compile_it.graphs = graphs
    yield compile_it
    torch._dynamo.reset()


def test_steps_in_one_graph(compiled) -> None:
    step = compiled(lambda q, k, v, cache: qkv.decode(q, k, v, cache) + 1)
    one, other = make_cache(), make_cache()
    for seed in range(70):
        new = tokens(1, seed=seed)
        assert torch.equal(step(*new, one), qkv.decode(*new, other) + 1)
    assert one.lengths.tolist() == other.lengths.tolist() == [75, 75]
    assert len(compiled.graphs) == 1


def test_a_loop_of_steps_through_aot(compiled) -> None:
    def loop(query, key, value, cache):
        outs = []
        for i in range(query.shape[2]):
            part = slice(i, i + 1)
            outs.append(qkv.decode(query[:, :, part], key[:, :, part], value[:, :, part], cache))
        return torch.cat(outs, dim=2)

    new = tokens(4)
    one, other = make_cache(), make_cache()
    assert torch.equal(compiled(loop, "aot_eager")(*new, one), loop(*new, other))
    assert torch.equal(one.tensors()[0], other.tensors()[0])
    assert torch.equal(one.handle[1:], other.handle[1:])


IN_A_GRAPH = {
    "argmax": {"similarity": qkv.Argmax()},
    "softmax": {"similarity": qkv.Softmax(scale=0.2, softcap=3.0, sink=0.5)},
    "causal": {"mask": qkv.Causal()},
    "padding": {"mask": qkv.Padding(keep=torch.rand(2, 8) > 0.4)},
    "dense": {"mask": qkv.Causal() & qkv.Dense(torch.rand(3, 8) > 0.4)},
    "bias": {"bias": torch.randn(3, 8)},
    "ragged": {"lengths": [1, 3]},
    "left": {"lengths": torch.tensor([0, 2]), "padding": "left"},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", IN_A_GRAPH.values(), ids=IN_A_GRAPH)
def test_options_in_a_graph(compiled, options: dict) -> None:
    step = compiled(lambda q, k, v, cache: qkv.decode(q, k, v, cache, **options))
    one, other = make_cache(), make_cache()
    torch.testing.assert_close(step(*tokens(3), one), qkv.decode(*tokens(3), other, **options))
    assert torch.equal(one.lengths, other.lengths)


def test_two_caches_share_a_graph(compiled) -> None:
    step = compiled(lambda q, k, v, cache: qkv.decode(q, k, v, cache))
    short, long = make_cache(), make_cache(past=130)
    for cache in (short, long):
        step(*tokens(1), cache)
    assert (short.length, long.length) == (6, 131)
    assert len(compiled.graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mask", [qkv.Window(left=2), qkv.Padding(lengths=[3, 4]), qkv.Causal(offset=-1)], ids=repr)
def test_masks_that_need_the_length_are_refused(compiled, mask: qkv.masks.Mask) -> None:
    cache = make_cache()
    with pytest.raises(BackendRefused, match="not known"):
        torch.compile(qkv.decode, backend="eager")(*tokens(1), cache, mask=mask)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(lambda q, k, v, cache: qkv.decode(q, k, v, cache, mask=mask))(*tokens(1), cache)
    assert cache.length == 5
