"""Encrypted keystore files, and the search for the key of a role.

The files have the format "Web3 secret storage", version 3.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.errors import Conflict, InvalidInput, NotFound, Unauthenticated
from protocol.identifiers import address
from protocol.identity.keys import Key
from protocol.runtime.files import create_atomically
from protocol.runtime.logs import get_logger

SCRYPT_N = 2**18
"""Work factor of scrypt that Ethereum clients use. One password guess costs about a second and 256 MiB."""

MOST_KEYSTORE_BYTES = 64 * 1024
"""Maximum size of a keystore file that is read, in bytes."""
MOST_SCRYPT_BYTES = 512 * 1024 * 1024
"""Maximum memory, in bytes, that a keystore's key derivation may use: 128 · n · r. A file that asks for more is broken
or hostile.
"""

_log = get_logger(__name__)


def write_keystore(path: Path, key: Key, password: str, *, scrypt_n: int = SCRYPT_N) -> None:
    """Encrypts a key and writes it to a new keystore file, atomically.

    Only the file's owner can read it. An existing file is never replaced.

    Raises:
        Conflict: A file exists at `path` already.
        InvalidInput: The password is empty.
    """
    if not password:
        raise InvalidInput(
            "a keystore needs a password", hint="with an empty password, everyone who can read the file has the key"
        )
    from eth_keyfile.keyfile import create_keyfile_json  # noqa: PLC0415 - slow to import, as in `read_keystore`

    content = create_keyfile_json(key.reveal(), password.encode(), version=3, kdf="scrypt", iterations=scrypt_n)
    content["address"] = key.address[2:].lower()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        create_atomically(path, json.dumps(content).encode())
    except FileExistsError as error:
        raise Conflict(f"{path} exists", hint="choose another path: a keystore is never overwritten") from error


def read_keystore(path: Path, password: str) -> Key:
    """Decrypts a keystore file.

    Raises:
        NotFound: There is no such file.
        InvalidInput: The file is not a supported keystore, or the address in the file is not that of its key.
        Unauthenticated: The password is wrong.
    """
    from eth_keyfile.keyfile import decode_keyfile_json  # noqa: PLC0415 - takes half a second, as it imports py_ecc

    content = _read_json(path)
    _check_form(path, content)
    try:
        secret = decode_keyfile_json(content, password.encode())
    except ValueError as error:
        if "mac" in str(error).lower():
            raise Unauthenticated(
                f"wrong password for {path}", hint="passwords are case sensitive", code="wrong-password"
            ) from None
        raise _broken(path, "its cipher or key derivation parameters are inconsistent") from error
    except (KeyError, TypeError, AttributeError, NotImplementedError) as error:
        raise _broken(path, f"its contents are malformed ({type(error).__name__})") from error
    key = Key(secret)
    said = content.get("address")
    if isinstance(said, str) and said and address(said if said.startswith("0x") else f"0x{said}") != key.address:
        raise InvalidInput(
            f"{path} names the address 0x{said.removeprefix('0x')}, but its key has the address {key.address}",
            hint="two keystores may have been mixed up: find the right file, or remove the address from this one",
            code="bad-keystore",
        )
    return key


def find_key(
    role: str,
    *,
    keystore: Path | None = None,
    password_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Key:
    """Returns the key of a role, from the environment or from its keystore file.

    Keys and passwords are never read from the command line, which other users of the machine can see.

    Sources, in this order: `MUSTER_<ROLE>_KEY` (64 hex digits); the keystore, with the password from
    `MUSTER_<ROLE>_PASSWORD`, the first line of `password_file`, or a prompt at the terminal.

    Args:
        role: Role of the key, such as `node`, `provider` or `orchestrator`; part of the variables' names.
        keystore: Path of the keystore file; None if there is only the variable.
        password_file: A file with the password on its first line.
        environment: Environment variables; None for those of this process.

    Raises:
        NotFound: Neither the variable nor the keystore exists, or the password file can't be read.
        Unauthenticated: There is no password, or it is wrong.
        InvalidInput: The key or the keystore is malformed.
    """
    environment = os.environ if environment is None else environment
    variable = f"MUSTER_{role.upper().replace('-', '_')}"
    if text := environment.get(f"{variable}_KEY"):
        try:
            return Key.from_hex(text)
        except InvalidInput as error:
            raise InvalidInput(
                f"{variable}_KEY: {error.detail}", hint="a key is 64 hex digits, with or without 0x", code=error.code
            ) from None
    if keystore is None:
        raise NotFound(
            f"there is no key for the {role} role",
            hint=f"set {variable}_KEY, or name a keystore file (`muster keys new` creates one)",
            code="no-key",
        )
    if not keystore.exists():
        raise NotFound(
            f"there is no key for the {role} role: the keystore {keystore} does not exist",
            hint=f"create it: muster keys new {keystore.stem}",
            code="no-key",
        )
    return read_keystore(keystore, _password(keystore, f"{variable}_PASSWORD", password_file, environment))


def _prompt(text: str) -> str:
    """Asks for a password at the terminal.

    Ctrl-C ends the prompt even when a coroutine called it: asyncio's own handler would only cancel the task, after the
    prompt.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may change signal handlers
        return getpass.getpass(text)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return getpass.getpass(text)
    finally:
        signal.signal(signal.SIGINT, before)


def _password(keystore: Path, variable: str, password_file: Path | None, environment: Mapping[str, str]) -> str:
    if (password := environment.get(variable)) is not None:
        return password
    if password_file is not None:
        try:
            with password_file.open() as file:
                return file.readline(4096).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise NotFound(f"can't read the password file {password_file}: {why}", code="no-password") from error
    if sys.stdin.isatty():
        return _prompt(f"Password of {keystore}: ")
    raise Unauthenticated(
        f"there is no password for {keystore}",
        hint=f"set {variable}, name a password file, or run the command at a terminal",
        code="no-password",
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MOST_KEYSTORE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"there is no keystore at {path}", hint="`muster keys new` creates one") from error
    except OSError as error:
        raise InvalidInput(f"can't read {path}: {error.strerror}", code="bad-keystore") from error
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) and not _is_credential(path):
        _log.warning("keystore-readable-by-others", path=str(path), hint=f"chmod 600 {path}")
    if len(data) > MOST_KEYSTORE_BYTES:
        raise _broken(path, f"it is longer than {MOST_KEYSTORE_BYTES} bytes")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _broken(path, "it is not JSON") from error
    if not isinstance(content, dict):
        raise _broken(path, "it is not a JSON object")
    return content


def _is_credential(path: Path) -> bool:
    """Returns whether systemd passed the file to this unit as a credential.

    Such a file is safe although its mode shows group permissions: systemd grants access with an access control list.
    """
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    return directory is not None and path.absolute().is_relative_to(directory)


def _check_form(path: Path, content: dict[str, Any]) -> None:
    """Checks the fields that the decoder would trust.

    These are the version and the memory and time that the file's key derivation asks for.
    """
    if content.get("version") != 3:
        raise _broken(path, f"it has version {str(content.get('version'))[:20]!r}, not 3")
    crypto = content.get("crypto") or content.get("Crypto")
    parameters = crypto.get("kdfparams") if isinstance(crypto, dict) else None
    if not isinstance(parameters, dict):
        raise _broken(path, "it has no crypto.kdfparams")
    numbers = [parameters.get(name, 1) for name in ("n", "r", "p", "c", "dklen")]
    if not all(isinstance(number, int) and 0 < number <= 2**24 for number in numbers):
        raise _broken(path, "the parameters of its key derivation are not integers from 1 to 16,777,216")
    if 128 * numbers[0] * numbers[1] > MOST_SCRYPT_BYTES or numbers[2] > 64:
        raise _broken(path, "its key derivation asks for too much memory or time")


def _broken(path: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"{path} is not a keystore: {why}",
        hint='a keystore is a JSON file in the format "Web3 secret storage", version 3; restore it from your backup',
        code="bad-keystore",
    )
