"""Masks: which keys each query may attend to. One rule everywhere: True attends.

>>> from qkv.masks import Causal, Padding
>>> print((Causal() & Padding(lengths=[4])).draw(len_q=5, len_k=5))
Causal() & Padding(lengths=[4])
        key
        0 1 2 3 4
query 0 ■ · · · ·
      1 ■ ■ · · ·
      2 ■ ■ ■ · ·
      3 ■ ■ ■ ■ ·
      4 ■ ■ ■ ■ ·
■ True: the query attends to the key   · False: it does not
14 of 25 cells attend.
"""

from qkv.masks.band import Band as Band
from qkv.masks.base import Mask as Mask
from qkv.masks.base import as_mask as as_mask
from qkv.masks.causal import Causal as Causal
from qkv.masks.causal import Window as Window
from qkv.masks.dense import Dense as Dense
from qkv.masks.grid import Extent as Extent
from qkv.masks.joined import And as And
from qkv.masks.joined import Or as Or
from qkv.masks.joined import cross as cross
from qkv.masks.joined import decoder as decoder
from qkv.masks.joined import encoder as encoder
from qkv.masks.padding import Padding as Padding
from qkv.masks.predicate import Predicate as Predicate
from qkv.masks.segments import Segments as Segments
