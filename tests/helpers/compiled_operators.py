"""Run by tests/backends/test_run.py: compiled and exported calls run the backends that the same eager calls run."""

import torch

import qkv
from qkv.backends.base import RUNS

torch.set_num_threads(1)
torch.manual_seed(0)
QUERY, KEY, VALUE = torch.randn(2, 8, 128, 64), torch.randn(2, 2, 128, 64), torch.randn(2, 2, 128, 64)
PACKED = QUERY[0].transpose(0, 1), KEY[0].transpose(0, 1), VALUE[0].transpose(0, 1)
EDGES = torch.tensor([0, 50, 50, 128])
KEPT = torch.arange(128) < torch.tensor([[128], [90]])

CALLS = {
    "causal": lambda q, k, v: qkv.attention(q, k, v, mask=qkv.Causal()),
    "the README's": lambda q, k, v: qkv.attention(q, k, v, mask=qkv.Causal() & qkv.Padding(lengths=[128, 90])),
    "keep": lambda q, k, v: qkv.attention(q, k, v, mask=qkv.Padding(keep=KEPT)),
    "predicate": lambda q, k, v: qkv.attention(q, k, v, mask=qkv.Predicate(lambda b, h, i, j: (i - j) % 3 == 0)),
    "features": lambda q, k, v: qkv.attention(q, k, v, similarity=qkv.FeatureMap(qkv.features.elu1)),
    "argmax": lambda q, k, v: qkv.attention(q, k, v, similarity=qkv.Argmax()),
    "named": lambda q, k, v: qkv.attention(q, k, v, backend="sdpa"),
}


def packed(q, k, v):
    return qkv.varlen(q, k, v, EDGES, mask=qkv.Causal())


def check(name, function, tensors, backend="aot_eager", **options):
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend, **options)
    results = []
    for call in (function, compiled):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        with torch.no_grad():
            call(*leaves)  # compiles
            RUNS.clear()
            answer = call(*leaves)
            without_gradient = dict(RUNS)
        call(*leaves)
        RUNS.clear()
        out = call(*leaves)
        results.append((without_gradient, dict(RUNS), [answer, out, *torch.autograd.grad(out.square().sum(), leaves)]))
    (eager, compiled) = results
    assert eager[0] == compiled[0] != {}, (name, eager[0], compiled[0])
    assert eager[1] == compiled[1] != {}, (name, eager[1], compiled[1])
    for one, other in zip(eager[2], compiled[2], strict=True):
        assert torch.equal(one, other), name
    print(name)


for name, function in CALLS.items():
    check(name, function, (QUERY, KEY, VALUE))
check("varlen", packed, PACKED)
check("inductor", CALLS["the README's"], (QUERY, KEY, VALUE), backend="inductor")
check("dynamic sizes", CALLS["causal"], (QUERY, KEY, VALUE), dynamic=True)


class Layer(torch.nn.Module):
    def forward(self, q, k, v):
        return qkv.attention(q, k, v, mask=qkv.Causal())


length = torch.export.Dim("length", min=2, max=4096)
program = torch.export.export(Layer(), (QUERY, KEY, VALUE), dynamic_shapes=({2: length}, {2: length}, {2: length}))
longer = [torch.randn(2, tensor.shape[1], 300, 64) for tensor in (QUERY, KEY, VALUE)]
RUNS.clear()
assert torch.equal(program.module()(*longer), Layer()(*longer))
assert set(RUNS) == {"native"}, RUNS
print("all passed")
