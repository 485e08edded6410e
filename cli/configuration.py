"""Where `muster` finds the chain, the contracts, the keys and the pool, so that no command needs to be told.

The first of these is used: `--config FILE`, the variable `MUSTER_CONFIG`, `muster.toml` here, `.devnet/muster.toml`
here (a devnet writes it), `~/.config/muster/muster.toml`. Paths in the file are relative to the file.

    [chain]
    rpc = "http://127.0.0.1:8545"
    chain_id = 31337
    deployment = "deployment.json"

    [keys]
    directory = "keys"
    password_file = "password"

    [pool]
    id = 1
    orchestrator = "http://127.0.0.1:8080"
    token_file = "owner-token"

Tables of services (`[orchestrator]`, `[worker]`, ...) may stand in the same file.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cli.documents import first_fault
from protocol.errors import InvalidInput, NotFound

_MOST_BYTES = 64 * 1024

SERVICES = frozenset({"discovery", "orchestrator", "worker", "validator", "trainer", "shardcast", "sandbox"})
"""Tables of the same file that services read for themselves."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ChainSection(_Section):
    """Which chain, and which contracts on it."""

    rpc: str = Field(default="http://127.0.0.1:8545", pattern="^https?://")
    chain_id: Annotated[int, Field(ge=1)] | None = None
    deployment: Path | None = None


class KeysSection(_Section):
    """Where keystores are, and how they are opened without a person."""

    directory: Path = Path("keys")
    password_file: Path | None = None


class PoolSection(_Section):
    """The pool that commands speak about unless told otherwise."""

    id: Annotated[int, Field(ge=1)] | None = None
    orchestrator: str | None = Field(default=None, pattern="^https?://")
    discovery: tuple[str, ...] = ()
    token_file: Path | None = None


class Configuration(_Section):
    """What the configuration file says, with every path made absolute."""

    chain: ChainSection = ChainSection()
    keys: KeysSection = KeysSection()
    pool: PoolSection = PoolSection()
    path: Path | None = None
    """The file it came from; None if there was none."""


def load_configuration(explicit: Path | None = None) -> Configuration:
    """Finds and reads the configuration.

    Raises:
        NotFound: The file that was asked for does not exist.
        InvalidInput: It is not TOML, or names something unknown or out of bounds.
    """
    home = _home()
    path = _find(explicit, home)
    if path is None:
        return Configuration(keys=KeysSection(directory=(home or Path.cwd()) / "keys"))
    content = _read(path)
    try:
        ours = {name: value for name, value in content.items() if name not in SERVICES}
        read = Configuration.model_validate({**ours, "path": path})
    except ValidationError as error:
        raise InvalidInput(
            f"{path}: {first_fault(error)}", hint="`muster config --help` shows what the file may say"
        ) from error
    return _absolute(read, path.parent)


def _home() -> Path | None:
    """The folder of this person's settings; None for a user without a home, as in some containers."""
    try:
        return Path.home() / ".config" / "muster"
    except RuntimeError:
        return None


def _find(explicit: Path | None, home: Path | None) -> Path | None:
    named = explicit or (Path(os.environ["MUSTER_CONFIG"]) if os.environ.get("MUSTER_CONFIG") else None)
    if named is not None:
        if not named.is_file():
            raise NotFound(f"there is no configuration file {named}", hint="check --config and MUSTER_CONFIG")
        return named.absolute()
    places = [Path("muster.toml"), Path(".devnet/muster.toml"), *([home / "muster.toml"] if home else [])]
    return next((place.absolute() for place in places if _is_there(place)), None)


def _is_there(place: Path) -> bool:
    try:
        return place.is_file()
    except PermissionError:  # somebody else's folder, as HOME is after some ways of becoming another user
        return False


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InvalidInput(f"{path} is longer than {_MOST_BYTES} bytes", hint="this is not a configuration file")
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}", hint="mend that line and try again") from error
    except OSError as error:
        raise InvalidInput(f"can't read {path}: {error.strerror}", hint="check its permissions") from error


def _absolute(read: Configuration, base: Path) -> Configuration:
    def placed(path: Path | None) -> Path | None:
        try:
            return None if path is None else base / path.expanduser()
        except RuntimeError as error:
            raise InvalidInput(f"{read.path}: there is no home folder for {path}", hint="write the path out") from error

    return read.model_copy(
        update={
            "chain": read.chain.model_copy(update={"deployment": placed(read.chain.deployment)}),
            "keys": read.keys.model_copy(
                update={
                    "directory": placed(read.keys.directory),
                    "password_file": placed(read.keys.password_file),
                }
            ),
            "pool": read.pool.model_copy(update={"token_file": placed(read.pool.token_file)}),
        }
    )
