"""Configuration of commands: chain, contracts, keys and pool.

`protocol.runtime.configuration_file` lists the places searched for the file.

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

The configuration file may also hold tables of services (`[orchestrator]`, `[worker]`, ...).
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cli.documents import first_fault
from protocol.errors import InvalidInput
from protocol.runtime.configuration_file import find_configuration_file, home_configuration, placed

_MOST_BYTES = 64 * 1024

SERVICES = frozenset({"discovery", "orchestrator", "worker", "validator", "trainer", "shardcast", "sandbox"})
"""Tables of the configuration file that the services read."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ChainSection(_Section):
    """The chain and the contracts deployed on it."""

    rpc: str = Field(
        default="http://127.0.0.1:8545", pattern="^https?://", description="JSON-RPC endpoint of the chain"
    )
    chain_id: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Id of the chain; commands refuse to use a chain with another id"
    )
    deployment: Path | None = Field(None, description="File that names the ledger's contracts")


class KeysSection(_Section):
    """Folder of keystores, and a file with their password, which avoids a prompt."""

    directory: Path = Field(Path("keys"), description="Folder of the keystores")
    password_file: Path | None = Field(
        None, description="File with the password of the keystores; created with the first key"
    )


class PoolSection(_Section):
    """The pool that commands use unless an option names another one."""

    id: Annotated[int, Field(ge=1)] | None = Field(None, description="Number of the pool")
    orchestrator: str | None = Field(default=None, pattern="^https?://", description="URL of the pool's orchestrator")
    discovery: tuple[str, ...] = Field((), description="URLs of the pool's discovery services")
    token_file: Path | None = Field(None, description="File with a bearer token; MUSTER_POOL_TOKEN overrides it")


class WorkerSection(BaseModel):
    """Entries of the table `[worker]` that commands read; the worker itself reads all of them."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    keystore: Path | None = None


class Configuration(_Section):
    """Contents of the configuration file, with every path made absolute."""

    chain: ChainSection = ChainSection()
    keys: KeysSection = KeysSection()
    pool: PoolSection = PoolSection()
    worker: WorkerSection = WorkerSection()
    path: Path | None = None
    """The configuration file; None if no file was found."""


def load_configuration(explicit: Path | None = None) -> Configuration:
    """Finds and reads the configuration.

    Raises:
        NotFound: The named file does not exist.
        InvalidInput: The file is not TOML, or has an unknown entry or a value out of bounds.
    """
    path = find_configuration_file(explicit)
    if path is None:
        return Configuration(keys=KeysSection(directory=(home_configuration() or Path.cwd()) / "keys"))
    content = _read(path)
    try:
        # Services read their own tables. Commands need only a few entries of the worker's table: see `WorkerSection`.
        ours = {name: value for name, value in content.items() if name not in SERVICES - {"worker"}}
        read = Configuration.model_validate({**ours, "path": path})
    except ValidationError as error:
        raise InvalidInput(
            f"{path}: {first_fault(error)}", hint="`muster config --help` shows what the file may contain"
        ) from error
    return _absolute(read, path.parent)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InvalidInput(f"{path} is longer than {_MOST_BYTES} bytes", hint="this is not a configuration file")
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}", hint="correct that line and try again") from error
    except OSError as error:
        raise InvalidInput(f"can't read {path}: {error.strerror}", hint="check its permissions") from error


def _absolute(read: Configuration, base: Path) -> Configuration:
    def absolute(path: Path | None) -> Path | None:
        return None if path is None else placed(path, base)

    try:
        chain = read.chain.model_copy(update={"deployment": absolute(read.chain.deployment)})
        directory, password_file = placed(read.keys.directory, base), absolute(read.keys.password_file)
        keys = read.keys.model_copy(update={"directory": directory, "password_file": password_file})
        pool = read.pool.model_copy(update={"token_file": absolute(read.pool.token_file)})
        worker = read.worker.model_copy(update={"keystore": absolute(read.worker.keystore)})
    except InvalidInput as error:
        raise InvalidInput(f"{read.path}: {error.detail}", hint=error.hint) from error
    return read.model_copy(update={"chain": chain, "keys": keys, "pool": pool, "worker": worker})
