"""Distinct types for addresses and 32-byte digests, which are both hex strings.

Each value has one canonical form, so that values can be compared as strings.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Annotated, NewType, cast

from pydantic import AfterValidator, Field

from protocol.errors import InvalidInput
from protocol.keccak import checksummed

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress
else:
    ChecksumAddress = str  # what it is at run time; the import of eth_typing takes as long as that of pydantic

Address = NewType("Address", ChecksumAddress)
"""An EVM address, 20 bytes, in EIP-55 checksummed hex. Create it with `address()` only."""

Digest = NewType("Digest", str)
"""32 bytes (SHA-256, Keccak-256 or a work key) as 0x and 64 lower-case hex digits. Create it with `digest()` only."""

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
_DIGEST = re.compile(r"0x[0-9a-f]{64}")

EXAMPLE_ADDRESS = "0x1a642f0E3c3aF545E7AcBD38b07251B3990914F1"
EXAMPLE_DIGEST = "0x" + "b2" * 32
"""Examples for the OpenAPI documents."""

ZERO_ADDRESS = Address(cast("ChecksumAddress", "0x" + "00" * 20))
ZERO_DIGEST = Digest("0x" + "00" * 32)


def address(text: str) -> Address:
    """Returns an address in its canonical form.

    Hex digits of only one case are accepted without a checksum. Digits of mixed case must have the right EIP-55
    checksum, which detects typing errors.

    Raises:
        InvalidInput: `text` is not 0x and 40 hex digits, or its checksum is wrong.
    """
    if not _ADDRESS.fullmatch(text):
        raise InvalidInput(f"{text[:80]!r} is not an address", hint="an address is 0x and 40 hex digits")
    canonical, digits = checksummed(text), text[2:]
    if digits not in {digits.lower(), digits.upper()} and text != canonical:
        raise InvalidInput(
            f"address {text} has a wrong checksum", hint="copy the address again: at least one character is wrong"
        )
    return Address(cast("ChecksumAddress", canonical))


def digest(value: str | bytes) -> Digest:
    """Returns 32 bytes in their canonical form.

    Raises:
        InvalidInput: `value` is neither 32 bytes nor a text of 0x and 64 hex digits.
    """
    text = "0x" + value.hex() if isinstance(value, (bytes, bytearray)) else value.lower()
    if not _DIGEST.fullmatch(text):
        raise InvalidInput(f"{text[:80]!r} is not a 32-byte digest", hint="a digest is 0x and 64 hex digits")
    return Digest(text)


def run_id(name: str) -> Digest:
    """Returns the id of a run.

    A name that is 32 bytes in hex is the id itself. Any other name gives SHA-256(`muster-run-v1` ‖ name).

    Raises:
        InvalidInput: The name is empty or longer than 64 bytes.
    """
    if _DIGEST.fullmatch(name.lower()):
        return digest(name)
    if not 1 <= len(name.encode()) <= 64:
        raise InvalidInput(
            f"a run's name has 1 to 64 bytes, not {len(name.encode())}", hint="choose a shorter name, in ASCII"
        )
    return digest(hashlib.sha256(b"muster-run-v1" + name.encode()).digest())


def _wire_address(text: str) -> Address:
    try:
        return address(text)
    except InvalidInput as error:
        raise ValueError(error.detail) from error


def _wire_digest(text: str) -> Digest:
    try:
        return digest(text)
    except InvalidInput as error:
        raise ValueError(error.detail) from error


WireAddress = Annotated[Address, AfterValidator(_wire_address), Field(examples=[EXAMPLE_ADDRESS])]
"""`Address` as a field of a pydantic model."""

WireDigest = Annotated[Digest, AfterValidator(_wire_digest), Field(examples=[EXAMPLE_DIGEST])]
"""`Digest` as a field of a pydantic model."""
