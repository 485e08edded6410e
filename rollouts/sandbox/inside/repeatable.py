"""Job that runs a program whose output must be the same on every machine.

The program can import a few modules without clocks, files and unseeded random numbers, and has no builtins that show
addresses. Functions of the C library, such as `sin` and powers with a float as result, differ in the last digits
between processors, so their results are rounded to 12 digits. The value of an expression in the last line is printed.

The sandbox is the security border. The guards here protect only against outputs that differ between machines:

    program_guard  checks identifiers, and replaces operations whose results differ
    program_names  builtins and modules that a program can use
    memory_limit   ends a program that reached its memory limit

The job writes one JSON object to descriptor 3: `{"output": "…", "error": "…", "cut": false}`.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import sys
from typing import Any, NoReturn

from .memory_limit import check_ignored, check_memory
from .program import OUT_OF_MEMORY
from .program_guard import SHOW, Refused, guard, guarded
from .program_names import usable_names

_RESULT = 3
_FILE = "program"
_LONGEST_ERROR = 300
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
_PADDING = 512
"""The second run holds objects of every size up to so many bytes, so that further objects have other addresses."""


class _Printed:
    """Standard output of the program; ends the process at the limit, so that the output is the same everywhere."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._length = 0

    def write(self, text: str) -> int:
        left = self._limit - self._length
        self._parts.append(text[:left])
        self._length += len(text)
        if len(text) > left:
            self.finish("", cut=True)
        return len(text)

    def flush(self) -> None:
        """Does nothing: the output is written at the end."""

    def finish(self, error: str, *, cut: bool = False) -> NoReturn:
        """Writes the result and ends the process."""
        check_memory()
        result = {"output": _shown("".join(self._parts)), "error": _shown(error), "cut": cut}
        data = json.dumps(result).encode()
        while data:
            data = data[os.write(_RESULT, data) :]
        os._exit(0)


def run(payload: dict[str, Any]) -> int:  # noqa: RET503 - `finish` does not return
    """Runs `source` with at most `characters` of output; `shift` moves the addresses of its objects."""
    kept = [bytes(size) for size in range(0, _PADDING, 8) for _ in range(3)] if payload["shift"] else []
    printed = _Printed(payload["characters"])
    sys.stdout = printed
    random.seed(0)
    sys.setrecursionlimit(1000)
    sys.unraisablehook = check_ignored
    try:
        tree = ast.parse(payload["source"], _FILE)
        guard(tree)
        code = compile(ast.fix_missing_locations(_shows_last(tree)), _FILE, "exec", dont_inherit=True)
        exec(code, {"__builtins__": usable_names(), "__name__": "__main__"})  # noqa: S102 - this process's purpose
    except MemoryError:
        return OUT_OF_MEMORY
    except SystemExit:
        check_memory()
    except BaseException as error:  # noqa: BLE001 - a program may raise anything
        printed.finish(_described(error))
    del kept
    printed.finish("")


def _shown(text: str) -> str:
    """Returns a text that can be encoded, without the addresses in the default texts of objects."""
    return _ADDRESS.sub("at 0x…", text).encode("utf-8", "replace").decode()


def _described(error: BaseException) -> str:
    try:
        said = str(error)[:_LONGEST_ERROR]
    except Exception:  # noqa: BLE001 - the program may define the text
        check_memory()
        said = ""
    line, trace = (error.lineno, None) if isinstance(error, SyntaxError) else (None, error.__traceback__)
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        said = error.msg
    name = "Error" if isinstance(error, Refused) else type(error).__name__[:_LONGEST_ERROR]
    return f"{name}: {said}" + ("" if line is None else f" (line {line})")


def _shows_last(tree: ast.Module) -> ast.Module:
    """Prints the value of the last line if it is an expression, as an interactive interpreter does."""
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        last.value = ast.copy_location(guarded(SHOW, last.value), last.value)
    return tree
