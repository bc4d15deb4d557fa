"""The type checker that tests enable."""

from collections.abc import Callable
from typing import TypeVar

from beartype import beartype

F = TypeVar("F", bound=Callable)


def outermost(function: F) -> F:
    """Apply beartype, except to nested functions: they would be compiled at every call, and none has shapes."""
    return function if "<locals>" in function.__qualname__ else beartype(function)
