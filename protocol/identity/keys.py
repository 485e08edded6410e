"""Signing key whose secret never appears in text, pickles or copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from protocol.errors import InvalidInput
from protocol.identifiers import Address
from protocol.identity import secp256k1

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount


class Key:
    """A secp256k1 key with its address. Its text never shows the secret, and it can't be pickled or copied.

    Args:
        secret: 32 bytes.

    Raises:
        InvalidInput: `secret` is not a secp256k1 key.
    """

    __slots__ = ("_key", "address")

    address: Address
    """Address of the key."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise InvalidInput(f"a key has 32 bytes, not {len(secret)}", code="bad-key")
        try:
            self._key = secp256k1.PrivateKey(secret)
        except ValueError:
            # Not chained: the original message could contain the secret.
            raise InvalidInput(
                "these 32 bytes are no secp256k1 key (zero, or beyond the order)", code="bad-key"
            ) from None
        self.address = secp256k1.address_of(self._key)

    @classmethod
    def generate(cls) -> Key:
        """Generates a key from the operating system's randomness."""
        return cls(secp256k1.PrivateKey().secret)

    @classmethod
    def from_hex(cls, text: str) -> Key:
        """Reads 64 hex digits, with or without 0x.

        Raises:
            InvalidInput: The text has another form; the error does not repeat it.
        """
        digits = text.strip().removeprefix("0x")
        if len(digits) != 64:
            raise InvalidInput(f"a key in hex has 64 digits, not {len(digits)}", code="bad-key")
        try:
            secret = bytes.fromhex(digits)
        except ValueError:
            raise InvalidInput("a key in hex has hex digits only", code="bad-key") from None
        return cls(secret)

    def sign_hash(self, hash32: bytes) -> bytes:
        """Signs 32 bytes without hashing; returns 65 bytes with low s and v 27 or 28."""
        return secp256k1.sign_hash(self._key, hash32)

    def sign_message(self, message: bytes) -> bytes:
        """Signs an EIP-191 personal message; returns 65 bytes."""
        return secp256k1.sign_hash(self._key, secp256k1.personal_hash(message))

    def reveal(self) -> bytes:
        """Returns the secret, for a keystore. The caller must keep it confidential."""
        return self._key.secret

    def account(self) -> LocalAccount:
        """Returns the key as an eth-account object, to sign transactions."""
        from eth_account import Account  # noqa: PLC0415 - takes half a second, and only senders of transactions need it

        account: LocalAccount = Account.from_key(self._key.secret)
        return account

    def __repr__(self) -> str:
        return f"Key({self.address})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __reduce__(self) -> Never:
        raise TypeError("a key is not pickled or copied: hand over its keystore instead")
