"""How a call is computed. A form never changes the answer; each says why it cannot run, or what it costs."""

from __future__ import annotations

from .base import Form
from .decode import DECODE
from .dense import DENSE
from .hard import HARD
from .streaming import STREAMING

FORMS: dict[str, Form] = {form.name: form for form in (DENSE, STREAMING, HARD, DECODE)}

__all__ = ["FORMS", "Form"]
