"""`benchmarks compiled`: the peer has qkv's projections around torch's attention."""

import torch

from benchmarks.compiled import TorchAttention, models, step


def test_torchs_attention_in_a_decoder_of_qkv_gives_the_decoders_answer() -> None:
    eager, _, peer = models().values()
    tokens = torch.arange(7)[None] * 13
    peer = peer._orig_mod  # uncompiled
    assert all(type(block.attention) is TorchAttention for block in peer.blocks)
    torch.testing.assert_close(step(peer, tokens, False), step(eager, tokens, False), rtol=1e-4, atol=1e-4)
