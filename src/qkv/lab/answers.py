"""A question to a view, from the texts of its fields to numbers, markup and Python: the same in a thread of the server
and in the process that does heavy work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import QkvError
from .drawing import region
from .fields import WrongField, typed
from .view import Cancelled, Result, View, Work


@dataclass(frozen=True)
class Answer:
    """`problems` are by field ("" is the whole question); without any, there is a result."""

    texts: Mapping[str, str]
    problems: Mapping[str, str]
    result: Result | None = None
    html: str = ""
    python: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def answer(view: View, given: Mapping[str, str], work: Work, *, draw: bool) -> Answer:
    """Computes; `draw` asks for the markup too. Cancelled is let through, every other complaint becomes a problem."""
    read = typed(view.fields, given)
    if read.state is None:
        return Answer(read.texts, read.problems)
    try:
        result = view.compute(read.state, work)
        python = view.python(read.state)
        html = region(view, read.texts, read.state, result) if draw else ""
    except Cancelled:
        raise
    except WrongField as error:
        return Answer(read.texts, {error.field: str(error)})
    except QkvError as error:
        return Answer(read.texts, {"": str(error)})
    return Answer(read.texts, {}, result, html, python)
