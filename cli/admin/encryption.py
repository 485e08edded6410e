"""Encryption of a backup with a passphrase: AES-256-GCM in chunks, with a key from scrypt.

The file begins with a magic number and a salt. Chunks of `CHUNK` bytes follow, each with its tag; the last one is
shorter or empty. A chunk's nonce is its number and whether it is the last one, so a reader detects chunks that are
missing, moved or added. A new salt for each file gives each file its own key, so nonces never repeat under a key.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from cli.admin.archive import BadBackup, Sink, Source
from protocol.errors import InvalidInput
from protocol.runtime.randomness import token_bytes

MAGIC = b"muster-backup-aes256gcm-scrypt-1"
CHUNK = 1 << 20
_SALT = 32
_TAG = 16
_COST = 1 << 17
"""scrypt's N: 128 MiB and some tenths of a second for each guess."""
_MOST_PASSPHRASE = 4096


def passphrase_in(path: Path) -> bytes:
    """Returns the passphrase in a file: its content without a final line break.

    Raises:
        InvalidInput: The file can't be read, is empty, or is too long.
    """
    try:
        with path.open("rb") as file:
            passphrase = file.read(_MOST_PASSPHRASE + 1).rstrip(b"\r\n")
    except OSError as error:
        raise InvalidInput(f"the passphrase file {path} can't be read: {error.strerror}") from error
    if not passphrase or len(passphrase) > _MOST_PASSPHRASE:
        raise InvalidInput(
            f"the passphrase file {path} is empty or longer than {_MOST_PASSPHRASE} bytes",
            hint="write a long random passphrase into it, and keep a copy elsewhere",
        )
    return passphrase


class EncryptingSink:
    """Encrypts what is written to it; `finish` must be called at the end.

    Args:
        sink: Receives the encrypted bytes.
        passphrase: The passphrase.
    """

    def __init__(self, sink: Sink, passphrase: bytes) -> None:
        self._sink = sink
        salt = token_bytes(_SALT)
        self._cipher = _cipher(passphrase, salt)
        self._waiting = bytearray()
        self._number = 0
        sink.write(MAGIC + salt)

    def write(self, data: bytes, /) -> None:
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
        self._sink.write(self._cipher.encrypt(_nonce(self._number, last=last), chunk, MAGIC))
        self._number += 1


class DecryptingSource:
    """Decrypts a file that `EncryptingSink` wrote.

    Args:
        source: The encrypted bytes after the magic number.
        passphrase: The passphrase.
    """

    def __init__(self, source: Source, passphrase: bytes) -> None:
        self._source = source
        self._cipher = _cipher(passphrase, source.read(_SALT))
        self._ready = bytearray()
        self._number = 0
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """Returns the next decrypted bytes.

        Raises:
            BadBackup: The passphrase is wrong, or the file is damaged or truncated.
        """
        while len(self._ready) < size and not self._ended:
            self._open()
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data

    def _open(self) -> None:
        sealed = self._source.read(CHUNK + _TAG)
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
