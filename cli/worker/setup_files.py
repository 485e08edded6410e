"""Files that `muster worker init` writes: configuration, deployment, password and systemd unit."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from pathlib import Path

from cli.pool.joining import VerifiedPool
from cli.worker.daemon import UNIT
from ledger.deployment import Deployment
from protocol.errors import Conflict, InvalidInput
from protocol.runtime.configuration_file import home_configuration
from protocol.runtime.files import create_atomically
from worker.settings import WorkerSettings

_UNIT_TEXT = """\
# Written by `muster worker init`. On SIGTERM the worker delivers finished files before it ends.
[Unit]
Description=Muster worker
After=network-online.target

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=5
# Tasks of the process sandbox survive a crash of the worker; the next start finds them.
KillMode=process
TimeoutStopSec=180
NoNewPrivileges=yes
UMask=0077
LimitNOFILE=65536

[Install]
WantedBy=default.target
"""
_LONGEST_NAME = 64
"""Maximum number of characters of a folder's name in the name of a unit."""
_LONGEST_LINE = 300
"""Maximum length of another unit's command in an error."""


@dataclass(frozen=True, slots=True)
class WorkerFolder:
    """The folder with a worker's configuration and keys."""

    path: Path

    @property
    def configuration(self) -> Path:
        """The configuration file of the worker and of all commands."""
        return self.path / "muster.toml"

    @property
    def deployment(self) -> Path:
        """The addresses of the ledger's contracts."""
        return self.path / "deployment.json"

    @property
    def keys(self) -> Path:
        """The folder of the keystores."""
        return self.path / "keys"

    @property
    def password(self) -> Path:
        """The file with the keystores' password."""
        return self.path / "password"

    def keystore(self, name: str) -> Path:
        """Returns the path of the keystore of a key."""
        return self.keys / f"{name}.json"

    def make(self) -> None:
        """Makes the folder; only its owner can enter it."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def check(self, pool: VerifiedPool) -> None:
        """Checks that existing files belong to this pool, before anything is written.

        Raises:
            Conflict: A file is for another pool or ledger.
        """
        hint = f"give --directory another folder, or move {self.path} away; files are never overwritten"
        if self.deployment.exists() and Deployment.load(self.deployment) != pool.deployment:
            raise Conflict(f"{self.deployment} exists and names other contracts than the pool's", hint=hint)
        if self.configuration.exists():
            try:
                settings = WorkerSettings.load(file=self.configuration)
            except InvalidInput as error:
                raise Conflict(f"{self.configuration} exists and is no worker's: {error.detail}", hint=hint) from error
            if settings.pool_id != pool.pool_id:
                raise Conflict(
                    f"{self.configuration} exists and is for pool {settings.pool_id}, not {pool.pool_id}", hint=hint
                )

    def write_deployment(self, deployment: Deployment) -> bool:
        """Writes `deployment.json`; returns False if it existed."""
        return _create(self.deployment, json.dumps(asdict(deployment), indent=2) + "\n")

    def write_configuration(
        self,
        pool: VerifiedPool,
        *,
        rpc: str,
        password_file: Path | None,
        allow_plain_http: bool,
        allow_networks: Sequence[IPv4Network] = (),
    ) -> bool:
        """Writes `muster.toml`, which the worker and all commands read; returns False if it existed.

        Files in the folder get relative paths, so that the folder can be moved to another machine.

        Args:
            pool: The pool.
            rpc: JSON-RPC endpoint of the chain.
            password_file: Password of the keystores; None if the user types it.
            allow_plain_http: Whether plain http to other machines is allowed.
            allow_networks: Private networks that tasks may reach.
        """
        password = [] if password_file is None else [f"password_file = {self._quoted(password_file)}"]
        discovery = f"discovery = [{', '.join(map(_quoted, pool.discovery))}]"
        keystore = self.keystore("node")
        lines = [
            f"# Written by `muster worker init` for pool {pool.pool_id}. `muster settings worker` lists all settings.",
            "[chain]  # for commands",
            f"rpc = {_quoted(rpc)}",
            f"chain_id = {pool.deployment.chain_id}",
            f"deployment = {self._quoted(self.deployment)}",
            "",
            "[keys]",
            f"directory = {self._quoted(self.keys)}",
            *password,
            "",
            "[pool]",
            f"id = {pool.pool_id}",
            *([] if pool.url is None else [f"orchestrator = {_quoted(pool.url)}"]),
            discovery,
            "",
            "[worker]  # for the daemon",
            f"pool_id = {pool.pool_id}",
            discovery,
            f"chain_url = {_quoted(rpc)}",
            f"deployment = {self._quoted(self.deployment)}",
            *([f"keystore = {self._quoted(keystore)}"] if keystore.exists() else []),
            *password,
            'state = "state"  # volumes, logs, queue; one per worker',
            *(["allow_plain_http = true"] if allow_plain_http else []),
            'local_network = "deny"  # tasks in Docker reach no private network but those in allow_networks',
            *(
                [f"allow_networks = [{', '.join(_quoted(str(each)) for each in allow_networks)}]"]
                if allow_networks
                else []
            ),
        ]
        return _create(self.configuration, "\n".join(lines) + "\n")

    def _quoted(self, path: Path) -> str:
        return _quoted(path.relative_to(self.path) if path.is_relative_to(self.path) else path)


def unit_text(configuration: Path) -> str:
    """Returns a systemd user unit that runs the worker with this configuration file."""
    script = Path(sys.executable).parent / "muster"
    program = [str(script)] if script.exists() else [sys.executable, "-P", "-m", "cli"]
    words = [*program, "worker", "run", "--config", str(configuration)]
    return _UNIT_TEXT.format(command=" ".join(_systemd_word(word) for word in words))


def unit_path(home: Path, configuration: Path) -> Path:
    """Returns the path of the systemd user unit of the worker with this configuration file.

    The unit of a worker in another folder than the default one has the folder's name in its own. Earlier releases wrote
    `muster-worker.service` for every folder; such a unit is kept.

    Raises:
        Conflict: Another worker has a unit of this name.
    """
    path, text = home / UNIT, unit_text(configuration)
    if configuration.parent != home_configuration() and not (path.exists() and path.read_text() == text):
        name = re.sub("[^A-Za-z0-9_]+", "-", configuration.parent.name).strip("-")[:_LONGEST_NAME]
        path = path.with_name(f"{path.stem}-{name or 'other'}{path.suffix}")
    if path.exists() and path.read_text() != text:
        raise Conflict(
            f"{path} exists with another content: {_command_of(path)}",
            hint="move it away, or give --directory a folder with another name; files are never overwritten",
        )
    return path


def write_unit(home: Path, configuration: Path) -> tuple[Path, bool]:
    """Writes the systemd user unit; returns its path, and False if the same unit existed.

    Raises:
        Conflict: Another worker has a unit of this name.
    """
    path = unit_path(home, configuration)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, _create(path, unit_text(configuration), mode=0o644)


def _command_of(unit: Path) -> str:
    """Returns the line with a unit's command, or the text that it has none."""
    lines = (line for line in unit.read_text(errors="replace").splitlines() if line.startswith("ExecStart="))
    return next(lines, "no ExecStart")[:_LONGEST_LINE]


def _create(path: Path, text: str, *, mode: int = 0o600) -> bool:
    try:
        create_atomically(path, text.encode(), mode=mode)
    except FileExistsError:
        return False
    return True


def _quoted(value: Path | str) -> str:
    """Returns a TOML string; TOML's basic strings have the escapes of JSON."""
    return json.dumps(str(value))


def _systemd_word(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word else word
