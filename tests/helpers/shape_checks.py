"""The checker of annotations that tests switch on."""

from collections.abc import Callable
from typing import TypeVar

from beartype import beartype

F = TypeVar("F", bound=Callable)


def outermost(function: F) -> F:
    """beartype, but for a function inside another: it would be compiled anew at every call, and none says a shape."""
    return function if "<locals>" in function.__qualname__ else beartype(function)
