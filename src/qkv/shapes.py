"""Shape annotations: `Float[Tensor, "batch heads query width"]`.

The tests check them at run time: they load jaxtyping first. Elsewhere jaxtyping is not loaded, since that would double
the time of the first call.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int, Int64
else:
    Bool = Float = Int = Int64 = None

__all__ = ["Bool", "Float", "Int", "Int64"]
