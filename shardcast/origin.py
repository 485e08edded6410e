"""Origin: publishes a run's checkpoints while they are written, and keeps the last few.

    async with Origin(folder, run="devnet", key=publisher, port=8400) as origin:
        async with origin.publish(version=7) as writer:
            await writer.write("model.safetensors", data)      # once per piece of data
        await origin.publish_folder(8, Path("checkpoints/8"))  # or a folder that is complete
        origin.newest                                          # version, attempt and digest to announce on the ledger

The origin serves blocks directly from the version's files, without a copy. The origin keeps its own state in the folder
`.shardcast`: manifests, the number of the last attempt at each version, and files that `publish` wrote.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry

from protocol.checkpoints import check_path
from protocol.errors import InvalidInput
from protocol.identifiers import Address, address, run_id
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.files import write_atomically
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from shardcast.errors import VersionGone
from shardcast.local_version import LocalVersion, Locate
from shardcast.manifest.manifest import BlockSpan, Manifest, VersionKey
from shardcast.manifest.records import DeltaBase
from shardcast.manifest.writer import ManifestWriter
from shardcast.publish.deltas import publish_deltas
from shardcast.publish.publication import Publication, Published, published_of
from shardcast.publish.version_writer import VersionWriter
from shardcast.serve.connection_limits import ServingLimits
from shardcast.serve.server import Server
from shardcast.serve.version_index import VersionIndex

KEPT_VERSIONS = 5
"""Number of versions that an origin or a relay holds by default, in addition to the bases of their deltas."""

_CHECK_BLOCKS = 64
"""Number of blocks that the origin verifies per call into a thread; after each call it serves these blocks."""

STATE_FOLDER = ".shardcast"
"""Default name of the folder for the origin's own state, inside the folder of checkpoints."""

_log = get_logger(__name__)


class Origin:
    """Publishes checkpoints of one run, and serves them over HTTP; an async context manager.

    Args:
        folder: Folder of checkpoints, with one folder for each version.
        state: Folder for the origin's own state; `.shardcast` in `folder` by default. With another folder, the origin
            only reads `folder`.
        run: Name or id of the run.
        key: The publisher's key, which signs manifests.
        keep: Number of versions to hold, in addition to the bases of their deltas.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free port.
        tls: TLS context with the certificate for https; None if a reverse proxy provides TLS.
        limits: Limits of the connections and requests that the origin serves.
        registry: Prometheus registry for the metrics; a new one by default.
        clock: Clock; the system clock by default.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run: str,
        key: Key,
        state: Path | None = None,
        keep: int = KEPT_VERSIONS,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        limits: ServingLimits | None = None,
        registry: CollectorRegistry | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = SystemClock() if clock is None else clock
        if keep < 1:
            raise InvalidInput(f"an origin keeps at least one version, not {keep}")
        self.folder = folder
        self.run = run_id(run)
        self.versions = VersionIndex(run=self.run, publisher=key.address, clock=clock)
        self.server = Server(
            self.versions, host=host, port=port, tls=tls, limits=limits, registry=registry, clock=clock
        )
        self._key = key
        self._keep = keep
        self._state = folder / STATE_FOLDER if state is None else state
        self._stack = AsyncExitStack()
        self._checking: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """Returns the URL at which relays and clients reach the origin."""
        return self.server.url

    @property
    def newest(self) -> Published | None:
        """Returns the newest complete version; None if there is none."""
        return next((published_of(local.manifest) for local in self.versions if local.manifest.sealed), None)

    async def __aenter__(self) -> Self:
        await run_in_thread(self._make_state_folder)
        await self._resume()
        await self._stack.enter_async_context(self.server)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._checking:
            task.cancel()
        await asyncio.gather(*self._checking, return_exceptions=True)
        await self._stack.aclose()

    @asynccontextmanager
    async def publish(self, *, version: int, base: DeltaBase | None = None) -> AsyncIterator[VersionWriter]:
        """Publishes a version while the caller writes it.

        The end of the `async with` block seals the version.

        If the block ends with an error, the version stays unsealed. No reader uses an unsealed version, and the next
        attempt at the version replaces it.

        Args:
            version: Number of the version.
            base: The version to which this version's deltas are applied; None without deltas.
        """
        folder = self._state / "files" / str(version)
        await run_in_thread(shutil.rmtree, folder, ignore_errors=True)
        folder.mkdir(parents=True)
        publication = self.begin(version, folder=folder, base=base)
        writer = VersionWriter(folder, publication)
        try:
            yield writer
            await writer.catch_up()
        finally:
            await writer.stop()
        writer.published = await self.finish(publication)

    async def publish_folder(
        self,
        version: int,
        folder: Path,
        *,
        base: int | None = None,
        full: bool = True,
        sizes: Mapping[str, int] | None = None,
    ) -> Published:
        """Publishes a complete folder.

        The folder's files must not change while the origin holds the version.

        Args:
            version: Number of the version.
            folder: Folder with the version's files.
            base: Number of a complete version that the origin holds. The origin first publishes deltas against the
                base, for readers that have the base. None publishes no deltas.
            full: Whether to publish every file whole, in addition to its delta. If False, the origin publishes a file
                whole only if it publishes no delta of the file: the base lacks the file, or the delta would exceed half
                the file's size. A reader without the base then downloads the base first.
            sizes: Files of the version by path, with their sizes in bytes; all files in the folder by default.

        Raises:
            InvalidInput: A file can't be part of a version.
            BadManifest: The base is not older than the version.
            VersionGone: The origin does not hold the base, or holds only a part of the base.
        """
        if sizes is None:
            sizes = await run_in_thread(file_sizes, folder)
        based = None if base is None else self._base(base)
        publication = self.begin(version, folder=folder, base=based)
        deltas: set[str] = set()
        if based is not None:
            key = publication.local.manifest.key
            old = self.content_folder(VersionKey(based.version, based.attempt))
            deltas = await publish_deltas(publication, old=old, new=folder, deltas=self.delta_folder(key), sizes=sizes)
        for path, size in sizes.items():
            if full or path not in deltas:
                await publication.advance(path, expected=size, ended=True)
        return await self.finish(publication)

    def begin(self, version: int, *, folder: Path, base: DeltaBase | None = None) -> Publication:
        """Starts the next attempt at a version, which replaces an earlier attempt.

        Args:
            version: Number of the version.
            folder: Folder of the version's whole files; the files may be written later.
            base: The version to which this version's deltas are applied; None without deltas.
        """
        key = VersionKey(version, self._last_attempt(version) + 1)
        writer = ManifestWriter(run=self.run, key=key, publisher=self._key, base=base)
        write_atomically(self._attempts(version), str(key.attempt), mode=0o644)
        local = LocalVersion(writer.manifest, log=self._path(key, "manifest"), locate=self._locate(key, folder))
        local.start()
        write_atomically(self._path(key, "folder"), str(folder.absolute()), mode=0o644)
        voided = self.versions.put(local)
        if voided is not None:
            self._forget(voided.manifest.key)
        publication = Publication(writer, local, advanced=self.server.metrics.published.inc)
        publication.open()
        self.versions.changed()
        _log.info("publishing", version=version, attempt=key.attempt)
        return publication

    async def finish(self, publication: Publication) -> Published:
        """Ends every open file, and seals the version.

        Then the origin withdraws the oldest versions beyond the number to keep.
        """
        for file in publication.local.manifest.files:
            if not file.ended:
                await publication.advance(file.path, kind=file.kind, ended=True)
        await publication.seal()
        self.versions.changed()
        for old in self.versions.surplus(self.versions.ranked()[: self._keep]):
            self.withdraw(old)
        published = published_of(publication.local.manifest)
        _log.info("published", version=published.version, attempt=published.attempt, digest=published.digest)
        return published

    def withdraw(self, local: LocalVersion) -> None:
        """Stops serving a version.

        Deletes the files that the origin wrote for the version, but no files of the trainer.
        """
        self.versions.remove(local)
        self._forget(local.manifest.key)
        shutil.rmtree(self._state / "files" / str(local.manifest.key.version), ignore_errors=True)

    def content_folder(self, key: VersionKey) -> Path:
        """Returns the folder with the whole files of a version that the origin holds."""
        return Path(self._path(key, "folder").read_text())

    def delta_folder(self, key: VersionKey) -> Path:
        """Returns the folder of a version's deltas.

        Each delta has the path of the file that it produces.
        """
        return self._state / "deltas" / str(key)

    def _base(self, version: int) -> DeltaBase:
        local = self.versions.get(version)
        if local is None or local.manifest.digest is None:
            raise VersionGone(
                f"version {version} can't be a base: this origin does not hold it, or not all of it",
                hint="publish without a base, or with a complete version as base",
            )
        key = local.manifest.key
        return DeltaBase(version=key.version, attempt=key.attempt, digest=local.manifest.digest)

    def _locate(self, key: VersionKey, folder: Path) -> Locate:
        deltas = self.delta_folder(key)
        return lambda file: (deltas if file.kind == "delta" else folder) / file.path

    def _path(self, key: VersionKey, what: str) -> Path:
        return self._state / f"{key}.{what}"

    def _forget(self, key: VersionKey) -> None:
        for what in ("manifest", "folder"):
            self._path(key, what).unlink(missing_ok=True)
        shutil.rmtree(self.delta_folder(key), ignore_errors=True)

    def _attempts(self, version: int) -> Path:
        """Returns the file with the number of a version's last attempt.

        The origin keeps this file when it withdraws the version, so that it uses no attempt number twice.
        """
        return self._state / f"{version}.attempts"

    def _make_state_folder(self) -> None:
        """Creates the state folder.

        Raises:
            InvalidInput: Another state folder is configured, but only the default folder holds state (attempt numbers,
                for example), which would be lost.
        """
        former = self.folder / STATE_FOLDER
        if former != self._state and former.exists() and not self._state.joinpath("publishers").exists():
            raise InvalidInput(
                f"{former} holds this origin's state, and {self._state} holds none",
                hint=f"move the contents of {former} to {self._state}, and remove {former}",
            )
        self._state.mkdir(parents=True, exist_ok=True)

    def _last_attempt(self, version: int) -> int:
        try:
            return int(self._attempts(version).read_text())
        except FileNotFoundError:
            return 0

    async def _resume(self) -> None:
        """Restores the versions that were complete before a restart.

        The origin serves a block of these versions only after it has verified the block again.

        Versions that a former publisher key signed keep their signatures; readers decide whether to accept them.
        """
        former_keys = self._former_keys()
        for log in sorted(self._state.glob("*.manifest")):
            version, attempt, _ = log.name.split(".")
            key = VersionKey(int(version), int(attempt))
            try:
                folder = self.content_folder(key)
            except OSError:
                continue
            manifest = Manifest(run=self.run, key=key, signer=self._key.address, other_signers=former_keys)
            local = LocalVersion(manifest, log=log, locate=self._locate(key, folder))
            spans = local.resume()
            newer = self.versions.get(key.version)
            if manifest.sealed and (newer is None or newer.manifest.key < key):
                self.versions.put(local)
                self._checking.append(asyncio.create_task(self._verify_on_disk(local, spans)))
        for old in self.versions.surplus(self.versions.ranked()[: self._keep]):
            self.withdraw(old)

    def _former_keys(self) -> list[Address]:
        """Returns the addresses of former publisher keys, and records the present address."""
        path = self._state / "publishers"
        known = [address(line) for line in path.read_text().splitlines()] if path.exists() else []
        if self._key.address not in known:
            write_atomically(path, "\n".join([*known, self._key.address]) + "\n", mode=0o644)
        return [each for each in known if each != self._key.address]

    async def _verify_on_disk(self, local: LocalVersion, spans: list[BlockSpan]) -> None:
        for span in spans:
            for part in span.parts(_CHECK_BLOCKS):
                good = await run_in_thread(local.check, part)
                for block in good:
                    local.set_present(span.file, block)
                if len(good) != part.count:
                    _log.warning("files-changed", version=local.manifest.key.version, path=str(local.path(span.file)))
                    self.withdraw(local)
                    return


def file_sizes(folder: Path, *, may_be_empty: bool = False) -> dict[str, int]:
    """Returns the files of a folder by path, with their sizes in bytes.

    The result is sorted by path. Hidden files are left out.

    Args:
        folder: The folder to scan, with its sub-folders.
        may_be_empty: Whether a folder without files is allowed.

    Raises:
        InvalidInput: The folder contains a link, a special file or a name that a version may not have, or no files.
    """
    sizes: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts) or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink() or not path.is_file():
            raise InvalidInput(f"{path} is not a plain file", hint="a version may have plain files and folders only")
        sizes[check_path(relative.as_posix())] = path.stat().st_size
    if not sizes and not may_be_empty:
        raise InvalidInput(f"{folder} contains no files", hint="a version has at least one file")
    return sizes
