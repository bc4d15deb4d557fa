"""`plan_file`: bytes are those of the file, seconds follow from the measured rates, and errors are of one line."""

import pytest
import torch

import qkv
from qkv.cost.machine import Machine
from qkv.errors import QkvError
from qkv.profiling.files import packed_rates, plan_file
from tests.helpers.runtime_files import CONTEXT, build, write_folder, write_gguf

READ, MULTIPLY, MEMORY = 7e9, 3e11, 2e10


@pytest.fixture
def calibrated(monkeypatch, tmp_path):
    """A calibration with known rates: reading is slower for int8, multiplying for float32."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    roofs = {"read.memory": MEMORY, "multiply.float32.square": 1e11}
    for name in qkv.ops.packed.BLOCKS:
        roofs |= {f"packed.{name}.float32.read": READ, f"packed.{name}.float32.multiply": MULTIPLY}
        roofs |= {f"packed.{name}.int8.read": READ / 2, f"packed.{name}.int8.multiply": 2 * MULTIPLY}
    Machine("this", 2, 2, 1 << 34, taken="now", roofs=roofs).store()


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_bytes_and_seconds(kind, calibrated, tmp_path):
    model = build("llama", attention_bias=False, mlp_bias=False)
    gguf = kind == "gguf"
    path = write_gguf(model, tmp_path / "m.gguf", quantized="q4_1") if gguf else write_folder(model, tmp_path / "m")
    found = plan_file(path, context=101, batch=1, prompt=67)
    matrices = {name: weight for name, weight in model.named_parameters() if weight.dim() == 2}
    item = 20 / 32 if gguf else 4
    assert found.parameters == sum(weight.numel() for weight in model.parameters())
    assert found.weight_bytes == item * sum(weight.numel() for weight in matrices.values())
    assert set(found.formats) == {"q4_1" if gguf else "f32"}
    heads, width, layers = 2, 32, 3
    assert found.cache_bytes_per_token == 2 * heads * width * 4 * layers
    assert found.cache_bytes == 101 * found.cache_bytes_per_token
    used = {name: weight.numel() for name, weight in matrices.items() if "embed" not in name}
    assert found.step_bytes == item * sum(used.values()) + found.cache_bytes
    inner = sum(count for name, count in used.items() if "lm_head" not in name)
    attention = 4 * 4 * width * layers * (67 * 68 // 2)
    assert found.prompt_flops == 2 * (67 * inner + used["lm_head.weight"]) + attention
    read = item * sum(used.values()) / READ
    assert found.step_seconds["float32"] == pytest.approx(read + found.cache_bytes / MEMORY)
    assert found.step_seconds["int8"] == pytest.approx((1 + gguf) * read + found.cache_bytes / MEMORY)
    last = item * used["lm_head.weight"] / READ
    assert found.prompt_seconds["float32"] == pytest.approx(2 * 67 * inner / MULTIPLY + last + attention / 1e11)
    assert found.notes == ["rates of packed products: measured by qkv calibrate"]
    measured = {"step": found.step_seconds["int8"] / 2, "prompt": found.prompt_seconds["int8"]}
    assert found.against("int8", **measured) == pytest.approx({"step": 1.0, "prompt": 0.0})
    assert found.against("float32") == {}
    assert found.as_dict()["held_bytes"] == found.held_bytes
    assert max(map(len, str(found).splitlines())) <= 80


def test_windows_and_rows_count(calibrated, tmp_path):
    path = write_folder(build("gemma3"), tmp_path / "m")
    windows = [layer.attention.window for layer in qkv.runtime.load(path).program.layers]
    assert None in windows
    assert any(windows)
    one, two = plan_file(path, context=100, batch=1), plan_file(path, context=100, batch=2)
    assert two.cache_bytes == 2 * one.cache_bytes
    each = one.cache_bytes_per_token // len(windows)
    assert one.cache_bytes == sum(each * min(100, window or 100) for window in windows)
    assert one.step_seconds["float32"] < two.step_seconds["float32"] < 2 * one.step_seconds["float32"]
    assert plan_file(path, context=100, cache="int8").cache_bytes < one.cache_bytes / 3


def test_a_machine_that_was_not_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    path = write_gguf(build("llama"), tmp_path / "m.gguf")
    assert "run qkv calibrate" in plan_file(path).notes[0]
    other = plan_file(path, "h100-sxm", context=7)
    assert other.hardware == "h100-sxm"
    assert other.step_seconds["int8"] == pytest.approx(other.step_bytes / 3.35e12)


def test_only_the_header_is_read(tmp_path):
    """The numbers of matrices may be anything, also NaN."""
    model = build("llama")
    path = write_gguf(model, tmp_path / "m.gguf")
    wanted = plan_file(path).as_dict()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.fill_(torch.nan)
    assert plan_file(write_gguf(model, path)).as_dict() == wanted


def test_what_is_refused(tmp_path):
    path = write_gguf(build("llama"), tmp_path / "m.gguf")
    for words, options in (
        ("context", {"context": CONTEXT + 1}),
        ("prompt", {"prompt": CONTEXT + 1}),
        ("batch", {"batch": 0}),
        ("cache", {"cache": "int3"}),
        ("hardware", {"hardware": "abacus"}),
    ):
        with pytest.raises(QkvError, match=words) as caught:
            plan_file(path, **options)
        assert "\n" not in str(caught.value)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(QkvError, match="truncated"):
        plan_file(path)


def test_rates_of_packed_products_are_measured():
    rates = dict(packed_rates(1 << 18, lambda run: run() is None or 0.5))
    assert len(rates) == 2 * (3 + 2 * 8)
    assert rates["packed.q4_1.int8.read"]() == pytest.approx(2 * (1 << 18), rel=0.02)
    assert rates["packed.bf16.float32.multiply"]() == 2 * 2 * 256 * 256 * 4096
