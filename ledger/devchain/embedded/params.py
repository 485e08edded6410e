"""Parses JSON-RPC parameters; invalid parameters raise `RpcError`."""

from __future__ import annotations

import re

from ledger.devchain.embedded.errors import RpcError, invalid
from ledger.devchain.embedded.evm import BLOCK_GAS_LIMIT, UnsignedCall

_QUANTITY = re.compile(r"0x[0-9a-fA-F]{1,64}")
_DATA = re.compile(r"0x(?:[0-9a-fA-F]{2})*")
_TAGS = {"latest", "safe", "finalized", "pending", "earliest"}
_MAX_ALTERNATIVES = 1_000


def quantity(value: object, *, what: str = "a number") -> int:
    """Parses a non-negative integer: 0x-prefixed hex, or a JSON number."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and _QUANTITY.fullmatch(value):
        return int(value, 16)
    raise invalid(f"{what} must be 0x-prefixed hex, got {str(value)[:80]!r}")


def data(value: object, *, size: int | None = None, what: str = "data") -> bytes:
    """Parses 0x-prefixed hex, of exactly `size` bytes if given."""
    if not isinstance(value, str) or not _DATA.fullmatch(value):
        raise invalid(f"{what} must be 0x-prefixed hex bytes, got {str(value)[:80]!r}")
    decoded = bytes.fromhex(value[2:])
    if size is not None and len(decoded) != size:
        raise invalid(f"{what} must have {size} bytes, has {len(decoded)}")
    return decoded


def account(value: object) -> bytes:
    """Parses an address."""
    return data(value, size=20, what="an address")


def block_tag(value: object) -> str | int | bytes:
    """Parses a block tag, height, or hash (the object of EIP-1898); null means the newest block."""
    if value is None:
        return "latest"
    if isinstance(value, dict):
        if "blockHash" in value:
            return data(value["blockHash"], size=32, what="blockHash")
        return quantity(value.get("blockNumber"), what="blockNumber")
    if isinstance(value, str) and value in _TAGS:
        return value
    return quantity(value, what="a block")


def call(value: object) -> UnsignedCall:
    """Parses an unsigned transaction. Its fees are ignored, because calls are free."""
    if not isinstance(value, dict):
        raise invalid("a call must be an object")
    payload = value.get("input", value.get("data"))
    gas = quantity(value["gas"], what="gas") if value.get("gas") is not None else BLOCK_GAS_LIMIT
    return UnsignedCall(
        sender=account(value["from"]) if value.get("from") is not None else bytes(20),
        to=account(value["to"]) if value.get("to") else b"",
        data=data(payload) if payload is not None else b"",
        value=quantity(value["value"], what="value") if value.get("value") is not None else 0,
        gas=min(gas, BLOCK_GAS_LIMIT),
    )


def addresses(value: object) -> tuple[bytes, ...]:
    """Parses the addresses of a log filter: none, one, or a list."""
    if value is None:
        return ()
    return tuple(account(item) for item in _alternatives(value))


def topics(value: object) -> tuple[tuple[bytes, ...], ...]:
    """Parses the topics of a log filter; null or an empty list at a position matches any topic."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > 4:
        raise invalid("topics must be a list of at most four")
    return tuple(
        () if item is None else tuple(data(topic, size=32, what="a topic") for topic in _alternatives(item))
        for item in value
    )


def at(params: list[object], index: int, *, what: str) -> object:
    """Returns a required parameter."""
    if index >= len(params):
        raise invalid(f"missing {what}")
    return params[index]


def optional(params: list[object], index: int) -> object:
    """Returns an optional parameter; None if it is missing."""
    return params[index] if index < len(params) else None


def _alternatives(value: object) -> list[object]:
    items = value if isinstance(value, list) else [value]
    if len(items) > _MAX_ALTERNATIVES:
        raise RpcError(f"at most {_MAX_ALTERNATIVES} alternatives, got {len(items)}")
    return items
