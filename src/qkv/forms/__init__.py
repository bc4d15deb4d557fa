"""How a call is computed. A form never changes the answer; each says why it cannot run, or what it costs."""

from __future__ import annotations

from .base import Form
from .decode import DECODE
from .dense import DENSE
from .hard import HARD
from .linear import LINEAR
from .streaming import STREAMING

FORMS: dict[str, Form] = {form.name: form for form in (DENSE, STREAMING, LINEAR, HARD, DECODE)}

__all__ = ["FORMS", "Form"]
