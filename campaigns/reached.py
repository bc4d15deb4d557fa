"""The lines that an input reaches, so that inputs that reach new lines can be kept and mutated further."""

from __future__ import annotations

import sys
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import qkv

PACKAGE = Path(qkv.__file__).parent


class Reached:
    """`with reached:` records lines; `new`: whether the last block went from a line to a line for the first time."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self.folders = tuple(str(PACKAGE / folder) for folder in folders)
        self.steps: dict[CodeType, set[tuple[int, int]]] = {}
        self.lines: set[tuple[str, int]] = set()
        self.new = False
        self._last: dict[CodeType, int] = {}

    def __enter__(self) -> None:
        self.new = False
        self._last.clear()
        self._before = sys.gettrace()
        sys.settrace(self._call)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_flags & CO_OPTIMIZED or not code.co_filename.startswith(self.folders):
            return None
        self.steps.setdefault(code, set())
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            code, at = frame.f_code, frame.f_lineno
            step = self._last.get(code, 0), at
            self._last[code] = at
            if step not in self.steps[code]:
                self.steps[code].add(step)
                self.new = True
                if at != code.co_firstlineno:
                    self.lines.add((code.co_filename, at))
        return self._line

    def lines_of_files(self) -> int:
        """Number of lines in functions of the files that were reached."""
        return sum(len(_inner_lines(file)) for file in {file for file, _ in self.lines})


def _inner_lines(file: str) -> set[int]:
    """Lines inside functions, not those that run on import; without the `def` lines."""
    found: set[int] = set()
    todo = [compile(Path(file).read_text(encoding="utf-8"), file, "exec")]
    while todo:
        code = todo.pop()
        if code.co_flags & CO_OPTIMIZED:
            found.update(line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno)
        todo += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found
