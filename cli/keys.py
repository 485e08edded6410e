"""`muster keys`: creates, imports and shows keys."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.configuration.sections import Configuration
from cli.groups import CommandGroup
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, show_fields, show_table
from cli.output.tables import Columns
from protocol.errors import InvalidInput, NotFound
from protocol.identifiers import Address, address
from protocol.identity.keys import Key
from protocol.identity.keystores import SCRYPT_N, find_key, write_keystore
from protocol.runtime.files import create_atomically

app = CommandGroup(no_args_is_help=True, help="Make, import and show keys.")

KEYS = Columns.of("name", "address")

NameArgument = Annotated[str, typer.Argument(help="A name of your choice: provider, node, owner …")]
LightOption = Annotated[
    bool, typer.Option("--light", help="Encrypt with a low work factor: quick to decrypt, for throw-away keys only.")
]
_LIGHT_SCRYPT_N = 2**12


def keystore_path(configuration: Configuration, name: str) -> Path:
    """Returns the path of the keystore called `name`.

    Raises:
        InvalidInput: The name is not a plain file name.
    """
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name) or len(name) > 64:
        raise InvalidInput(f"{name[:80]!r} is not a name for a key", hint="use letters, digits, '-' and '_'")
    return configuration.keys.directory / f"{name}.json"


def open_key(configuration: Configuration, name: str) -> Key:
    """Opens a key by its name, from `MUSTER_<NAME>_KEY` or its keystore.

    Raises:
        NotFound: No key has this name; the hint lists the existing ones.
        Unauthenticated: The password is wrong or missing.
    """
    path = keystore_path(configuration, name)
    known = ", ".join(stored for stored, _ in _stored(configuration)) or "none yet; `muster keys new` makes one"
    try:
        return find_key(
            name,
            keystore=path if path.exists() else None,
            password_file=configuration.keys.password_file,
        )
    except NotFound as error:
        if error.code != "no-key":
            raise
        raise NotFound(
            f"there is no key called {name} in {configuration.keys.directory}",
            hint=f"keys there: {known}; or set {_variable(name)}",
            code=error.code,
        ) from None


def resolve_address(configuration: Configuration, text: str) -> Address:
    """Returns the address of an argument that is an address or the name of a key; needs no password.

    Raises:
        NotFound: There is no key of that name in the environment or the keys folder.
        InvalidInput: The address is malformed.
    """
    if text.startswith("0x"):
        return address(text)
    if os.environ.get(_variable(text)):
        return open_key(configuration, text).address
    for name, owner in _stored(configuration):
        if name == text:
            return owner
    raise NotFound(
        f"{text!r} is neither an address nor a key in {configuration.keys.directory}",
        hint="`muster keys list` shows the existing keys",
    )


def node_of(configuration: Configuration, text: str | None) -> Address:
    """Returns the address of the named node.

    Without a name, returns the address in the keystore of `[worker] keystore`, else that of the key `node`.

    Raises:
        NotFound: No key has this name.
        InvalidInput: The address is malformed.
    """
    if text is None and configuration.worker.keystore is not None:
        owner = _owner(configuration.worker.keystore)
        if owner is not None:
            return owner
    return resolve_address(configuration, text or "node")


def open_node_key(configuration: Configuration, name: str | None) -> Key:
    """Opens a key by its name; without a name, the key of the worker: `[worker] keystore`, else the key `node`.

    Raises:
        NotFound: There is no such key.
        Unauthenticated: The password is wrong or missing.
    """
    worker = configuration.worker
    if name is None and worker.keystore is not None:
        password_file = worker.password_file or configuration.keys.password_file
        return find_key("node", keystore=worker.keystore, password_file=password_file)
    return open_key(configuration, name or "node")


def open_key_of(configuration: Configuration, owner: Address) -> Key:
    """Opens the key of an address: the worker's key, or a key in the keys folder.

    Raises:
        NotFound: No key here has this address.
        Unauthenticated: The password is wrong or missing.
    """
    with contextlib.suppress(NotFound):
        if node_of(configuration, None) == owner:
            return open_node_key(configuration, None)
    for name, address_ in _stored(configuration):
        if address_ == owner:
            return open_key(configuration, name)
    raise NotFound(
        f"{owner} has no key here: neither under [worker] nor in {configuration.keys.directory}",
        hint="`muster keys list` shows the existing keys",
        code="no-key",
    )


@app.command()
def new(context: typer.Context, name: NameArgument, light: LightOption = False, as_json: JsonOption = False) -> None:
    """Make a new key and store it encrypted."""
    _store(context.obj, name, Key.generate(), light=light, as_json=as_json)


@app.command(name="import")
def import_(
    context: typer.Context, name: NameArgument, light: LightOption = False, as_json: JsonOption = False
) -> None:
    """Store an existing key, read as 64 hex digits from a prompt or standard input."""
    text = getpass.getpass("Key (64 hex digits, not shown): ") if sys.stdin.isatty() else sys.stdin.readline(200)
    _store(context.obj, name, Key.from_hex(text), light=light, as_json=as_json)


@app.command()
def show(context: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show the address of a key and the path of its keystore. The secret is never shown."""
    configuration: Configuration = context.obj
    path = keystore_path(configuration, name)
    show_fields({"name": name, "address": resolve_address(configuration, name), "keystore": path}, as_json=as_json)


@app.command(name="list")
@listing()
def list_(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the keys in the keys folder."""
    configuration: Configuration = context.obj
    show_table(
        KEYS,
        _stored(configuration),
        as_json=as_json,
        empty=f"no keys in {configuration.keys.directory}; `muster keys new NAME` makes one",
    )


def _variable(name: str) -> str:
    return f"MUSTER_{name.upper().replace('-', '_')}_KEY"


def _store(configuration: Configuration, name: str, key: Key, *, light: bool, as_json: bool) -> None:
    path = keystore_path(configuration, name)
    password = _new_password(configuration)
    write_keystore(path, key, password, scrypt_n=_LIGHT_SCRYPT_N if light else SCRYPT_N)
    show_fields({"name": name, "address": key.address, "keystore": path}, as_json=as_json)
    note("keep a copy of the keystore and its password in a safe place: they can't be restored")


def _new_password(configuration: Configuration) -> str:
    """Returns the password from the configured file (created on first use), else from two prompts."""
    file = configuration.keys.password_file
    if file is not None:
        create_password_file(file)
        return file.read_text().partition("\n")[0]
    if not sys.stdin.isatty():
        raise InvalidInput(
            "no password for the new keystore",
            hint="run this at a terminal, or set password_file under [keys] in the configuration",
        )
    password = getpass.getpass("Password: ")
    if password != getpass.getpass("Again: "):
        raise InvalidInput("the two passwords differ", hint="try again")
    return password


def create_password_file(path: Path) -> None:
    """Writes a random password to a file that only its owner can read; keeps an existing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        create_atomically(path, (secrets.token_urlsafe(32) + "\n").encode())


def _stored(configuration: Configuration) -> list[tuple[str, Address]]:
    found = []
    for path in sorted(configuration.keys.directory.glob("*.json")):
        owner = _owner(path)
        if owner is not None:
            found.append((path.stem, owner))
    return found


def _owner(path: Path) -> Address | None:
    """Returns the address in a keystore file; None if the file is no keystore or has no address."""
    try:
        text = json.loads(path.read_bytes()[:65536]).get("address", "")
        return address("0x" + str(text).removeprefix("0x"))
    except (ValueError, AttributeError, InvalidInput, OSError):
        return None
