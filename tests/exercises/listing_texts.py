"""Listings that several tests read: a module of attention, one step of decoding, and a method on its own."""

from __future__ import annotations

MODULE = """
class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        assert d_model % num_heads == 0
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def attend(self, Q, K, V, mask=None):
        scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        probs = torch.softmax(scores, dim=-1)
        return torch.matmul(probs, V)

    def split_heads(self, x):
        batch, length, width = x.size()
        return x.view(batch, length, self.num_heads, self.d_k).transpose(1, 2)

    def join_heads(self, x):
        batch, _, length, d_k = x.size()
        return x.transpose(1, 2).contiguous().view(batch, length, self.d_model)

    def forward(self, Q, K, V, mask=None):
        Q = self.split_heads(self.W_q(Q))
        K = self.split_heads(self.W_k(K))
        V = self.split_heads(self.W_v(V))
        mixed = self.attend(Q, K, V, mask)
        return self.W_o(self.join_heads(mixed))
"""

STEP = '''
1 def next_token(x, prev_K, prev_V, W_q, W_k, W_v, W_o):
2     """One step of multi-query attention.
3         x: a tensor with shape [b, d] - the newest token
4         prev_K: tensor with shape [b, n, k] - keys before
5         prev_V: tensor with shape [b, n, v] - values before
6         W_q: a tensor with shape [h, d, q]
7         W_k: a tensor with shape [d, k]
8         W_v: a tensor with shape [d, v]
9         W_o: a tensor with shape [h, v, d]
10    """
11    q = torch.einsum("bd,hdq->bhq", x, W_q)
12    k = torch.einsum("bd,dk->bk", x, W_k)
13    v = torch.einsum("bd,dv->bv", x, W_v)
14    new_K = torch.cat([prev_K, k.unsqueeze(1)], dim=1) # [b, n+1, k]
15    new_V = torch.cat([prev_V, v.unsqueeze(1)], dim=1) # [b, n+1, v]
16    logits = torch.einsum("bhk,bnk->bhn", q, new_K)
17    weights = torch.softmax(logits, dim=-1)
18    o = torch.einsum("bhn,bnv->bhv", weights, new_V)
19    y = torch.einsum("bhv,hvd->bd", o, W_o) # [b, d]
20    return y
'''

METHOD = """
1 def forward(self, q, k, v):
2     q = self.q_proj(q)
3     k = self.k_proj(k)
4     v = self.v_proj(v)
5     q = einops.rearrange(q, "b t (nh dh) -> (b nh) t dh",
6                          nh=self.n_heads)
7     k = einops.rearrange(k, "b s (nh dh) -> (b nh) s dh",
8                          nh=self.n_heads)
9     v = einops.rearrange(v, "b s (nh dh) -> (b nh) s dh",
10                         nh=self.n_heads)
11    o = scaled_dot_product_attention(q, k, v)
12    o = einops.rearrange(o, "(b nh) t dh -> b t (nh dh)", nh=self.n_heads)
13    return self.o_proj(o)
"""
