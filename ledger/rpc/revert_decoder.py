"""Decodes revert data: finds custom errors by selector in given ABIs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eth_abi.exceptions import DecodingError
from eth_utils.abi import collapse_if_tuple
from eth_utils.crypto import keccak

from ledger.rpc.abi_decoding import decode

_ERROR = bytes.fromhex("08c379a0")
_PANIC = bytes.fromhex("4e487b71")

_PANICS = {
    0x01: "assertion failed",
    0x11: "arithmetic overflow",
    0x12: "division by zero",
    0x21: "not a value of the enum",
    0x31: "pop of an empty array",
    0x32: "index out of bounds",
    0x41: "out of memory",
}
"""The common panic codes of Solidity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """Decoded revert data.

    Args:
        name: Name of the custom error, `Error`, `Panic`, or empty if the data can't be decoded.
        arguments: Arguments by name; by position where the ABI gives no name.
        data: The raw revert data.
    """

    name: str
    arguments: Mapping[str, object]
    data: bytes

    def __str__(self) -> str:
        if not self.name:
            return f"reverted with {'0x' + self.data[:36].hex()}" if self.data else "reverted without a reason"
        listed = ", ".join(f"{name}={_format_value(value)}" for name, value in self.arguments.items())
        return f"{self.name}({listed})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ErrorShape:
    name: str
    names: tuple[str, ...]
    types: tuple[str, ...]


class RevertReader:
    """Decodes revert data.

    Args:
        abis: ABIs with `error` entries. If two entries have the same selector, the first one is used.
    """

    def __init__(self, abis: Iterable[Sequence[Mapping[str, Any]]] = ()) -> None:
        self._shapes: dict[bytes, _ErrorShape] = {}
        for abi in abis:
            for entry in abi:
                if entry.get("type") == "error":
                    selector, shape = _shape(entry)
                    self._shapes.setdefault(selector, shape)

    def read(self, data: bytes) -> Revert:
        """Decodes revert data; undecodable data gets an empty name."""
        selector, body = data[:4], data[4:]
        try:
            if selector == _ERROR:
                return Revert(name="Error", arguments={"message": decode(["string"], body)[0]}, data=data)
            if selector == _PANIC:
                code = int(decode(["uint256"], body)[0])
                return Revert(name="Panic", arguments={"code": code, "meaning": _PANICS.get(code, "?")}, data=data)
            shape = self._shapes.get(selector)
            if shape is not None and not body:  # our contracts put a bare selector into `VerdictRefused` events
                return Revert(name=shape.name, arguments={}, data=data)
            if shape is not None:
                values = decode(list(shape.types), body)
                return Revert(name=shape.name, arguments=dict(zip(shape.names, values, strict=True)), data=data)
        except (DecodingError, OverflowError):
            pass  # a contract may revert with arbitrary bytes
        return Revert(name="", arguments={}, data=data)


def _shape(entry: Mapping[str, Any]) -> tuple[bytes, _ErrorShape]:
    inputs = entry.get("inputs", [])
    types = tuple(collapse_if_tuple(dict(item)) for item in inputs)
    names = tuple(str(item.get("name") or index) for index, item in enumerate(inputs))
    signature = f"{entry['name']}({','.join(types)})"
    return keccak(text=signature)[:4], _ErrorShape(name=str(entry["name"]), names=names, types=types)


def _format_value(value: object) -> str:
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)
