"""Builtins and modules that a program of `repeatable` can use; their results are equal on every machine.

Results of the C library are rounded to 12 digits, and no function evaluates text or reads attributes by names that the
program gives without a check.
"""

from __future__ import annotations

import abc
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
import random
import re
import statistics
import string
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from .memory_limit import check_memory
from .program_guard import ATTRIBUTE, CHECK_MEMORY, FORMATS, POWER, SHOW, Refused, check_name

_T = TypeVar("_T")
_DIGITS = 12

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
    check_name(name)
    value = getattr(found, name, *default)
    method = type(value) is types.BuiltinMethodType and value.__name__ in FORMATS and isinstance(value.__self__, str)
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
            check_name(part)
        if inner:
            _check_template(inner)


def _has_attribute(found: object, name: str) -> bool:
    check_name(name)
    return hasattr(found, name)


def _set_attribute(found: object, name: str, value: object) -> None:
    check_name(name)
    setattr(found, name, value)


def _dataclass(found: type | None = None, /, **options: bool) -> type | Callable[[type], type]:
    def made(found: type) -> type:
        _check_fields(found)
        return dataclasses.dataclass(**options)(found)

    return made if found is None else made(found)


def _check_fields(found: type) -> None:
    """Checks the names of fields, which `dataclasses` compiles and reads as attributes."""
    if type(found) not in (type, abc.ABCMeta):
        raise Refused("a dataclass can't have a metaclass here")
    for base in found.__mro__:
        annotations, fields = (vars(base).get(name, {}) for name in ("__annotations__", "__dataclass_fields__"))
        if type(annotations) is not dict or type(fields) is not dict:
            raise Refused("the fields of a dataclass can't be replaced here")
        for name in (*annotations, *fields, *(getattr(each, "name", None) for each in fields.values())):
            check_name(name)
            if not name.isidentifier():
                raise Refused("the name of a field is an identifier")


def _of_fields(function: Callable[..., object]) -> Callable[..., object]:
    """Returns a function of `dataclasses` that reads the fields of an instance."""

    def call(found: object, /, **options: object) -> object:
        if dataclasses.is_dataclass(found):
            _check_fields(type(found))
        return function(found, **options)

    return _named(call, function)


def usable_names() -> dict[str, object]:
    """Returns the builtins of a program, and the guards."""
    found: dict[str, object] = {name: getattr(builtins, name) for name in _BUILTINS.split()}
    found |= {
        name: value
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    power = _rounding(pow)
    return found | {
        "__import__": _import,
        POWER: power,
        CHECK_MEMORY: check_memory,
        SHOW: _show,
        ATTRIBUTE: _attribute,
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
