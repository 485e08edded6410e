"""Lua scripts for the tests of typed script calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from protocol.identifiers import Address
from protocol.redis.script_call import ScriptCall
from protocol.redis.scripts import Admission


@dataclass(frozen=True, slots=True, kw_only=True)
class CountAdmitted(ScriptCall[Admission]):
    address: Address
    nonce: str
    now_us: int


class Types(NamedTuple):
    number: int
    text: str
    flag: bool
    raw: bytes
    names: tuple[str, ...]
    pairs: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoTypes(ScriptCall[Types]):
    number: int
    absent: int | None
    fraction: float
    flag: bool
    text: str
    missing_text: str | None
    raw: bytes
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoNames(ScriptCall[tuple[int, ...]]):
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyReply(ScriptCall[Types]):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced(ScriptCall[int]):
    names: tuple[str, ...]
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenName(ScriptCall[int]):
    clock: int
