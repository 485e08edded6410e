"""Encryption of the secrets that the orchestrator stores in Redis."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from protocol.errors import InvalidInput, Unavailable
from protocol.runtime.files import create_atomically

MOST_KEY_BYTES = 4096
"""Maximum number of bytes that are read from the key file."""


class SecretCipher:
    """Encrypts secrets with the first key and decrypts them with any of the keys.

    Args:
        keys: Fernet keys (32 bytes in URL-safe base64), newest first. Without a key, `encrypt` raises an error.
    """

    def __init__(self, keys: list[str]) -> None:
        try:
            self._fernet = MultiFernet([Fernet(key) for key in keys]) if keys else None
        except ValueError as error:
            raise InvalidInput(
                "the secrets key file has an entry that is not a Fernet key",
                hint="one key per line: 32 random bytes in URL-safe base64",
                code="invalid-setting",
            ) from error

    @property
    def has_key(self) -> bool:
        """Returns whether `encrypt` is possible."""
        return self._fernet is not None

    @classmethod
    def from_file(cls, path: Path) -> SecretCipher:
        """Reads the key file, which has one key per line.

        If the file does not exist, it is created with a new key and mode 0600.

        Raises:
            InvalidInput: The file can't be read or created, or has an invalid key.
        """
        try:
            if not path.exists():
                with suppress(FileExistsError):  # another replica created the file first
                    create_atomically(path, Fernet.generate_key() + b"\n")
        except OSError as error:
            raise InvalidInput(
                f"can't create the secrets key file {path}: {error.strerror}",
                hint="check secrets_key_file in the settings, and the rights of its folder",
            ) from error
        try:
            with path.open("rb") as source:
                data = source.read(MOST_KEY_BYTES)
        except OSError as error:
            raise InvalidInput(
                f"can't read the secrets key file {path}: {error.strerror}",
                hint="check secrets_key_file in the settings, and its owner and mode",
            ) from error
        return cls(data.decode("ascii", "replace").split())

    def encrypt(self, plain: bytes) -> str:
        """Returns the Fernet token of `plain`.

        Raises:
            InvalidInput: There is no key.
        """
        if self._fernet is None:
            raise InvalidInput(
                "this orchestrator can't store secrets: it has no key to encrypt them",
                hint="set secrets_key_file in its settings",
                code="no-secrets-key",
            )
        return self._fernet.encrypt(plain).decode("ascii")

    def decrypt(self, token: str) -> bytes:
        """Returns the plaintext of a Fernet token.

        Raises:
            Unavailable: No key decrypts the token.
        """
        if self._fernet is not None:
            try:
                return self._fernet.decrypt(token)
            except InvalidToken:
                pass
        raise Unavailable(
            "the secrets can't be decrypted with the keys of this orchestrator",
            hint="give every orchestrator of the pool the same secrets_key_file, older keys included",
            code="wrong-secrets-key",
            retryable=False,
        )
