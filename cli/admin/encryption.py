"""Encryption of a backup with a passphrase: AES-256-GCM in chunks, with a key from scrypt.

The file begins with a magic number and a salt. Chunks of `CHUNK` bytes follow, each with its tag; the last one is
shorter or empty. A chunk's nonce is its number and whether it is the last one, so a reader detects chunks that are
missing, moved or added. A new salt for each file gives each file its own key, so nonces never repeat under a key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from cli.admin.archive import BadBackup
from protocol.errors import InvalidInput
from protocol.runtime.files import read_limited
from protocol.runtime.randomness import token_bytes

MAGIC = b"muster-backup-aes256gcm-scrypt-1"
CHUNK = 1 << 20
_SALT = 32
_TAG = 16
_COST = 1 << 17
"""scrypt's N: 128 MiB and some tenths of a second for each guess."""
_MOST_PASSPHRASE = 4096


def passphrase_in(path: Path | None) -> bytes | None:
    """Returns the passphrase in a file: its content without a final line break; None if no file is named.

    Raises:
        InvalidInput: The file can't be read, is empty, or is too long.
    """
    if path is None:
        return None
    hint = "write a long random passphrase into it, and keep a copy elsewhere"
    passphrase = read_limited(path, most=_MOST_PASSPHRASE, what="the passphrase file", hint=hint).rstrip(b"\r\n")
    if not passphrase:
        raise InvalidInput(f"the passphrase file {path} is empty", hint=hint)
    return passphrase


class EncryptingSink:
    """Encrypts what is written to it; `finish` must be called at the end.

    Args:
        out: Function that writes encrypted bytes.
        passphrase: The passphrase.
    """

    def __init__(self, out: Callable[[bytes], object], passphrase: bytes) -> None:
        self._out = out
        salt = token_bytes(_SALT)
        self._cipher = _cipher(passphrase, salt)
        self._waiting = bytearray()
        self._number = 0
        out(MAGIC + salt)

    def write(self, data: bytes) -> None:
        """Encrypts bytes; up to one chunk of them waits in memory."""
        self._waiting += data
        while len(self._waiting) >= CHUNK:
            self._seal(CHUNK, last=False)

    def finish(self) -> None:
        """Writes the last chunk."""
        self._seal(len(self._waiting), last=True)

    def _seal(self, size: int, *, last: bool) -> None:
        chunk = bytes(self._waiting[:size])
        del self._waiting[:size]
        self._out(self._cipher.encrypt(_nonce(self._number, last=last), chunk, MAGIC))
        self._number += 1


class DecryptingSource:
    """Decrypts a file that `EncryptingSink` wrote.

    Args:
        take: Function that reads the file after the magic number; it returns fewer bytes only at the end.
        passphrase: The passphrase.

    Raises:
        BadBackup: The passphrase is wrong, or the file is damaged or truncated.
    """

    def __init__(self, take: Callable[[int], bytes], passphrase: bytes) -> None:
        self._take = take
        self._cipher = _cipher(passphrase, take(_SALT))
        self._ready = bytearray()
        self._number = 0
        self._ended = False
        self._open()

    def read(self, size: int) -> bytes:
        """Returns the next decrypted bytes.

        Raises:
            BadBackup: The file is damaged or truncated.
        """
        while len(self._ready) < size and not self._ended:
            self._open()
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data

    def _open(self) -> None:
        sealed = self._take(CHUNK + _TAG)
        self._ended = len(sealed) < CHUNK + _TAG
        try:
            self._ready += self._cipher.decrypt(_nonce(self._number, last=self._ended), sealed, MAGIC)
        except InvalidTag as error:
            if self._number == 0:
                raise BadBackup(
                    "the passphrase is wrong, or the backup is damaged", hint="name the file with its passphrase"
                ) from error
            raise BadBackup(f"the encrypted backup is damaged or truncated after {self._number} MiB") from error
        self._number += 1


def _cipher(passphrase: bytes, salt: bytes) -> AESGCM:
    return AESGCM(Scrypt(salt=salt, length=32, n=_COST, r=8, p=1).derive(passphrase))


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])
