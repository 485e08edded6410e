"""Lists, fetches and verifies the accepted files of a step. An invalid file is dropped without affecting others."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from protocol.clients.orchestrator import OrchestratorClient
from protocol.errors import InvalidInput, MusterError, NotFound, TooLarge
from protocol.http.object_transfer import BytesRefused, ObjectTransfer
from protocol.identifiers import Digest
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.verdicts import Outcome
from protocol.wire.audits import LARGEST_AUDIT_FILE
from protocol.wire.listings import RolloutItem
from trainer.errors import NotWritten
from trainer.run.gathering.batches import SeenFile, in_lease_order
from trainer.run.gathering.rollout_files import FileReader, UnusableFile
from trainer.run.gathering.verdicts import LedgerVerdicts, NotOnLedger
from trainer.run.state.journal import JournalFile

_log = get_logger(__name__)

ROLLOUTS_FOLDER = "rollouts"
_VANISHED = "vanished"
_NOT_WAITED_FOR = {_VANISHED, NotOnLedger.code}
"""Reasons for which the intake retries an unavailable file, while the step does not wait for it."""


def step_folder(state: Path, step: int) -> Path:
    """Returns the folder of a step's files, which are kept until the state after the step is saved."""
    return state / ROLLOUTS_FOLDER / str(step)


def file_paths(folder: Path, entry: JournalFile) -> tuple[Path, Path]:
    """Returns the paths of a file and its audit file, named by their hashes."""
    return folder / f"{entry.sha256[2:]}.parquet", folder / f"{entry.audit[2:]}.json"


def remove_files(state: Path, *, below: int) -> None:
    """Removes the files of steps below `below`. The saved state is newer than these steps, so no restart reads them."""
    for folder in (state / ROLLOUTS_FOLDER).glob("*"):
        if folder.name.isdigit() and int(folder.name) < below:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeSources:
    """Services from which rollouts and their verdicts come.

    Args:
        client: Client of the orchestrator, which lists files.
        transfer: Downloads files.
        verdicts: Verdicts on the ledger.
    """

    client: OrchestratorClient
    transfer: ObjectTransfer
    verdicts: LedgerVerdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """Limits of an intake.

    Args:
        max_staleness: Maximum age of a rollout's policy in steps.
        at_once: Maximum number of parallel downloads.
        patience: Maximum time for which a step waits for a file while chain or store is down.
    """

    max_staleness: int
    at_once: int
    patience: timedelta


class RolloutIntake:
    """Fetches and verifies the files of a step.

    Args:
        step: Number of the step.
        sources: Services from which rollouts and their verdicts come.
        folder: Folder for the files; created if missing.
        reader: Reads files, and has the rules that every file must satisfy.
        policy: Returns the digest of a version; None if this run has not written it.
        limits: Limits of staleness, parallel downloads and waiting.
        clock: Clock of the run.
    """

    def __init__(
        self,
        step: int,
        *,
        sources: IntakeSources,
        folder: Path,
        reader: FileReader,
        policy: Callable[[int], Digest | None],
        limits: IntakeLimits,
        clock: Clock,
    ) -> None:
        self.step = step
        self._sources = sources
        self._folder = folder
        self._reader = reader
        self._policy = policy
        self._max_staleness = limits.max_staleness
        self._turns = asyncio.Semaphore(limits.at_once)
        self._clock = clock
        self._longest_wait = limits.patience.total_seconds()
        self._taken: dict[Digest, SeenFile] = {}
        self._refused: dict[Digest, str] = {}
        self._unavailable: dict[Digest, tuple[str, float]] = {}
        """Reason and monotonic time of the first failure, by work key."""
        self._listed: list[RolloutItem] = []

    async def look(self) -> None:
        """Lists the accepted files and fetches new ones.

        Raises:
            MusterError: The orchestrator can't list the files.
            NotWritten: The disk of this machine refuses the write.
        """
        listed = {item.key: item async for item in self._sources.client.rollouts(step=self.step)}
        self._listed = list(listed.values())
        new: defaultdict[Digest, list[RolloutItem]] = defaultdict(list)
        for item in self._listed:
            if item.key not in self._taken and item.key not in self._refused:
                new[item.sha256].append(item)
        if new:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise NotWritten(f"{self._folder} can't be created: {error.strerror or error}") from error
        await asyncio.gather(*(self._take_each(items) for items in new.values()))

    @property
    def files(self) -> list[SeenFile]:
        """Fetched files that are still accepted, in lease order."""
        return in_lease_order(self._taken[item.key] for item in self._listed if item.key in self._taken)

    @property
    def dropped(self) -> Counter[str]:
        """Number of unused files by reason, including those currently unavailable."""
        return Counter([*self._refused.values(), *(why for why, _ in self._unavailable.values())])

    @property
    def has_unavailable(self) -> bool:
        """Returns whether an accepted file is currently unavailable."""
        return bool(self._unavailable)

    async def _take_each(self, items: Sequence[RolloutItem]) -> None:
        """Fetches files with equal bytes one after the other.

        Such files share a path, which their SHA-256 determines.
        """
        for item in items:
            await self._take(item)

    async def _take(self, item: RolloutItem) -> None:
        async with self._turns:
            try:
                entry = await self._checked(item)
                self._taken[item.key] = await self._read(item, entry)
                self._unavailable.pop(item.key, None)
            except OSError as error:
                raise NotWritten(f"{self._folder} can't be used: {error.strerror or error}") from error
            except (InvalidInput, BytesRefused, TooLarge) as error:
                self._refused[item.key] = error.code
                self._unavailable.pop(item.key, None)
                _log.warning("file-dropped", work=item.key, node=item.node, code=error.code, why=error.detail)
            except MusterError as error:
                if item.key not in self._unavailable:
                    _log.warning("file-late", work=item.key, node=item.node, code=error.code, why=error.detail)
                _, since = self._unavailable.get(item.key, ("", self._clock.monotonic()))
                self._unavailable[item.key] = _VANISHED if isinstance(error, NotFound) else error.code, since

    async def _checked(self, item: RolloutItem) -> JournalFile:
        """Checks a listed file and returns its journal entry.

        Raises:
            UnusableFile: The file belongs to another step, is too stale or too large, or names a version with a digest
                that this run has not written.
            NotOnLedger: The ledger has no matching verdict yet.
        """
        if item.outcome is not Outcome.ACCEPTED or item.step != self.step or item.audit_hash is None:
            raise UnusableFile("the listed file is not accepted", code="not-accepted")
        if not self.step - self._max_staleness <= item.version <= self.step:
            raise UnusableFile(
                f"version {item.version} is newer than step {self.step}, or more than {self._max_staleness} steps "
                "older",
                code="stale",
            )
        if item.digest != self._policy(item.version):
            raise UnusableFile(
                f"this run has not written a version {item.version} with the digest {item.digest}", code="other-policy"
            )
        most = self._reader.rules.most_bytes
        if item.size is not None and item.size > most:
            raise UnusableFile(f"the file has {item.size} bytes, above the limit of {most}", code="file-too-large")
        if why := await self._sources.verdicts.objection(item):
            raise NotOnLedger(why)
        return JournalFile(
            key=item.key,
            sha256=item.sha256,
            audit=item.audit_hash,
            node=item.node,
            index=item.index,
            version=item.version,
            checkpoint=item.digest,
            groups=item.groups,
        )

    async def _read(self, item: RolloutItem, entry: JournalFile) -> SeenFile:
        path, audit = file_paths(self._folder, entry)
        wanted = (
            (path, item.file_url, entry.sha256, self._reader.rules.most_bytes),
            (audit, item.audit_url, entry.audit, LARGEST_AUDIT_FILE),
        )
        for target, url, sha256, most in wanted:
            if target.exists():
                continue  # fetched before a crash; `fetch` creates a file only after it has verified the SHA-256
            if url is None:
                raise NotFound(f"the store has no file {sha256}")
            await self._sources.transfer.fetch(url, target, sha256=sha256, most_bytes=most)
        return await run_in_thread(self._reader.read, path, audit, entry=entry, step=self.step)

    def coming(self) -> int:
        """Returns the number of accepted groups that are not fetched yet and not known to be unavailable."""
        gone = self._taken.keys() | self._refused.keys() | self._unavailable.keys()
        return sum(item.groups for item in self._listed if item.key not in gone)

    def held_up(self) -> int:
        """Returns the number of accepted groups that the step waits for in an outage.

        After `patience` the step no longer waits for a file.
        """
        now = self._clock.monotonic()
        waited = {
            key
            for key, (why, since) in self._unavailable.items()
            if why not in _NOT_WAITED_FOR and now - since < self._longest_wait
        }
        return sum(item.groups for item in self._listed if item.key in waited)
