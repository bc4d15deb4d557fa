"""Transformer modules with any similarity: attention, blocks, models and `generate`.

`Encoder`, `Decoder` and `EncoderDecoder` consist of `Block`s, each with `Attention` and `FeedForward`. The argument
`positions` takes a `Rotary`, `ALiBi`, `RelativeBias`, `Learned` or `Sinusoidal`.
"""

from .attention import Attention as Attention
from .block import Block as Block
from .block import FeedForward as FeedForward
from .files import load as load
from .files import save as save
from .generate import Generation as Generation
from .generate import generate as generate
from .head_groups import grouped as grouped
from .head_groups import pooled as pooled
from .packed import PackedLinear as PackedLinear
from .positions import ALiBi as ALiBi
from .positions import Learned as Learned
from .positions import RelativeBias as RelativeBias
from .positions import Rotary as Rotary
from .positions import Sinusoidal as Sinusoidal
from .stacks import Decoder as Decoder
from .stacks import Encoder as Encoder
from .stacks import EncoderDecoder as EncoderDecoder
