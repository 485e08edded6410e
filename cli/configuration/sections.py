"""Configuration of commands: chain, contracts, keys and pool.

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

Each table is a class of settings, as the services have them, so the same rules hold: an environment variable such as
`MUSTER_POOL_ID` overrides the file, and unknown entries are refused. `protocol.runtime.configuration_file` lists the
places searched for the file, which may also hold tables of services (`[orchestrator]`, `[worker]`, ...).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from protocol.http.url_safety import without_secrets
from protocol.runtime.configuration_file import find_configuration_file, home_configuration
from protocol.runtime.settings import Settings


class ChainSection(Settings):
    """The chain and the contracts deployed on it."""

    service: ClassVar[str] = "chain"

    rpc: SecretStr = Field(SecretStr("http://127.0.0.1:8545"), description="JSON-RPC endpoint of the chain")
    chain_id: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Id of the chain; commands refuse to use a chain with another id"
    )
    deployment: Path | None = Field(None, description="File that names the ledger's contracts")

    @field_validator("rpc")
    @classmethod
    def _is_http(cls, value: SecretStr) -> SecretStr:
        try:
            shown = without_secrets(value.get_secret_value())
        except ValueError:  # its text may contain the access key
            shown = ""
        if not shown.startswith(("http://", "https://")):
            raise ValueError("must be a URL that starts with http:// or https://")
        return value

    @property
    def endpoint(self) -> str:
        """Scheme, host and port of `rpc`, for display: the rest may contain an access key."""
        return without_secrets(self.rpc.get_secret_value())


class KeysSection(Settings):
    """Folder of keystores, and a file with their password, which avoids a prompt."""

    service: ClassVar[str] = "keys"

    directory: Path = Field(
        Path("keys"), description="Folder of the keystores; the default is beside the configuration file"
    )
    password_file: Path | None = Field(
        None, description="File with the password of the keystores; created with the first key"
    )


class PoolSection(Settings):
    """The pool that commands use unless an option names another one."""

    service: ClassVar[str] = "pool"

    id: Annotated[int, Field(ge=1)] | None = Field(None, description="Number of the pool")
    orchestrator: str | None = Field(default=None, pattern="^https?://", description="URL of the pool's orchestrator")
    discovery: tuple[str, ...] = Field((), description="URLs of the pool's discovery services")
    token_file: Path | None = Field(None, description="File with a bearer token; MUSTER_POOL_TOKEN overrides it")


class WorkerSection(Settings):
    """Settings of `[worker]` that commands read; the worker itself reads all of them."""

    service: ClassVar[str] = "worker"
    partial: ClassVar[bool] = True

    keystore: Path | None = None
    password_file: Path | None = None


SECTIONS: dict[str, type[Settings]] = {"chain": ChainSection, "keys": KeysSection, "pool": PoolSection}
"""Tables that commands without a service read."""


class Configuration(BaseModel):
    """Values in force, with every path of the file made absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    chain: ChainSection
    keys: KeysSection
    pool: PoolSection
    worker: WorkerSection
    path: Path | None = None
    """The configuration file; None if no file was found."""


def load_configuration(explicit: Path | None = None) -> Configuration:
    """Finds and reads the configuration.

    Raises:
        NotFound: The named file does not exist.
        InvalidInput: The file is not TOML, or a source has an unknown entry or a value out of bounds.
    """
    path = find_configuration_file(explicit)
    keys = KeysSection.load(file=path)
    if "directory" not in keys.model_fields_set:
        base = path.parent if path is not None else home_configuration() or Path.cwd()
        keys = keys.model_copy(update={"directory": base / keys.directory})
    return Configuration(
        chain=ChainSection.load(file=path),
        keys=keys,
        pool=PoolSection.load(file=path),
        worker=WorkerSection.load(file=path),
        path=path,
    )
