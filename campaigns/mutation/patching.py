"""A mutant without an import: functions of a loaded module get the code of the changed file.

This takes a tenth of the time of an import. Values that were computed on import do not change, so only a detected
mutant counts: one that is not detected runs again in a process that imports the changed file.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

_Key = tuple[str, str, int]


def _key(code: CodeType) -> _Key:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_OPTIMIZED:
                yield constant
            yield from _functions(constant)


def forget(package: str) -> None:
    """Clear every lru_cache of the package."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            for thing in list(vars(module).values()):
                for member in (thing, *(vars(thing).values() if isinstance(thing, type) else ())):
                    if type(member) is functools._lru_cache_wrapper:
                        member.cache_clear()


class Loaded:
    """The functions of some files that are loaded in this process."""

    def __init__(self, files: Sequence[Path]) -> None:
        names = {str(file) for file in files}
        self.functions: dict[_Key, list[FunctionType]] = {}
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename in names:
                self.functions.setdefault(_key(thing.__code__), []).append(thing)

    def patch(self, file: Path, code: str) -> bool:
        """Replace the code of changed functions; whether any changed."""
        forget("qkv")
        changed = False
        for new in _functions(compile(code, str(file), "exec", dont_inherit=True)):
            for function in self.functions.get(_key(new), ()):
                if function.__code__ != new and len(function.__code__.co_freevars) == len(new.co_freevars):
                    function.__code__ = new
                    changed = True
        return changed
