"""Keccak-256 and EIP-55 checksums, without eth_utils, whose import takes a fifth of a second."""

from __future__ import annotations

try:
    from sha3 import keccak_256 as _keccak_256  # type: ignore[import-untyped]  # safe-pysha3 has no stubs
except ImportError:  # pragma: no cover - without safe-pysha3, hashing takes twice the time
    from eth_hash.auto import keccak as _eth_hash

    _keccak_256 = _eth_hash.new


def keccak(data: bytes) -> bytes:
    """Returns the Keccak-256 hash of `data`, the hash that Ethereum uses."""
    digest: bytes = _keccak_256(data).digest()
    return digest


def checksummed(address: str) -> str:
    """Returns an address, 0x and 40 hex digits, with the upper and lower case of EIP-55."""
    digits = address[2:].lower()
    hashed = keccak(digits.encode()).hex()
    return "0x" + "".join(
        digit.upper() if nibble >= "8" else digit for digit, nibble in zip(digits, hashed[:40], strict=True)
    )
