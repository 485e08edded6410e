"""Folders of versions: writes them, journals their digests, and removes old ones.

The origin publishes the versions from these folders.

Each stage first checks whether it was already done, so it can be repeated after a crash at any moment.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from ledger.client import Ledger
from ledger.version_needs import VersionNeeds
from protocol.checkpoints import folder_files, version_digest
from protocol.errors import Conflict, MusterError
from protocol.identifiers import Digest, run_id
from protocol.runtime.budgets import KeepRule, Needs, OverBudget, keep_rule, stored_version
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from shardcast.origin import KEPT_VERSIONS as PUBLISHED_VERSIONS
from trainer.run.settings import TrainerSettings
from trainer.run.state.journal import Journal, Written
from trainer.saving.files import put_in_place

KEPT_VERSIONS = 16
"""Number of version folders kept if the disk has space; relays that were offline fetch them later."""

_log = get_logger(__name__)

Writer = Callable[[Path], Awaitable[None]]
"""Function that writes a version into the given folder, atomically."""


class VersionFolders:
    """The version folders of one run, from which the origin publishes.

    Args:
        policies: Folder with a subfolder per version.
        journal: Journal of the run.
        written: Digests by version, from the journal. `write` adds new versions.
        keep: Rule for keeping version folders.
        needs: Reads from the ledger which versions leases and open work need.
    """

    def __init__(
        self,
        policies: Path,
        *,
        journal: Journal,
        written: dict[int, Digest],
        keep: KeepRule,
        needs: VersionNeeds,
    ) -> None:
        self._policies = policies
        self._journal = journal
        self._written = written
        self._keep = keep
        self._needs = needs
        self._over_budget = OverBudget(policies)

    def digest(self, version: int) -> Digest | None:
        """Returns the digest of a version; None if this run has not written it."""
        return self._written.get(version)

    def recorded(self, version: int) -> Digest:
        """Returns the digest of a version that this run has written.

        Raises:
            KeyError: This run has not written the version.
        """
        return self._written[version]

    @property
    def newest(self) -> int:
        """Newest written version. There always is one, because the base is written first."""
        return max(self._written)

    def folder(self, version: int) -> Path:
        """Returns the folder of a version."""
        return self._policies / str(version)

    async def write(self, version: int, write: Writer) -> Digest:
        """Writes a version's folder and records its digest. Idempotent; writes a missing folder again.

        The digest is recorded before the folder is renamed. Therefore a folder without a recorded digest belongs to
        another run. A version with a recorded digest need not be trained again; on another device a second training
        would not give the same bits.

        Raises:
            Conflict: The folder belongs to another run, or its content differs from the recorded digest.
            NotWritten: The disk is full or refuses the write.
        """
        recorded, folder = self._written.get(version), self.folder(version)
        if recorded is not None and folder.exists():
            return recorded
        made, digest = await self._made(version, recorded, write)
        if recorded is not None:
            if digest != recorded:
                raise Conflict(
                    f"{folder} was missing and was written again as {digest}; the recorded digest is {recorded}",
                    hint="restore the folder from a copy or from a relay: `muster shardcast fetch`",
                )
        else:
            await run_in_thread(self._check_free, folder, digest)
            await run_in_thread(self._journal.append, Written(version=version, digest=digest))
            self._written[version] = digest
        if folder.exists():
            await run_in_thread(shutil.rmtree, made, ignore_errors=True)
        else:
            await run_in_thread(put_in_place, made, folder)
        return digest

    async def tidy(self, newest: int, *, used: Collection[int] = ()) -> int:
        """Removes folders of versions that are not needed any more; the base stays.

        Nothing is removed while the ledger can't be read, because then it is unknown which versions leases and
        unfinished work need.

        Args:
            newest: Newest version that may be removed.
            used: Versions that the trainer still reads, and that are kept.

        Returns:
            Bytes by which the kept versions exceed the budget.
        """
        known = sorted((each for each in self._written if 0 < each <= newest), reverse=True)
        found = [each for each in known if self.folder(each).exists()]
        try:
            needs = await self._needs.read(found)
        except MusterError as error:
            _log.warning("versions-not-removed", why=error.detail, hint="removal is retried after the next version")
            return 0
        return await run_in_thread(self._tidy, found, needs, used)

    def _tidy(self, found: Sequence[int], needs: Needs, used: Collection[int]) -> int:
        stored = [replace(stored_version(self.folder(each)), needed=each in used) for each in found]
        choice = self._keep.choose(needs.of(list(zip(found, stored, strict=True))))
        for version, stays in zip(found, choice.stays, strict=True):
            if not stays:
                shutil.rmtree(self.folder(version), ignore_errors=True)
        self._over_budget.note(choice.over)
        return choice.over

    async def _made(self, version: int, recorded: Digest | None, write: Writer) -> tuple[Path, Digest]:
        """Returns the path and digest of a complete version under a temporary name.

        A folder of this name from before a crash is reused if it has the recorded digest.
        """
        made = self.folder(version).with_name(f".{version}.made")
        if made.exists():
            if (digest := await run_in_thread(digest_of, made)) == recorded:
                return made, digest
            await run_in_thread(shutil.rmtree, made, ignore_errors=True)
        await write(made)
        return made, await run_in_thread(digest_of, made)

    def _check_free(self, folder: Path, digest: Digest) -> None:
        """Checks that an unrecorded folder, if it exists, has the expected content.

        Raises:
            Conflict: The folder has other content.
        """
        if folder.exists() and digest_of(folder) != digest:
            raise Conflict(
                f"{folder} exists and is not version {folder.name} of this run",
                hint="give this run its own folder of versions",
            )


def open_folders(
    settings: TrainerSettings, ledger: Ledger, *, journal: Journal, written: dict[int, Digest], clock: Clock
) -> VersionFolders:
    """Returns the version folders of the run that the settings name.

    Args:
        settings: Settings of the run.
        ledger: Names the versions that leases and open work need.
        journal: Journal of the run.
        written: Digests by version, from the journal.
        clock: Clock of the run.
    """
    return VersionFolders(
        settings.policies,
        journal=journal,
        written=written,
        keep=keep_rule(settings.policies, told=settings.keep_versions, most=KEPT_VERSIONS, least=PUBLISHED_VERSIONS),
        needs=VersionNeeds(
            ledger,
            pool_id=settings.pool_id,
            run=run_id(settings.run),
            clock=clock,
            clocks_differ=settings.clocks_differ,
        ),
    )


def digest_of(folder: Path) -> Digest:
    """Returns the digest of a version's folder."""
    return version_digest(folder_files(folder))
