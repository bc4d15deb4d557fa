"""A mutant without an import: functions of a module that is loaded get the code of the changed file.

It takes a tenth of the time of an import. What was computed when files were imported stays as it was, so only what is
noticed counts: a mutant that lives is tried again in a process that imports the changed file.
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
    """No function of the package remembers an answer."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            for thing in list(vars(module).values()):
                for held in (thing, *(vars(thing).values() if isinstance(thing, type) else ())):
                    if type(held) is functools._lru_cache_wrapper:
                        held.cache_clear()


class Loaded:
    """The functions of some files, as they are in this process now."""

    def __init__(self, files: Sequence[Path]) -> None:
        names = {str(file) for file in files}
        self.functions: dict[_Key, list[FunctionType]] = {}
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename in names:
                self.functions.setdefault(_key(thing.__code__), []).append(thing)

    def patch(self, file: Path, code: str) -> bool:
        """Whether some function of the file is another one now."""
        forget("qkv")
        changed = False
        for new in _functions(compile(code, str(file), "exec", dont_inherit=True)):
            for function in self.functions.get(_key(new), ()):
                if function.__code__ != new and len(function.__code__.co_freevars) == len(new.co_freevars):
                    function.__code__ = new
                    changed = True
        return changed
