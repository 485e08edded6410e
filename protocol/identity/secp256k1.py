"""secp256k1 signatures as Ethereum uses them: 65 bytes r, s, v.

s is in the lower half of the order, v is 27 or 28, and the signer's address is recovered from the signature.

Recovery calls libsecp256k1 through coincurve, which is about a hundred times faster than a curve in pure Python. There
is no fallback to a slow curve, because a service could then not serve the load that it is designed for.
"""

from __future__ import annotations

import sys
from functools import lru_cache

from protocol.errors import InvalidInput, Unavailable
from protocol.identifiers import Address, address
from protocol.keccak import keccak

try:
    from coincurve import PrivateKey, PublicKey
except ImportError as error:  # pragma: no cover - a broken installation
    raise Unavailable(
        f"coincurve can't be imported ({error}); signatures can't be checked without it",
        hint=f"reinstall it: {sys.executable} -m pip install --force-reinstall --no-deps 'coincurve>=21'",
        retryable=False,
    ) from error

__all__ = ["PrivateKey", "address_of", "keccak", "personal_hash", "recover", "sign_hash"]

HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
"""Half the order of secp256k1 (SEC 2, 2.4.1).

EIP-2 rejects signatures with a larger s. Otherwise anyone could turn a valid signature into a second valid one.
"""

FORM_HINT = "docs/protocol.md has the form of signatures, with test vectors"

SIGNATURE_BYTES = 65
"""Length of a signature: 32 bytes r, 32 bytes s and 1 byte v."""

_HALF_ORDER_BYTES = HALF_ORDER.to_bytes(32, "big")


def personal_hash(message: bytes) -> bytes:
    """Returns the hash that an EIP-191 personal signature signs."""
    return keccak(b"\x19Ethereum Signed Message:\n%d" % len(message) + message)


def sign_hash(key: PrivateKey, hash32: bytes) -> bytes:
    """Signs 32 bytes deterministically (RFC 6979).

    Returns 65 bytes r, s, v with a low s and v 27 or 28.
    """
    if len(hash32) != 32:
        raise InvalidInput(
            f"a hash to sign has 32 bytes, not {len(hash32)}",
            hint="sign the Keccak-256 hash of a message, not the message",
        )
    signature = key.sign_recoverable(hash32, hasher=None)
    return signature[:64] + bytes((signature[64] + 27,))


def recover(hash32: bytes, signature: bytes) -> Address:
    """Returns the address that signed `hash32`.

    Raises:
        InvalidInput: The signature is not 65 bytes, is malleable (high s), has a v that is neither 27 nor 28, or
            does not recover to a public key.
    """
    if len(signature) != SIGNATURE_BYTES:
        raise InvalidInput(f"a signature has 65 bytes, not {len(signature)}", hint=FORM_HINT, code="bad-signature")
    recovery = signature[64] - 27
    if recovery not in (0, 1):
        raise InvalidInput(
            f"the last byte of a signature is 27 or 28, not {signature[64]}", hint=FORM_HINT, code="bad-signature"
        )
    if signature[32:64] > _HALF_ORDER_BYTES:
        raise InvalidInput(
            "the signature has a high s",
            hint="sign with a library that normalises s to the lower half (EIP-2)",
            code="bad-signature",
        )
    try:
        public = PublicKey.from_signature_and_message(signature[:64] + bytes((recovery,)), hash32, hasher=None)
    except ValueError as error:  # raised by coincurve for r or s out of range, and for points off the curve
        raise InvalidInput(
            "the signature does not recover to a public key", hint=FORM_HINT, code="bad-signature"
        ) from error
    return _address(public.format(compressed=False))


def address_of(key: PrivateKey) -> Address:
    """Returns the address of a secret key."""
    return _address(key.public_key.format(compressed=False))


@lru_cache(maxsize=65_536)
def _address(public: bytes) -> Address:
    """Returns the address of an uncompressed public key.

    The result is cached, because hashing and the EIP-55 checksum cost as much as a recovery.
    """
    return address("0x" + keccak(public[1:])[12:].hex())
