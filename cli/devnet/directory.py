"""Paths of a devnet's folder, and its lock.

A running devnet locks its folder. A devnet refuses a folder that holds files that no devnet made.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import Conflict, InvalidInput
from protocol.runtime.files import try_lock

_MARKER = "devnet.lock"


@dataclass(frozen=True, slots=True)
class DevnetDirectory:
    """Paths of a devnet's files."""

    path: Path

    @property
    def configuration(self) -> Path:
        """Configuration for `muster` in another terminal."""
        return self.path / "muster.toml"

    @property
    def chain_state(self) -> Path:
        """State file of the chain."""
        return self.path / "chain.state"

    @property
    def deployment(self) -> Path:
        """The contracts' addresses."""
        return self.path / "deployment.json"

    @property
    def ports(self) -> Path:
        """File with the ports of the last start, which `--keep` uses again."""
        return self.path / "ports.json"

    @property
    def keys(self) -> Path:
        """Keystores of every role."""
        return self.path / "keys"

    @property
    def password(self) -> Path:
        """Password of the keystores; random, readable by its owner only."""
        return self.path / "password"

    @property
    def policies(self) -> Path:
        """Versions of the policy, in folders named by version number; the origin publishes them."""
        return self.path / "policies"

    @property
    def relays(self) -> Path:
        """Stores of the relays, each in a folder named by the relay's number."""
        return self.path / "relays"

    @property
    def base(self) -> Path:
        """Copy of the model that the run starts from, with the run's recipe.

        The copy exists only if the run does not use the recipe in the model's folder.
        """
        return self.path / "base"

    @property
    def model(self) -> Path:
        """File that records the model and the recipe that the run started from."""
        return self.path / "model.json"

    @property
    def trainer(self) -> Path:
        """Folder of the trainer's state, journal and log of steps."""
        return self.path / "trainer"

    @property
    def objects(self) -> Path:
        """The pool's object store, which holds uploaded files."""
        return self.path / "objects"

    @property
    def report(self) -> Path:
        """Folder of the run's report."""
        return self.path / "report"

    @property
    def owner_token(self) -> Path:
        """The bearer token of the pool's owner; random, readable by its owner only."""
        return self.path / "owner-token"

    @property
    def client_token(self) -> Path:
        """Token of an OpenAI client of the devnet's gateway (`--serve`)."""
        return self.path / "client-token"

    @property
    def curl_options(self) -> Path:
        """Options for `curl -K` with the client's token, which must not be an argument of a command."""
        return self.path / "client.curl"

    @property
    def verifier_token(self) -> Path:
        """Token of the gateway's verifier (`--serve`)."""
        return self.path / "verifier-token"

    @property
    def reader_token(self) -> Path:
        """A bearer token that may only read; random, readable by its owner only."""
        return self.path / "reader-token"


@contextmanager
def claim_directory(path: Path, *, keep: bool) -> Iterator[DevnetDirectory]:
    """Locks the folder for one devnet; without `keep`, removes the files of an earlier devnet.

    Raises:
        Conflict: A devnet is running in the folder.
        InvalidInput: The folder holds files that no devnet made; none of them is changed or removed.
    """
    path = path.absolute()
    marker = path / _MARKER
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise InvalidInput(f"{path} is not a folder", hint="choose another --directory")
    if path.exists() and any(path.iterdir()) and not marker.exists():
        raise InvalidInput(
            f"{path} holds files that no devnet made", hint="choose an empty or new folder with --directory"
        )
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with marker.open("a") as lock:
        if not try_lock(lock.fileno()):
            raise Conflict(f"a devnet is running in {path}", hint="stop it with Ctrl-C, or choose another --directory")
        if not keep:
            _empty(path)
        yield DevnetDirectory(path)


def _empty(path: Path) -> None:
    for entry in path.iterdir():
        if entry.name == _MARKER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
