"""The masks of the three usual transformers, ready made.

| model | its attention | mask |
| --- | --- | --- |
| encoder (BERT) | self-attention | `encoder(...)` |
| decoder (GPT) | self-attention | `decoder(...)` |
| encoder-decoder (T5) | encoder's self-attention | `encoder(...)`, of the source |
| | decoder's self-attention | `decoder(...)`, of the target |
| | cross-attention | `cross(...)`, of the source |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkv.masks.causal import Causal
from qkv.masks.padding import Padding

if TYPE_CHECKING:
    from qkv.masks.base import Mask


def encoder(lengths: Any = None, *, keep: Any = None, drop: Any = None) -> Mask | None:
    """Self-attention of an encoder: everyone sees every real key, nobody sees padding.

    The arguments are those of `Padding`; without any there is no padding, and no mask.

    >>> encoder(lengths=[3, 5])
    Padding(lengths=[3, 5])
    >>> encoder() is None
    True
    """
    if lengths is None and keep is None and drop is None:
        return None
    return Padding(lengths, keep=keep, drop=drop)


def decoder(lengths: Any = None, *, keep: Any = None, drop: Any = None, offset: int | None = None) -> Mask:
    """Self-attention of a decoder: nobody sees what comes later, and nobody sees padding.

    Padding behind the text needs no mask of its own. A real query stands before all of it, and looking
    back only, never meets it: `lengths` says that padding is on the right, and the answer is `Causal`
    alone. (The rows of the padded queries themselves mean nothing; a loss leaves them out.)
    `keep` and `drop` may have padding on the left, where causality does not hide it, so they are joined.
    `offset` is that of `Causal`: the absolute position of the first query.

    >>> decoder(lengths=[3, 5])
    Causal()
    >>> decoder(drop=[[True, False, False]])
    Causal() & Padding(drop=<bool (1, 3)>)

    Lengths are checked although they are not needed. With an offset beyond the position of the queries
    they would look ahead, and padding on the right would need `Causal(offset) & Padding(lengths)`.
    """
    padding = encoder(lengths, keep=keep, drop=drop)
    causal = Causal(offset)
    return causal if padding is None or lengths is not None else causal & padding


def cross(lengths: Any = None, *, keep: Any = None, drop: Any = None) -> Mask | None:
    """Cross-attention: the decoder's queries see every real key of the encoder.

    The padding is that of the encoder's sequence; the decoder's own padding does not matter here, and
    there is no before or after between two sequences, so nothing is causal.

    >>> cross(lengths=[3, 5]).population(batch=2, len_q=7, len_k=5)
    56
    """
    return encoder(lengths, keep=keep, drop=drop)
