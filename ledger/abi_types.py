"""Converts decoded ABI values to our own types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from protocol.identifiers import ZERO_ADDRESS, Address, Digest, address, digest

T = TypeVar("T")

_NOTHING = (0, ZERO_ADDRESS, bytes(32))
"""Zero values, which `from_abi` converts to None for optional types."""
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, the maximum of `datetime`; contracts use larger numbers for "never"."""


def from_abi(kind: Any, value: Any) -> Any:  # noqa: ANN401 - the type is an argument
    """Converts a decoded ABI value to `kind`.

    Addresses and 32-byte strings get their canonical form. Times are Unix seconds. For a `kind` of `X | None`, zero
    becomes None.
    """
    if get_origin(kind) in {Union, UnionType}:  # `X | None` is a `Union` if X is a NewType, else a `UnionType`
        if value in _NOTHING:
            return None
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if kind is Address:
        return address(value)
    if kind is Digest:
        return digest(bytes(value))
    if kind is datetime:
        return datetime.fromtimestamp(min(value, _LAST_SECOND), UTC)
    if kind is timedelta:
        return timedelta(seconds=value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value


def struct_from_abi(kind: type[T], values: Sequence[Any]) -> T:
    """Builds a dataclass from a decoded ABI struct.

    The fields of the dataclass must have the order of the struct's components.

    Raises:
        TypeError: Struct and dataclass have different numbers of fields: client and contract differ in version.
    """
    if not is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is not a dataclass")
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    if len(names) != len(values):
        raise TypeError(f"the contract returned {len(values)} values where {kind.__name__} has {len(names)}")
    return kind(**{name: from_abi(hints[name], value) for name, value in zip(names, values, strict=True)})
