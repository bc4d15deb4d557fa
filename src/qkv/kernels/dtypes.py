"""How the native library numbers torch's dtypes (native/src/dtype.h)."""

from __future__ import annotations

import torch

CODE = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
