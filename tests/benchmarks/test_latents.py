"""`benchmarks latents`: the layers that are compared give one answer, and the step's figures are its counts."""

import pytest
import torch

import qkv
from benchmarks.latents import LITE, Sizes, layer_call, layers, step_calls

TINY = Sizes(heads=3, d_model=24, past=70, rank=16, rope=8, plain=6, value=5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_all_layers_give_the_answer_of_eager_attention_in_every_round() -> None:
    token = torch.randn(1, 1, 24)
    with torch.no_grad():
        answers = []
        for model, cache in layers(TINY, torch.float32).values():
            run, call = layer_call(model, cache, TINY, token)
            first = run()
            cache.crop(-1)
            call.run()
            assert call.undo is not None
            call.undo()
            again = run()
            assert int(cache.get_seq_length()) == 71
            torch.testing.assert_close(again, first, rtol=0, atol=0)
            answers.append(first)
            torch.testing.assert_close(first, answers[0], rtol=0, atol=1e-5)
    assert isinstance(cache, qkv.hf.caches.PagedCache)


def test_flops_and_bytes_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LITE.flops == 2 * 16 * 4096 * (2 * 512 + 64)
    assert LITE.latents == 4096 * 576
    monkeypatch.setattr("benchmarks.latents.caches", lambda size: 2)
    for calls in step_calls(TINY, "int8", torch.float32).values():
        for call in calls:
            assert call.undo is not None
            assert bool(call.run().isfinite().all())
            call.undo()
