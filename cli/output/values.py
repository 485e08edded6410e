"""Values of results, which a terminal shows in other words than a program reads.

Commands pass these values to `cli.output.printing`; they never format amounts, times and sizes for programs themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from pydantic_core import to_jsonable_python

from cli.output.quantities import ago, format_size, moment
from ledger.amounts import format_amount


@dataclass(frozen=True, slots=True)
class Must:
    """An amount of MUST in its smallest unit, 10⁻¹⁸ MUST. Programs read it as a string of digits."""

    amount: int

    @property
    def text(self) -> str:
        """The amount with its unit, for people."""
        return f"{format_amount(self.amount)} MUST"

    @property
    def raw(self) -> object:
        """The amount for programs; many JSON readers round large integers, so it is a string."""
        return str(self.amount)


@dataclass(frozen=True, slots=True)
class Ether:
    """An amount of the chain's coin in wei. Programs read it as a string of digits."""

    wei: int

    @property
    def text(self) -> str:
        """The amount with its unit, for people."""
        return f"{format_amount(self.wei)} ETH"

    @property
    def raw(self) -> object:
        """The amount for programs."""
        return str(self.wei)


@dataclass(frozen=True, slots=True)
class Ago:
    """A time in milliseconds of Unix time, shown as the time that has passed. Programs read the time itself."""

    time_ms: int | None

    @property
    def text(self) -> str:
        """The time that has passed until now, for people."""
        return ago(self.time_ms, now=datetime.now(UTC))

    @property
    def raw(self) -> object:
        """The time for programs."""
        return moment(self.time_ms)


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes, shown with its binary unit. Programs read the number."""

    size: int

    @property
    def text(self) -> str:
        """The size with its unit, for people."""
        return format_size(self.size)

    @property
    def raw(self) -> object:
        """The number of bytes, for programs."""
        return self.size


@dataclass(frozen=True, slots=True)
class Named:
    """An address whose holder has given itself a name. Programs read the address.

    The name is not verified and two holders may have the same one, so a terminal shows the address as well.
    """

    address: str
    name: str | None = None

    @property
    def text(self) -> str:
        """The name, if there is one, and the address, for people."""
        return self.address if self.name is None else f"{self.name} {self.address}"

    @property
    def raw(self) -> object:
        """The address, for programs."""
        return self.address


@dataclass(frozen=True, slots=True)
class Shown:
    """A value with a text of its own for people."""

    raw: object
    """The value for programs."""
    text: str


Typed = Must | Ether | Ago | Size | Named | Shown


def as_text(value: object) -> str:  # noqa: PLR0911 - one per type
    """Returns a value as people read it."""
    match value:
        case None:
            return "-"
        case Must() | Ether() | Ago() | Size() | Named() | Shown():
            return value.text
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S UTC")
        case Enum():
            return str(value.value)
        case list() | tuple():
            return ", ".join(as_text(item) for item in value) or "-"
        case _:
            return str(value)


def as_plain(value: object) -> str:
    """Returns a value as one field of tab-separated output: the JSON value, and an empty text instead of null."""
    raw = as_json(value)
    if isinstance(raw, list):
        return ",".join(as_plain(item) for item in raw)
    if raw is None or isinstance(raw, str):
        return raw or ""
    return json.dumps(raw, ensure_ascii=False)


def as_json(value: object) -> object:
    """Returns a value with only the types of JSON; it may contain typed values, models, dataclasses and times."""
    match value:
        case Must() | Ether() | Ago() | Size() | Named() | Shown():
            return as_json(value.raw)
        case Mapping():
            return {str(as_json(name)): as_json(item) for name, item in value.items()}
        case list() | tuple():
            return [as_json(item) for item in value]
        case _:
            jsonable: object = to_jsonable_python(value)
            return jsonable
