"""Download of one version into a folder: whole, or rebuilt from deltas and a local version.

A download writes into the folder `.partial-VERSION`. It verifies each block by BLAKE3, and each complete file by
SHA-256. When every file is verified, it renames the folder to `VERSION`. An interrupted download leaves the partial
folder, and the next download reuses the valid blocks in this folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from protocol.errors import Conflict, MusterError, Unavailable
from protocol.identifiers import Digest
from protocol.runtime.files import FileLocked, locked_file
from protocol.runtime.logs import get_logger
from protocol.runtime.retry import Deadline
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import cancel_all, wait_first
from shardcast.delta.errors import BaseNeeded, WrongBase
from shardcast.delta.rebuilding import rebuild
from shardcast.delta.selection import Wanted, stands_alone, wanted_alone, wanted_with_base
from shardcast.download.context import DownloadContext
from shardcast.download.delta_chains import LONGEST_CHAIN, DeltaChain, find_chain
from shardcast.download.file_hasher import FileHasher
from shardcast.download.peer_catalog import PeerCatalog
from shardcast.download.transfer import Transfer
from shardcast.errors import VersionDiskFull, VersionDropped, VersionGone
from shardcast.freshness import Announcements
from shardcast.local_version import MANIFEST_NAME, LocalVersion
from shardcast.manifest.manifest import BlockSpan, FileProgress, Manifest, VersionKey

_LOCK = ".lock"
"""Name of the file in the partial folder whose lock excludes downloads by other processes."""
_DELTAS = ".deltas"
"""Name of the folder for deltas in the partial folder."""
_REPAIRS = 3
"""Number of attempts to repair files with a wrong SHA-256 before the download reports a broken disk."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadProgress:
    """Progress of a download."""

    version: int
    attempt: int
    done: int
    """Number of verified bytes on this disk."""
    announced: int
    """Number of bytes announced so far; the number is final once the manifest is sealed."""
    sealed: bool
    """Whether the manifest is sealed."""


OnProgress = Callable[[DownloadProgress], None]
"""Function that is called with the progress of a download."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A complete and verified version in a local folder."""

    version: int
    attempt: int
    digest: Digest
    """Version digest over the files."""
    path: Path
    """Folder with the version's files."""
    size: int
    """Total size of the files in bytes."""
    received: int
    """Number of bytes received for this version; blocks that were already on the disk do not count."""
    took: timedelta
    """Duration of the download."""


@dataclass(kw_only=True, eq=False)
class Download:
    """Downloads one attempt at a version into a folder."""

    key: VersionKey
    """The version, and the attempt at it."""
    to: Path
    """The folder of local versions, each in a sub-folder with its number as name."""
    context: DownloadContext
    """The peers from which to fetch, and the limits of requests."""
    catalog: PeerCatalog
    """Catalog of the versions that peers have."""
    announcements: Announcements | None = None
    """Reader of the announcements on the ledger; None without a ledger."""
    on_progress: OnProgress | None = None
    """Function to call after each block and each manifest extension."""
    yields_to_newer: bool = False
    """Whether to stop when a newer version appears before this one is sealed."""
    digest: Digest | None = None
    """The version digest that the result must have. None requires the digest on the ledger, if the version is announced
    there."""
    base: Path | None = None
    """Folder with the complete base, for a download of deltas; None for a download of whole files."""
    depth: int = 0
    """Number of downloads that wait for this one: its version is the base of another download's version, which may be
    the base of a third one's, and so on."""
    manifest: Manifest = field(init=False)
    """The version's manifest, which grows during the download."""
    _wanted: Wanted = field(init=False)
    _received: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.manifest = self.catalog.manifest(self.key)
        self._wanted = wanted_alone if self.base is None else wanted_with_base(self.manifest)
        self._target = self.to / str(self.key.version)
        self._partial = self.to / f".partial-{self.key.version}"

    async def run(self) -> Fetched | None:
        """Downloads the version; returns None if a newer attempt or version replaced it meanwhile.

        If deltas against a local version are smaller than whole files, the download fetches the deltas and rebuilds the
        files. If some files exist as deltas only, the download fetches the base first.

        Raises:
            NoProgress: No peer sends the missing blocks; the next download continues with the blocks on disk.
            VersionGone: No peer has the version, or its base, any more; the partial files were deleted.
            VersionDropped: The signed blocks do not produce the announced files, or the chain of deltas is too long.
            VersionDiskFull: The disk has no room for the version; the partial files were deleted.
            Conflict: Another process downloads the version into the same folder.
        """
        chain = await find_chain(self.catalog, self.key, self.to)
        base = None if chain is None else await self._rebuild_chain(chain)
        for _ in range(3):  # attempts: with a local base, if any; with whole files; with a downloaded base
            try:
                return await replace(self, base=base)._fetch()
            except WrongBase as error:
                _log.warning("wrong-base", version=str(self.key), why=error.detail)
                base = None
            except BaseNeeded:
                base = await self._fetch_base()
        raise VersionDropped(f"version {self.key} can't be rebuilt from its base, although the base is verified")

    # Deltas

    def _of(self, key: VersionKey, digest: Digest, *, base: Path | None = None, depth: int = 0) -> Download:
        """Returns a download of another version that this download needs as a base."""
        return replace(self, key=key, digest=digest, base=base, depth=depth, on_progress=None, yields_to_newer=False)

    async def _rebuild_chain(self, chain: DeltaChain) -> Path | None:
        """Rebuilds the versions of a chain one after another; returns the folder of the last one.

        Returns None if a version of the chain is gone or can't be rebuilt.
        """
        folder = chain.start
        for link in chain.links:
            key = VersionKey(link.version, link.attempt)
            try:
                fetched = await self._of(key, link.digest, base=folder)._fetch()
            except (WrongBase, VersionGone, VersionDropped) as error:
                _log.info("delta-chain-broken", version=str(key), why=error.detail)
                return None
            if fetched is None:
                return None
            folder = fetched.path
        return folder

    async def _fetch_base(self) -> Path:
        """Downloads the base of this version's deltas; returns its folder."""
        base = self.catalog.base_of(self.key)
        if base is None:
            raise VersionGone(f"no relay lists version {self.key} any more, so its base can't be found")
        if self.depth == LONGEST_CHAIN:
            raise VersionDropped(f"version {self.key} is built on a chain of more than {LONGEST_CHAIN} deltas")
        key = VersionKey(base.version, base.attempt)
        gone = VersionGone(f"no relay has version {key}, the base of version {self.key}")
        deadline = Deadline.after(self.context.timeouts.progress, clock=self.context.clock)
        while True:
            seen = self.catalog.revision
            if await self.catalog.newest(version=base.version) == key:
                break
            try:  # a relay may list the base later: after a start it fetches the newest version first, then its base
                await deadline.bound(self.catalog.next_change(seen), what="the wait for a base")
            except Unavailable:
                raise gone from None
        fetched = await self._of(key, base.digest, depth=self.depth + 1).run()
        if fetched is None:
            raise gone
        return fetched.path

    # One version, with one base or none

    async def _fetch(self) -> Fetched | None:
        """Downloads the version, as deltas if `base` is set.

        Returns None if a newer attempt or version replaced it meanwhile.

        Raises:
            BaseNeeded: `base` is not set, and some files exist as deltas only.
            WrongBase: `base` is not the version that the deltas were built on.
            MusterError: Any error that `run` raises.
        """
        context = self.context
        began = context.clock.monotonic()
        work = asyncio.create_task(self._complete())
        try:
            await wait_first(self._until_superseded(), tasks=[work])
            if not work.done():
                context.metrics.versions.labels("voided").inc()
                return None
            work.result()
        except MusterError as error:
            context.metrics.versions.labels(error.code).inc()
            raise
        finally:
            await cancel_all([work])
        took = context.clock.monotonic() - began
        context.metrics.versions.labels("complete").inc()
        context.metrics.seconds.observe(took)
        if self.manifest.digest is None:
            raise VersionDropped(f"version {self.key} was never sealed")
        return Fetched(
            version=self.key.version,
            attempt=self.key.attempt,
            digest=self.manifest.digest,
            path=self._target,
            size=sum(file.size for file in self.manifest.content()),
            received=self._received,
            took=timedelta(seconds=took),
        )

    async def _until_superseded(self) -> None:
        """Waits until a newer attempt at the version appears.

        With `yields_to_newer` a newer version ends the wait, too, as long as the wanted version is not sealed.
        """
        while True:
            seen = self.catalog.revision
            newest = await self.catalog.newest()
            newest_attempt = await self.catalog.newest(version=self.key.version)
            if newest_attempt is not None and newest_attempt > self.key:
                return
            if self.yields_to_newer and newest is not None and newest > self.key and not self.manifest.sealed:
                return
            await self.catalog.next_change(seen)

    async def _announced_digest(self) -> Digest | None:
        """Returns the version digest on the ledger.

        Returns None if this attempt is not the newest announced one, or the ledger can't be read.
        """
        if self.announcements is None:
            return None
        try:
            announced = await self.announcements.latest()
        except Unavailable as error:
            # The download continues: manifests are still verified by the publisher's signature. Only the comparison
            # with the announced digest is skipped.
            _log.warning("announcements-unavailable", why=error.detail)
            return None
        return announced.digest if announced is not None and announced.key == self.key else None

    async def _complete(self) -> None:
        """Downloads and verifies the version, unless the target folder already holds the complete version.

        Raises:
            VersionDropped: The ledger announces another digest for this version.
            MusterError: Any other error that `run` raises.
        """
        expected = self.digest or await self._announced_digest()
        if not await self._is_complete(expected):
            self._partial.mkdir(parents=True, exist_ok=True)
            with _locked(self._partial / _LOCK):
                try:
                    await self._fetch_files(expected)
                except (VersionDiskFull, VersionDropped, VersionGone):
                    await run_in_thread(shutil.rmtree, self._partial, ignore_errors=True)
                    raise
                await run_in_thread(self._move_into_place)
        announced = await self._announced_digest()  # the publisher may have announced the digest during the download
        if announced not in {None, self.manifest.digest}:
            await run_in_thread(shutil.rmtree, self._target, ignore_errors=True)
            raise VersionDropped(
                f"version {self.key} was announced as digest {announced}, but its files have {self.manifest.digest}"
            )

    async def _is_complete(self, expected: Digest | None) -> bool:
        """Returns whether the target folder holds exactly this attempt, complete and unchanged.

        If the folder has other content, the method renames it to the partial folder, so that the download reuses the
        valid blocks in it.
        """
        if not self._target.is_dir():
            return False
        log = self._target / MANIFEST_NAME
        manifest = self.catalog.manifest(self.key)
        local = LocalVersion(manifest, log=log, locate=lambda file: self._target / file.path)
        if log.exists():
            spans = local.resume()
            is_expected = manifest.sealed and expected in {None, manifest.digest}
            if is_expected and await run_in_thread(_is_intact, local, spans):
                self.manifest = manifest
                return True
        _log.info("folder-is-not-the-version", path=str(self._target), version=str(self.key))
        await run_in_thread(shutil.rmtree, self._partial, ignore_errors=True)
        self._target.rename(self._partial)
        return False

    async def _fetch_files(self, expected: Digest | None) -> None:
        """Fetches and verifies all wanted files, and rebuilds the others from the base."""
        log = self._partial / MANIFEST_NAME
        local = LocalVersion(self.manifest, log=log, locate=self._locate)
        known: list[BlockSpan] = []
        if log.exists():
            known = await run_in_thread(local.resume)
        else:
            local.start()
        hashing = asyncio.create_task(FileHasher(local, wanted=self._wanted).wrong_files())
        try:
            await self._transfer(local, known)
            wrong = await hashing
        finally:
            hashing.cancel()
            await asyncio.gather(hashing, return_exceptions=True)
        for _ in range(_REPAIRS):
            if not wrong:
                break
            await self._repair(local, wrong)
            wrong = await FileHasher(local, wanted=_among(wrong)).wrong_files()
        if wrong:
            raise Unavailable(
                f"the disk with {self._partial} returns other bytes than were written to it",
                hint="check the disk for errors, or use a folder on another disk",
                code="disk-failed",
                retryable=False,
            )
        if expected not in {None, self.manifest.digest}:
            raise VersionDropped(
                f"version {self.key} was announced as digest {expected}, but its files have {self.manifest.digest}"
            )
        if self.base is None and not stands_alone(self.manifest):
            raise BaseNeeded(f"version {self.key} has files that exist as deltas only")
        await run_in_thread(self._finish_files, local)

    async def _transfer(self, local: LocalVersion, spans: list[BlockSpan]) -> None:
        transfer = Transfer(local, self.context, wanted=self._wanted, on_progress=lambda: self._report_progress(local))
        try:
            await transfer.run(spans)
        finally:
            self._received += transfer.received

    async def _repair(self, local: LocalVersion, wrong: list[int]) -> None:
        """Verifies every block of files with a wrong SHA-256, and fetches bad blocks again.

        INTELLECT-2, section 2.2.

        Args:
            local: The partial version.
            wrong: Indexes of the files.

        Raises:
            VersionDropped: All blocks match their signed hashes, so another download would have the same wrong SHA-256.
        """
        bad: list[BlockSpan] = []
        for index in wrong:
            span = BlockSpan(index, 0, self.manifest.files[index].blocks)
            bad += span.without(await run_in_thread(local.check, span))
        if not bad:
            paths = ", ".join(self.manifest.files[index].path for index in wrong)
            raise VersionDropped(
                f"every block of version {self.key} has its signed hash, but {paths} does not have the signed SHA-256"
            )
        _log.warning("repairing", version=str(self.key), blocks=sum(span.count for span in bad))
        for span in bad:
            for block in range(span.first, span.first + span.count):
                local.set_missing(span.file, block)
        await self._transfer(local, bad)

    def _finish_files(self, local: LocalVersion) -> None:
        for file in self.manifest.files:
            if self._wanted(file):
                local.truncate(file.index)
        if self.base is not None:
            rebuild(local, base=self.base, into=self._partial)
        shutil.rmtree(self._partial / _DELTAS, ignore_errors=True)
        kept = {self._partial / file.path for file in self.manifest.files} | {self._partial / MANIFEST_NAME}
        for path in self._partial.rglob("*"):
            if path.is_file() and path not in kept:
                path.unlink()  # a file of an older attempt, whose folder this download took over

    def _move_into_place(self) -> None:
        (self._partial / _LOCK).unlink(missing_ok=True)
        self._partial.rename(self._target)

    def _locate(self, file: FileProgress) -> Path:
        return (self._partial / _DELTAS if file.kind == "delta" else self._partial) / file.path

    def _report_progress(self, local: LocalVersion) -> None:
        if self.on_progress is None:
            return
        manifest = self.manifest
        announced = sum(file.announced for file in manifest.files if self._wanted(file))
        self.on_progress(
            DownloadProgress(
                version=self.key.version,
                attempt=self.key.attempt,
                done=local.present_bytes,
                announced=manifest.size if manifest.base is None else announced,
                sealed=manifest.sealed,
            )
        )


def _is_intact(local: LocalVersion, spans: Iterable[BlockSpan]) -> bool:
    """Returns whether every file in a version's folder has exactly the signed content."""
    files = local.manifest.files
    full = {file.path for file in files if file.kind == "full"}
    if any(files[span.file].kind == "full" and len(local.check(span)) != span.count for span in spans):
        return False
    for file in files:
        path, result = local.path(file.index), file.whole
        if _size(path) != (file.announced if result is None else result.size):
            return False
        # The manifest has no block hashes of a file that was rebuilt from a delta, so its SHA-256 is checked.
        if result is not None and file.path not in full and _sha256(path) != result.sha256:
            return False
    return True


def _among(indexes: Iterable[int]) -> Wanted:
    chosen = frozenset(indexes)
    return lambda file: file.index in chosen


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock on a file; the lock excludes downloads by other processes.

    If this process dies, the kernel releases the lock.

    Raises:
        Conflict: Another process holds the lock.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_file(path))
        except FileLocked:
            raise Conflict(
                f"another process is downloading into {path.parent}",
                hint="wait until it ends, or download into another folder",
                code="busy-folder",
                retryable=True,
            ) from None
        yield
