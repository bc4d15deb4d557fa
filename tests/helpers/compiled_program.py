"""Run by test_functional.py: attention compiled into one graph gives the same results. Prints each case that passed."""

import torch
from torch.nn import functional as F

import qkv
from qkv import features

torch.set_num_threads(1)
torch.manual_seed(0)
QUERY, KEY, VALUE = torch.randn(2, 6, 5, 11), torch.randn(2, 3, 5, 11), torch.randn(2, 3, 5, 13)
SIMILARITIES = {
    "softmax": qkv.Softmax(softcap=5.0),
    "sigmoid": qkv.Sigmoid(bias=torch.randn(6)),
    "argmax": qkv.Argmax(),
    "polynomial": qkv.Polynomial(),
    "features": qkv.FeatureMap(features.polynomial()),
    "any": qkv.Similarity(lambda q, k: torch.exp(-torch.cdist(q, k))),
}


def compiled(**options):
    return torch.compile(lambda q, k, v: qkv.attention(q, k, v, **options), fullgraph=True, backend="eager")


mask = qkv.Causal() & qkv.Padding(lengths=[3, 5])
for name, similarity in SIMILARITIES.items():
    options = {"similarity": similarity, "mask": mask}
    torch.testing.assert_close(compiled(**options)(QUERY, KEY, VALUE), qkv.attention(QUERY, KEY, VALUE, **options))
    print(name)

query, key, keep = torch.randn(3, 2, 6, 5, 11), torch.randn(2, 1, 7, 11), torch.rand(3, 1, 1, 5, 7) < 0.5
whole = torch.compile(qkv.compat.scaled_dot_product_attention, fullgraph=True, backend="eager")
torch.testing.assert_close(
    whole(query, key, key, keep, scale=0.3), F.scaled_dot_product_attention(query, key, key, keep, scale=0.3)
)
print("compat")

mask = qkv.Padding(keep=torch.arange(5) < torch.tensor([[3], [5]]))
clean = qkv.attention(QUERY, KEY, VALUE, mask=mask)
KEY[0, :, 3:], VALUE[0, :, 3:] = float("nan"), float("inf")
torch.testing.assert_close(compiled(mask=mask)(QUERY, KEY, VALUE), clean)
print("poison")

leaves = [t.clone().requires_grad_() for t in (QUERY, KEY, VALUE)]
grads = [
    torch.autograd.grad(answer(*leaves).square().sum(), leaves)
    for answer in (compiled(mask=mask), lambda q, k, v: qkv.attention(q, k, v, mask=mask))
]
for one, other in zip(*grads, strict=True):
    torch.testing.assert_close(one, other)
    assert one.isfinite().all()
print("gradient")
