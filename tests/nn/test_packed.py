"""PackedLinear: the layer that it replaces, in every format; compiled, saved, in a model; refusals."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import qkv
from qkv import ops
from qkv.errors import BackendRefused, OptionError, ShapeError
from qkv.runtime import reference
from qkv.runtime.blocks import FORMATS, PackedMatrix
from qkv.runtime.native import quantized

pytestmark = pytest.mark.skipif(not ops.available(), reason=str(ops.reasons()))
PackedLinear = qkv.nn.PackedLinear


def random_bytes(name: str, rows: int, columns: int) -> PackedMatrix:
    """Blocks with finite scales, any other bits."""
    layout = FORMATS[name]
    generator = torch.Generator().manual_seed(len(name) + columns)
    data = torch.randint(0, 256, (rows * columns // layout.elements, layout.nbytes), generator=generator)
    data = data.to(torch.uint8)
    for at in layout.scales:
        data[:, at : at + 2] = torch.rand(len(data), 1, generator=generator).half().view(torch.uint8)
    if not layout.scales:
        dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[name]
        data = torch.randn(rows, columns, generator=generator).to(dtype).view(torch.uint8)
    return PackedMatrix(data.view(rows, -1).numpy(), layout, rows, columns)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 3, 4, 40])
def test_products_are_those_of_the_unpacked_matrix(name, rows):
    matrix = random_bytes(name, 37, 512)
    bias, x = torch.randn(37), torch.randn(rows, 512)
    x[:, 5::97] *= 40  # outliers
    dense = matrix.dense().double()
    wanted = x.double() @ dense.T + bias.double()
    sizes = x.abs().double() @ dense.abs().T
    ops.reset_calls()
    packed = PackedLinear(torch.from_numpy(matrix.data), name, bias)
    assert packed.in_features == 512
    assert packed.out_features == 37
    assert ((packed(x) - wanted).abs() <= 64 * 2**-24 * sizes).all()
    assert ops.calls()["packed_product"] == 1
    rounded = PackedLinear(torch.from_numpy(matrix.data), name, bias, "int8")(x)
    assert ((rounded - reference.product(matrix, x, "int8") - bias).abs() <= 64 * 2**-24 * sizes).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_keeps_its_weights(dtype):
    layer = nn.Linear(48, 10).to(dtype)
    packed = PackedLinear.from_linear(layer)
    x = torch.randn(2, 3, 48, dtype=dtype)
    with torch.no_grad():
        wanted = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    assert packed(x).dtype is dtype
    assert packed(x).shape == (2, 3, 10)
    torch.testing.assert_close(packed(x).double(), wanted, rtol=2e-2 if dtype is not torch.float32 else 1e-5, atol=1e-2)


def test_it_replaces_a_layer_is_copied_saved_and_compiled(tmp_path):
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8, bias=False))
    x = torch.randn(5, 64)
    with torch.no_grad():
        wanted = model(x)
    for at in (0, 2):
        model[at] = quantized(model[at], "q8_0")
    found = model(x)
    assert 0 < (found - wanted).abs().max() < 0.02 * wanted.abs().max() + 0.01
    assert torch.equal(copy.deepcopy(model)(x), found)
    other: Any = copy.deepcopy(model)
    other[0].packed.zero_()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), found)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), found)
    assert torch.equal(model.double()(x), found), "bytes are not converted"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["f32", "bf16", "q4_1", "q6_k"])
@pytest.mark.parametrize("shape", [(256,), (3, 256), (2, 5, 256), (0, 256)])
def test_the_operator_passes_the_checks_of_torch(name, shape):
    weight = torch.from_numpy(random_bytes(name, 37, 256).data)
    for dtype, bias in ((torch.float32, torch.randn(37)), (torch.bfloat16, None)):
        for activations in ("float32", "int8"):
            args = torch.randn(shape).to(dtype), weight, bias, name, 256, activations
            checks = torch.library.opcheck(torch.ops.qkv.packed_linear.default, args)
            assert set(checks.values()) == {"SUCCESS"}


class Gated(nn.Module):
    """A feed-forward network of packed weights."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.matrices = [random_bytes(name, *shape) for shape in ((512, 256), (512, 256), (256, 512))]
        layers = [PackedLinear(torch.from_numpy(each.data), name) for each in self.matrices]
        self.gate, self.up, self.down = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.gate(x)) * self.up(x))

    def dense(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (each.dense().to(x.dtype) for each in self.matrices)
        return x + (torch.tanh(x @ gate.T) * (x @ up.T)) @ down.T


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_module_compiles_into_one_graph_and_equals_the_unpacked_weights(backend):
    model = Gated("q4_k")
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for rows in (1, 3, 19):
        x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(rows))
        found, wanted = compiled(x), model.dense(x.double())
        assert torch.allclose(found, model(x), rtol=1e-6, atol=1e-4 * float(wanted.abs().max()))
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_refusals():
    packed = quantized(nn.Linear(64, 3), "q4_1")
    assert "q4_1" in repr(packed)
    with pytest.raises(BackendRefused, match="gradient"):
        packed(torch.randn(2, 64, requires_grad=True))
    with pytest.raises(ShapeError, match="64"):
        packed(torch.randn(2, 32))
    with pytest.raises(ShapeError, match="blocks of 20"):
        PackedLinear(torch.zeros(2, 39, dtype=torch.uint8), "q4_1")
    with pytest.raises(ShapeError, match="bias"):
        PackedLinear(torch.zeros(2, 40, dtype=torch.uint8), "q4_1", torch.zeros(3))
    for name, activations in (("q3_k", "int8"), ("q4_1", "int4")):
        with pytest.raises(OptionError):
            PackedLinear(torch.zeros(2, 40, dtype=torch.uint8), name, activations=activations)
