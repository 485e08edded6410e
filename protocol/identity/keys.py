"""A signing key that never shows its secret in text, pickles or copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from protocol.errors import InvalidInput
from protocol.identifiers import Address
from protocol.identity import secp256k1

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount


class Key:
    """A secp256k1 key with its address.

    Its `repr` never shows the secret. It can't be pickled or copied.

    Args:
        secret: The secret number as 32 bytes, big-endian.

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
            # The original exception is not chained, because its message could contain the secret.
            raise InvalidInput(
                "these 32 bytes are not a secp256k1 key: the number is zero, or not below the order of the curve",
                code="bad-key",
            ) from None
        self.address = secp256k1.address_of(self._key)

    @classmethod
    def generate(cls) -> Key:
        """Generates a key with the operating system's random numbers."""
        return cls(secp256k1.PrivateKey().secret)

    @classmethod
    def from_hex(cls, text: str) -> Key:
        """Creates a key from 64 hex digits, with or without 0x.

        Raises:
            InvalidInput: The text is not a key of 64 hex digits. The error does not repeat the text, because it may be
                a secret.
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
        """Signs a 32-byte hash as it is.

        Returns 65 bytes: r, a low s, and v, which is 27 or 28.
        """
        return secp256k1.sign_hash(self._key, hash32)

    def sign_message(self, message: bytes) -> bytes:
        """Signs an EIP-191 personal message; returns 65 bytes as `sign_hash` does."""
        return secp256k1.sign_hash(self._key, secp256k1.personal_hash(message))

    def reveal(self) -> bytes:
        """Returns the 32-byte secret, to be written to a keystore.

        The caller must keep it confidential.
        """
        return self._key.secret

    def account(self) -> LocalAccount:
        """Returns the key as an eth-account object, which signs transactions."""
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
        raise TypeError("a key can't be pickled or copied: pass the path of its keystore instead")
