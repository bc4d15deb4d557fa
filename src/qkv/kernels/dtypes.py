"""How the native library numbers torch's dtypes (native/src/dtype.h), and what it is told where no tensor is given."""

from __future__ import annotations

import torch

CODE = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}

# The strides that go with address 0.
NOTHING = (0, 0, 0, 0)
