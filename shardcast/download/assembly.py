"""One version on its way into a folder: begun or gone on with, fetched, verified twice, and shown in one step."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from protocol.errors import Conflict, Unavailable
from protocol.identifiers import Digest
from protocol.runtime.clock import Clock
from shardcast.delta.errors import BaseNeeded
from shardcast.delta.rebuilding import rebuild
from shardcast.delta.selection import stands_alone, wanted_alone, wanted_with_base
from shardcast.download.file_hasher import FileHasher
from shardcast.download.peer_client import PeerClient
from shardcast.download.peers import Peers
from shardcast.download.transfer import Transfer, TransferPace
from shardcast.errors import VersionDiskFull, VersionDropped, VersionGone
from shardcast.local_version import MANIFEST_NAME, LocalVersion
from shardcast.manifest.manifest import BlockSpan, FileProgress, Manifest, VersionKey
from shardcast.metrics import FetchingMetrics

_LOCK = ".lock"
_DELTAS = ".deltas"
_REPAIRS = 3

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadProgress:
    """Progress of a download."""

    version: int
    attempt: int
    done: int
    """Verified bytes that are here."""
    announced: int
    """Bytes announced so far; the whole, once `sealed`."""
    sealed: bool


OnProgress = Callable[[DownloadProgress], None]


class Assembly:
    """Makes one version complete in a folder.

    Args:
        key: Which version, in which attempt.
        to: The folder that versions stand in, by their number.
        manifest: Of the version, of which nothing is known yet.
        peers: Who may be asked.
        upstream: How.
        metrics: Where it is counted.
        clock: Of deadlines.
        pace: How much is asked for at a time.
        on_progress: Told now and then.
        base: The complete folder of the version's base: deltas are fetched instead of whole files.
    """

    def __init__(
        self,
        key: VersionKey,
        to: Path,
        *,
        manifest: Manifest,
        peers: Peers,
        upstream: PeerClient,
        metrics: FetchingMetrics,
        clock: Clock,
        pace: TransferPace | None = None,
        on_progress: OnProgress | None = None,
        base: Path | None = None,
    ) -> None:
        self.key = key
        self.target = to / str(key.version)
        self.partial = to / f".partial-{key.version}"
        self.manifest = manifest
        self.received = 0
        """Bytes that had to be fetched."""
        self._peers = peers
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock
        self._pace = pace
        self._on_progress = on_progress
        self._base = base
        self._wanted = wanted_alone if base is None else wanted_with_base(self.manifest)

    async def run(self, *, expected: Digest | None = None) -> Path:
        """Returns the folder, complete under its number.

        Args:
            expected: The version digest that was announced on the ledger, if any was.

        Raises:
            NoProgress: No peer sends the missing blocks; present ones are kept for the next attempt.
            VersionGone: No peer has the version any more; nothing is kept.
            VersionDropped: The publisher's own blocks don't make what was announced; nothing stays.
            DiskFull: There is no room; nothing stays.
            Conflict: Another process is at it.
            BaseNeeded: There is no base, and files travel as deltas only.
            WrongBase: The base is not what the deltas were made on.
        """
        if await self._is_complete_already(expected):
            return self.target
        self.partial.mkdir(parents=True, exist_ok=True)
        with _locked(self.partial / _LOCK):
            try:
                await self._fetch(expected)
            except (VersionDiskFull, VersionDropped, VersionGone):
                await asyncio.to_thread(shutil.rmtree, self.partial, ignore_errors=True)
                raise
            await asyncio.to_thread(self._show)
        return self.target

    async def _is_complete_already(self, expected: Digest | None) -> bool:
        """Returns whether the folder holds exactly this attempt; otherwise its content is reused."""
        log = self.target / MANIFEST_NAME
        if not self.target.is_dir():
            return False
        unread = self.manifest
        manifest = Manifest(run=unread.run, key=self.key, signer=unread.signer, besides=unread.besides)
        holding = LocalVersion(manifest, log=log, locate=lambda file: self.target / file.path)
        if log.exists():
            spans = holding.resume()
            right = manifest.sealed and expected in {None, manifest.digest}
            if right and await asyncio.to_thread(_is_whole, holding, spans):
                self.manifest = manifest
                return True
        _log.info("folder-is-not-the-version", path=str(self.target), version=str(self.key))
        await asyncio.to_thread(shutil.rmtree, self.partial, ignore_errors=True)
        self.target.rename(self.partial)
        return False

    async def _fetch(self, expected: Digest | None) -> None:
        holding = LocalVersion(self.manifest, log=self.partial / MANIFEST_NAME, locate=self._locate)
        known: list[BlockSpan] = []
        if (self.partial / MANIFEST_NAME).exists():
            known = await asyncio.to_thread(holding.resume)
        else:
            holding.start()
        sums = FileHasher(holding, wanted=self._wanted)
        hashing = asyncio.create_task(sums.wrong())
        try:
            await self._transfer(holding, known)
            wrong = await hashing
        finally:
            hashing.cancel()
            await asyncio.gather(hashing, return_exceptions=True)
        for _ in range(_REPAIRS):
            if not wrong:
                break
            await self._repair(holding, wrong)
            wrong = await FileHasher(holding, wanted=_among(wrong)).wrong()
        if wrong:
            raise Unavailable(
                f"the disk under {self.partial} gives other bytes than were written to it",
                hint="check that disk",
                code="disk-failed",
                retryable=False,
            )
        if expected not in {None, self.manifest.digest}:
            raise VersionDropped(
                f"version {self.key} was announced as {expected}, and what the relays give is {self.manifest.digest}"
            )
        if self._base is None and not stands_alone(self.manifest):
            raise BaseNeeded(f"version {self.key} has files that travel as deltas only")
        await asyncio.to_thread(self._finish_files, holding)

    async def _transfer(self, holding: LocalVersion, spans: list[BlockSpan]) -> None:
        transfer = Transfer(
            holding,
            peers=self._peers,
            upstream=self._upstream,
            metrics=self._metrics,
            clock=self._clock,
            pace=self._pace,
            wanted=self._wanted,
            advanced=lambda: self._tell(holding),
        )
        try:
            await transfer.run(spans)
        finally:
            self.received += transfer.received

    async def _repair(self, holding: LocalVersion, wrong: list[int]) -> None:
        """Looks at every block of the wrong files again, and fetches the bad ones once more (INTELLECT-2, 2.2)."""
        bad: list[BlockSpan] = []
        for index in wrong:
            span = BlockSpan(index, 0, self.manifest.files[index].blocks)
            bad += span.without(await asyncio.to_thread(holding.check, span))
        if not bad:
            paths = ", ".join(self.manifest.files[index].path for index in wrong)
            raise VersionDropped(f"every block of version {self.key} is as signed, and {paths} is not")
        _log.warning("repairing", version=str(self.key), blocks=sum(span.count for span in bad))
        for span in bad:
            for block in range(span.first, span.first + span.count):
                holding.unmark(span.file, block)
        await self._transfer(holding, bad)

    def _finish_files(self, holding: LocalVersion) -> None:
        for file in self.manifest.files:
            if self._wanted(file):
                holding.settle(file.index)
        if self._base is not None:
            rebuild(holding, base=self._base, into=self.partial)
        shutil.rmtree(self.partial / _DELTAS, ignore_errors=True)
        belonging = {self.partial / file.path for file in self.manifest.files} | {self.partial / MANIFEST_NAME}
        for path in self.partial.rglob("*"):
            if path.is_file() and path not in belonging:
                path.unlink()  # of an older attempt

    def _show(self) -> None:
        (self.partial / _LOCK).unlink(missing_ok=True)
        self.partial.rename(self.target)

    def _locate(self, file: FileProgress) -> Path:
        return (self.partial / _DELTAS if file.kind == "delta" else self.partial) / file.path

    def _announced(self) -> int:
        """Bytes that travel here."""
        if self.manifest.base is None:
            return self.manifest.size
        return sum(file.announced for file in self.manifest.files if self._wanted(file))

    def _tell(self, holding: LocalVersion) -> None:
        if self._on_progress is not None:
            manifest = self.manifest
            self._on_progress(
                DownloadProgress(
                    version=self.key.version,
                    attempt=self.key.attempt,
                    done=holding.held,
                    announced=self._announced(),
                    sealed=manifest.sealed,
                )
            )


def _is_whole(holding: LocalVersion, spans: Iterable[BlockSpan]) -> bool:
    """Verifies that every file of a version is bit-exact."""
    files = holding.manifest.files
    full = {file.path for file in files if file.kind == "full"}
    if any(files[span.file].kind == "full" and len(holding.check(span)) != span.count for span in spans):
        return False
    for file in files:
        made = file.whole
        if _size(holding.path(file.index)) != (file.announced if made is None else made.size):
            return False
        if made is not None and file.path not in full and _sha256(holding.path(file.index)) != made.sha256:
            return False
    return True


def _among(indexes: Iterable[int]) -> Callable[[FileProgress], bool]:
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
    """Holds a lock that ends with the process, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(
            f"another process is fetching into {path.parent}",
            hint="wait for it, or fetch into another folder",
            code="busy-folder",
            retryable=True,
        ) from None
    else:
        yield
    finally:
        os.close(descriptor)
