"""Job that runs a program whose output must be the same on every machine.

The program can import a few modules without clocks, files and unseeded random numbers, and has no builtins that show
addresses. Functions of the C library, such as `sin` and powers with a float as result, differ in the last digits
between processors, so their results are rounded to 12 digits. The value of an expression in the last line is printed.

The sandbox is the security border. The guards here protect only against outputs that differ between machines:

- Every identifier of the program is checked (`_Guard.visit`), and names given as texts (`getattr`, `str.format`).
- The guarded operations call functions by names that no source can spell, and that class bodies read as globals.
- A program ends when its memory limit was reached, before any of its handlers, `finally` blocks or `__exit__` runs.
- Modules have no function that evaluates text or reads attributes by names that the program gives.

The job writes one JSON object to descriptor 3: `{"output": "…", "error": "…", "cut": false}`.
"""

from __future__ import annotations

import abc
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
from typing import Any, NoReturn, TypeVar

from .program import OUT_OF_MEMORY

_T = TypeVar("_T")
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
    "add and_ concat contains countOf eq floordiv ge getitem gt index indexOf inv invert is_ is_not itemgetter le "
    "lshift lt mod mul ne neg not_ or_ pos rshift sub truediv truth xor"
)
_TYPING = "Any Callable Dict Iterable Iterator List NamedTuple Optional Sequence Set Tuple Union"
_COLLECTIONS = "ChainMap Counter OrderedDict UserDict UserList defaultdict deque namedtuple"
"""Not `UserString`, whose `format` calls the unguarded one."""
_DATACLASSES = "FrozenInstanceError InitVar KW_ONLY field fields is_dataclass"
_ENUM = "Enum Flag IntEnum IntFlag StrEnum auto unique"
"""Not `global_enum`, which writes into other modules."""
_FUNCTOOLS = "cache cached_property cmp_to_key lru_cache partial reduce total_ordering"
"""Not `singledispatch`, which evaluates annotations given as texts."""
_STRING = (
    "Template ascii_letters ascii_lowercase ascii_uppercase capwords digits hexdigits octdigits printable punctuation "
    "whitespace"
)
_WHOLE = {
    "bisect": bisect,
    "collections.abc": collections.abc,
    "copy": copy,
    "decimal": decimal,
    "fractions": fractions,
    "heapq": heapq,
    "itertools": itertools,
    "json": json,
    "numbers": numbers,
    "re": re,
    "textwrap": textwrap,
}
_DUNDERS = frozenset({"__class__", "__doc__", "__init__", "__name__"})
_ARITHMETIC = "add and divmod floordiv lshift matmul mod mul or pow rshift sub truediv xor"
_METHODS = frozenset(
    f"__{name}__"
    for name in (
        "abs bool bytes call ceil class_getitem complex contains copy deepcopy delattr delete delitem enter eq exit "
        "float floor format ge get getattr getitem gt hash index init init_subclass int invert iter le len lt missing "
        "ne neg new next pos post_init repr reversed round set set_name setattr setitem str trunc "
        + " ".join(f"{name} r{name} i{name}" for name in _ARITHMETIC.split())
    ).split()
)
"""Methods that a class may define. Not `__del__`: the collector's time and its errors are not part of the program."""
_INTERNALS = frozenset(
    {f"{kind}_{part}" for kind in ("ag", "cr", "gi") for part in ("code", "frame")}
    | {"f_back", "f_builtins", "f_code", "f_globals", "f_locals", "tb_frame", "tb_next"}
    | {"_convert_", "_evaluate"}
)
"""Attributes that lead from a generator, an exception, an enumeration or a type hint out of the program."""
_FORMATS = frozenset({"format", "format_map"})
_EARLIER: list[Callable[[BaseException], BaseException | None]] = [
    vars(BaseException)[name].__get__ for name in ("__context__", "__cause__")
]
_GROUPED: Callable[[BaseException], tuple[BaseException, ...]] = vars(BaseExceptionGroup)["exceptions"].__get__
_POWER, _CHECK_MEMORY, _SHOW, _ATTRIBUTE = "power ", "check memory", "show ", "attribute "
"""Names of the guards. No source can spell them, so a program can't bind them."""


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
        _check_memory()
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
    sys.unraisablehook = _check_ignored
    try:
        tree = ast.parse(payload["source"], _FILE)
        _Guard().visit(tree)
        code = compile(ast.fix_missing_locations(_shows_last(tree)), _FILE, "exec", dont_inherit=True)
        exec(code, {"__builtins__": _names(), "__name__": "__main__"})  # noqa: S102 - this process's purpose
    except MemoryError:
        return OUT_OF_MEMORY
    except SystemExit:
        _check_memory()
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
        _check_memory()
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
    """Refuses names that lead out of the program, and replaces operations by guarded ones."""

    def __init__(self) -> None:
        self._methods: set[ast.AST] = set()

    def visit(self, node: ast.AST) -> object:
        """Checks all identifiers of a node, whatever its kind, and guards it."""
        if not isinstance(node, ast.Constant):
            for _, value in ast.iter_fields(node):
                for name in value if isinstance(value, list) else [value]:
                    if isinstance(name, str) and not (node in self._methods and name in _METHODS):
                        _check_identifier(name)
        return super().visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._methods.update(part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
        self.generic_visit(node)
        # A class body reads other names from a mapping that the program may provide.
        start = 0 if ast.get_docstring(node, clean=False) is None else 1
        node.body.insert(start, ast.copy_location(ast.Global([_POWER, _CHECK_MEMORY, _ATTRIBUTE]), node.body[0]))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr not in _FORMATS or not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(_guarded(_ATTRIBUTE, node.value, ast.Constant(node.attr)), node)

    def visit_MatchClass(self, node: ast.MatchClass) -> ast.AST:
        # Positions and the guarded attributes would be read by names that are known only at run time.
        if node.patterns or _FORMATS.intersection(node.kwd_attrs):
            raise _Refused("a pattern of a class needs names of attributes, as in case Point(x=0, y=1)")
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow):
            return node
        return ast.copy_location(_guarded(_POWER, node.left, node.right), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow):
            return node
        if not isinstance(node.target, ast.Name):
            raise _Refused("**= is possible for a plain name only; write x = x ** y")
        power = _guarded(_POWER, ast.Name(node.target.id, ast.Load()), node.value)
        return ast.copy_location(ast.Assign([node.target], power), node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.copy_location(ast.Expr(_guarded(_CHECK_MEMORY)), node))
        return node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        self.generic_visit(node)
        return _with_checked_end(node)

    def visit_TryStar(self, node: ast.TryStar) -> ast.AST:
        self.generic_visit(node)
        return _with_checked_end(node)

    def visit_With(self, node: ast.With) -> ast.AST:
        return self._visit_with(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        return self._visit_with(node)

    def _visit_with(self, node: ast.With | ast.AsyncWith) -> ast.AST:
        self.generic_visit(node)
        node.body = [_checked(node.body)]
        # The other managers of the statement also see errors of the managers after them.
        for item in reversed(node.items[1:]):
            inner = ast.copy_location(type(node)([item], node.body), node)
            node.body = [_checked([inner])]
        del node.items[1:]
        return node


def _with_checked_end(node: ast.Try | ast.TryStar) -> ast.AST:
    """Checks the memory before a `finally` block, which may drop the error."""
    if not node.finalbody:
        return node
    final, node.finalbody = node.finalbody, []
    body: list[ast.stmt] = [node] if node.handlers else node.body
    checked = _checked(body)
    checked.finalbody = final
    return checked


def _checked(body: list[ast.stmt]) -> ast.Try:
    """Returns statements after whose errors the memory is checked."""
    handler = ast.ExceptHandler(None, None, [ast.Expr(_guarded(_CHECK_MEMORY)), ast.Raise()])
    return ast.copy_location(ast.Try(body, [handler], [], []), body[0])


def _guarded(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _check_identifier(name: str) -> None:
    for part in name.split("."):
        _check_name(part)


def _check_name(name: object) -> None:
    if type(name) is not str:
        raise TypeError("the name of an attribute is a plain text")
    if name in _INTERNALS or (
        name.startswith("__") and name.endswith("__") and name.strip("_") and name not in _DUNDERS
    ):
        raise _Refused(f"the name {name} can't be used here")


def _shows_last(tree: ast.Module) -> ast.Module:
    """Prints the value of the last line if it is an expression, as an interactive interpreter does."""
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        last.value = ast.copy_location(_guarded(_SHOW, last.value), last.value)
    return tree


def _check_memory() -> None:
    """Ends the job if its memory limit was reached: the program must not go on after that, as on another machine."""
    _end_without_memory(sys.exc_info()[1])


def _check_ignored(ignored: sys.UnraisableHookArgs) -> None:
    """Checks an error that the interpreter reports but does not raise, such as an error in a destructor."""
    _end_without_memory(ignored.exc_value)


def _end_without_memory(error: BaseException | None) -> None:
    """Ends the job if an error, one of its group or one before it says that there is no memory."""
    left, seen = [error], set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, MemoryError):
            os._exit(OUT_OF_MEMORY)
        seen.add(id(each))
        # The class of an error may define attributes of the same names, so the descriptors read them.
        left += [read(each) for read in _EARLIER]
        if isinstance(each, BaseExceptionGroup):
            left += _GROUPED(each)


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
    def call(*arguments: object, **named: object) -> object:
        return _rounded(function(*arguments, **named))

    return _named(call, function)


def _named(call: _T, function: object) -> _T:
    """Gives a function the names and the text of another, but no reference to it, as `functools.wraps` does."""
    for name in ("__name__", "__qualname__", "__doc__"):
        if hasattr(function, name):
            setattr(call, name, getattr(function, name))
    return call


def _wraps(function: object) -> Callable[[_T], _T]:
    return lambda call: _named(call, function)


def _seed(value: int | float | str | bytes) -> None:
    if not isinstance(value, int | float | str | bytes):
        raise TypeError("a seed is a number or a text")
    random.seed(value)


def _attribute(found: object, name: str, *default: object) -> object:
    _check_name(name)
    value = getattr(found, name, *default)
    method = type(value) is types.BuiltinMethodType and value.__name__ in _FORMATS and isinstance(value.__self__, str)
    if not method and value is not str.format and value is not str.format_map:
        return value

    def call(*arguments: object, **named: object) -> object:
        template = value.__self__ if method else arguments[0] if arguments else ""
        if isinstance(template, str):
            _check_template(str.__add__("", template))
        return value(*arguments, **named)

    return _named(call, value)


def _check_template(template: str) -> None:
    """Checks the attributes that a format reads."""
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError:
        return  # the format raises the same
    for _, field, inner, _ in fields:
        for part in re.split(r"[.\[\]]", field or ""):
            _check_name(part)
        if inner:
            _check_template(inner)


def _has_attribute(found: object, name: str) -> bool:
    _check_name(name)
    return hasattr(found, name)


def _set_attribute(found: object, name: str, value: object) -> None:
    _check_name(name)
    setattr(found, name, value)


def _dataclass(found: type | None = None, /, **options: bool) -> type | Callable[[type], type]:
    def made(found: type) -> type:
        _check_fields(found)
        return dataclasses.dataclass(**options)(found)

    return made if found is None else made(found)


def _check_fields(found: type) -> None:
    """Checks the names of fields, which `dataclasses` compiles and reads as attributes."""
    if type(found) not in (type, abc.ABCMeta):
        raise _Refused("a dataclass can't have a metaclass here")
    for base in found.__mro__:
        annotations, fields = (vars(base).get(name, {}) for name in ("__annotations__", "__dataclass_fields__"))
        if type(annotations) is not dict or type(fields) is not dict:
            raise _Refused("the fields of a dataclass can't be replaced here")
        for name in (*annotations, *fields, *(getattr(each, "name", None) for each in fields.values())):
            _check_name(name)
            if not name.isidentifier():
                raise _Refused("the name of a field is an identifier")


def _of_fields(function: Callable[..., object]) -> Callable[..., object]:
    """Returns a function of `dataclasses` that reads the fields of an instance."""

    def call(found: object, /, **options: object) -> object:
        if dataclasses.is_dataclass(found):
            _check_fields(type(found))
        return function(found, **options)

    return _named(call, function)


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
        _POWER: power,
        _CHECK_MEMORY: _check_memory,
        _SHOW: _show,
        _ATTRIBUTE: _attribute,
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
    "collections": lambda: _chosen(collections, _COLLECTIONS.split()),
    "dataclasses": lambda: (
        _chosen(dataclasses, _DATACLASSES.split())
        | {"dataclass": _dataclass}
        | {each.__name__: _of_fields(each) for each in (dataclasses.asdict, dataclasses.astuple, dataclasses.replace)}
    ),
    "enum": lambda: _chosen(enum, _ENUM.split()),
    "functools": lambda: _chosen(functools, _FUNCTOOLS.split()) | {"wraps": _wraps, "update_wrapper": _named},
    "math": _math,
    "random": lambda: _chosen(random, _RANDOM.split()) | {"seed": _seed},
    "string": lambda: _chosen(string, _STRING.split()),
    "statistics": lambda: _chosen(statistics, _STATISTICS.split()),
    "operator": lambda: _chosen(operator, _OPERATOR.split()) | {"abs": _rounding(abs), "pow": _rounding(operator.pow)},
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
