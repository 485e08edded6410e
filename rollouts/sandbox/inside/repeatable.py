"""Job that runs a program whose output must be the same on every machine.

The program can import a few modules without clocks, files and unseeded random numbers, and has no builtins that show
addresses. Functions of the C library, such as `sin` and powers with a float as result, differ in the last digits
between processors, so their results are rounded to 12 digits. The value of an expression in the last line is printed.

The job writes one JSON object to descriptor 3: `{"output": "…", "error": "…", "cut": false}`.
"""

from __future__ import annotations

import ast
import bisect
import builtins
import collections
import collections.abc
import copy
import dataclasses
import decimal
import enum
import fractions
import functools
import heapq
import itertools
import json
import math
import numbers
import operator
import os
import random
import re
import statistics
import string
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from .program import OUT_OF_MEMORY

_RESULT = 3
_FILE = "program"
_DIGITS = 12
_LONGEST_ERROR = 300
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
_PADDING = 512
"""The second run holds objects of every size up to so many bytes, so that further objects have other addresses."""

_BUILTINS = (
    "abs all any ascii bin bool bytearray bytes callable chr classmethod dict divmod enumerate filter float format "
    "frozenset hex int isinstance issubclass iter len list map max min next object oct ord print property range repr "
    "reversed round set slice sorted staticmethod str sum super tuple type zip True False None Ellipsis NotImplemented "
    "__build_class__"
)
_EXACT = (
    "pi e tau inf nan ceil comb copysign factorial fabs floor fmod frexp fsum gcd isclose isfinite isinf isnan isqrt "
    "lcm ldexp modf nextafter perm prod remainder sqrt trunc ulp"
)
"""Names of `math` whose results are exact, or rounded correctly, on every processor."""
_ROUNDED = (
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh degrees dist erf erfc exp exp2 expm1 gamma hypot lgamma log "
    "log10 log1p log2 radians sin sinh tan tanh"
)
_RANDOM = "choice choices getrandbits randint random randrange sample shuffle uniform"
_STATISTICS = (
    "fmean mean median median_grouped median_high median_low mode multimode pstdev pvariance quantiles stdev variance"
)
_OPERATOR = (
    "abs add and_ concat contains countOf eq floordiv ge getitem gt index indexOf inv invert is_ is_not itemgetter le "
    "lshift lt mod mul ne neg not_ or_ pos rshift sub truediv truth xor"
)
_TYPING = "Any Callable Dict Iterable Iterator List NamedTuple Optional Sequence Set Tuple Union"
_WHOLE = {
    "bisect": bisect,
    "collections": collections,
    "collections.abc": collections.abc,
    "copy": copy,
    "dataclasses": dataclasses,
    "decimal": decimal,
    "enum": enum,
    "fractions": fractions,
    "functools": functools,
    "heapq": heapq,
    "itertools": itertools,
    "json": json,
    "numbers": numbers,
    "re": re,
    "string": string,
    "textwrap": textwrap,
}
_DUNDERS = frozenset({"__class__", "__doc__", "__init__", "__name__"})
_FRAMES = frozenset(
    {f"{kind}_{part}" for kind in ("ag", "cr", "gi") for part in ("code", "frame")}
    | {"f_back", "f_builtins", "f_globals", "f_locals", "tb_frame", "tb_next"}
)
"""Attributes that lead from a generator or an exception to the names of this module."""


class _Refused(Exception):
    """The program uses a name that it can't use."""


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
    try:
        tree = _Guard().visit(ast.parse(payload["source"], _FILE))
        code = compile(ast.fix_missing_locations(_shows_last(tree)), _FILE, "exec", dont_inherit=True)
        exec(code, {"__builtins__": _names(), "__name__": "__main__"})  # noqa: S102 - this process's purpose
    except MemoryError:
        return OUT_OF_MEMORY
    except SystemExit:
        pass
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
        said = ""
    line, trace = (error.lineno, None) if isinstance(error, SyntaxError) else (None, error.__traceback__)
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        said = error.msg
    name = "Error" if isinstance(error, _Refused) else type(error).__name__[:_LONGEST_ERROR]
    return f"{name}: {said}" + ("" if line is None else f" (line {line})")


class _Guard(ast.NodeTransformer):
    """Refuses names that lead out of the program, and replaces powers and handlers of exceptions by guarded ones."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        _check_name(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        _check_name(node.attr)
        return self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> ast.AST:
        for name in node.kwd_attrs:
            _check_name(name)
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow):
            return node
        return ast.copy_location(_guarded("__power__", node.left, node.right), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow):
            return node
        if not isinstance(node.target, ast.Name):
            raise _Refused("**= is possible for a plain name only; write x = x ** y")
        power = _guarded("__power__", ast.Name(node.target.id, ast.Load()), node.value)
        return ast.copy_location(ast.Assign([node.target], power), node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.copy_location(ast.Expr(_guarded("__check_memory__")), node))
        return node


def _guarded(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _check_name(name: str) -> None:
    if name in _FRAMES or (name.startswith("__") and name.endswith("__") and name not in _DUNDERS):
        raise _Refused(f"the name {name} can't be used here")


def _shows_last(tree: ast.Module) -> ast.Module:
    """Prints the value of the last line if it is an expression, as an interactive interpreter does."""
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        last.value = ast.copy_location(_guarded("__show__", last.value), last.value)
    return tree


def _check_memory() -> None:
    """Ends the job if its memory limit was reached: the program must not go on after that, as on another machine."""
    if isinstance(sys.exc_info()[1], MemoryError):
        os._exit(OUT_OF_MEMORY)


def _show(value: object) -> None:
    if value is not None:
        sys.stdout.write(f"{value!r}\n")


def _rounded(value: object) -> object:
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, complex):
        parts = [float(f"{part:.{_DIGITS}g}") for part in (value.real, value.imag)]
        return complex(*parts)
    return value


def _rounding(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def call(*arguments: object, **named: object) -> object:
        return _rounded(function(*arguments, **named))

    return call


def _seed(value: int | float | str | bytes) -> None:
    if not isinstance(value, int | float | str | bytes):
        raise TypeError("a seed is a number or a text")
    random.seed(value)


def _attribute(found: object, name: str, *default: object) -> object:
    _check_name(str(name))
    return getattr(found, name, *default)


def _has_attribute(found: object, name: str) -> bool:
    _check_name(str(name))
    return hasattr(found, name)


def _set_attribute(found: object, name: str, value: object) -> None:
    _check_name(str(name))
    setattr(found, name, value)


def _names() -> dict[str, object]:
    found: dict[str, object] = {name: getattr(builtins, name) for name in _BUILTINS.split()}
    found |= {
        name: value
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    power = _rounding(pow)
    return found | {
        "__import__": _import,
        "__power__": power,
        "__check_memory__": _check_memory,
        "__show__": _show,
        "pow": power,
        "abs": _rounding(abs),
        "complex": complex,
        "getattr": _attribute,
        "hasattr": _has_attribute,
        "setattr": _set_attribute,
        "exit": sys.exit,
        "quit": sys.exit,
    }


def _module(name: str) -> types.ModuleType | None:
    """Returns a module with the allowed names only; None if the program can't import it."""
    if name in _CHOSEN:
        return _made(name, _CHOSEN[name]())
    whole = _WHOLE.get(name)
    if whole is None:
        return None
    public: Sequence[str] = getattr(whole, "__all__", None) or [
        each for each in vars(whole) if not each.startswith("_")
    ]
    return _made(name, _chosen(whole, public))


def _math() -> dict[str, object]:
    rounded = {name: _rounding(getattr(math, name)) for name in _ROUNDED.split() if hasattr(math, name)}
    return _chosen(math, _EXACT.split()) | rounded | {"pow": _rounding(math.pow)}


_CHOSEN: dict[str, Callable[[], dict[str, object]]] = {
    "math": _math,
    "random": lambda: _chosen(random, _RANDOM.split()) | {"seed": _seed},
    "statistics": lambda: _chosen(statistics, _STATISTICS.split()),
    "operator": lambda: _chosen(operator, _OPERATOR.split()) | {"pow": _rounding(operator.pow)},
    "typing": lambda: _chosen(typing, _TYPING.split()),
}
"""Modules of which a program can use only some names, which a function returns."""


def _chosen(module: types.ModuleType, names: Sequence[str]) -> dict[str, object]:
    return {name: getattr(module, name) for name in names}


def _made(name: str, content: Mapping[str, object]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    return module


def _import(
    name: str, given: object = None, local: object = None, wanted: Sequence[str] | None = (), level: int = 0
) -> types.ModuleType:
    del given, local
    module = _module(name) if level == 0 else None
    if module is None:
        known = " ".join(sorted({*_WHOLE, *_CHOSEN}))
        raise ImportError(f"there is no module {name[:40]} here; there are {known}")
    if name == "collections.abc" and not wanted:
        parent = _module("collections")
        assert parent is not None  # noqa: S101 - it is in the table
        parent.__dict__["abc"] = module
        return parent
    return module
