"""Publishes versions: writes the folder, journals it, announces it on the ledger and tells the orchestrator.

Each stage first checks whether it was already done, so publishing can be repeated after a crash at any moment. Two
trainers can't both announce a version: a trainer that finds another digest on the ledger stops.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from ledger.client import Ledger
from ledger.errors import TransactionReverted
from ledger.version_needs import VersionNeeds
from protocol.checkpoints import folder_files, version_digest
from protocol.clients.orchestrator import OrchestratorClient
from protocol.errors import Conflict, MusterError
from protocol.identifiers import Digest
from protocol.runtime.budgets import KeepRule, Needs, OverBudget, stored_version
from protocol.runtime.threads import run_in_thread
from protocol.wire.runs import CheckpointRef, NewCheckpoint, RunView
from trainer.errors import AnotherTrainer
from trainer.run.orchestrator.lease import RunLease
from trainer.run.orchestrator.outages import OutageRetry
from trainer.run.state.journal import Journal, Written
from trainer.saving.files import put_in_place

KEPT_VERSIONS = 16
"""Number of version folders kept if the disk has space; relays that were offline fetch them later."""

_log = structlog.get_logger(__name__)

Writer = Callable[[Path], Awaitable[None]]
"""Writes a version's folder atomically."""


class Publisher:
    """Publishes the versions of one run.

    Args:
        policies: Folder from which the origin publishes versions.
        journal: Journal of the run.
        written: Digests by version from the journal; updated here.
        ledger: Ledger client with the publisher's key.
        client: Client of the orchestrator.
        pool_id: Pool of the run.
        run: Id of the run.
        units_per_group: Work units per group, used for leases.
        arithmetic: Engines and dtypes that the recipe accepts, for the nodes.
        relays: URLs of relays that serve versions.
        keep: Rule for keeping version folders.
        needs: Reads which versions leases and open work need.
        retry: Retries during outages.
        lease: The run's lease, which fences requests.
    """

    def __init__(
        self,
        policies: Path,
        *,
        journal: Journal,
        written: dict[int, Digest],
        ledger: Ledger,
        client: OrchestratorClient,
        pool_id: int,
        run: Digest,
        units_per_group: int,
        arithmetic: tuple[str, ...],
        relays: tuple[str, ...],
        keep: KeepRule,
        needs: VersionNeeds,
        retry: OutageRetry,
        lease: RunLease,
    ) -> None:
        self._policies = policies
        self._journal = journal
        self._written = written
        self._ledger = ledger
        self._client = client
        self._pool_id = pool_id
        self._run = run
        self._units_per_group = units_per_group
        self._arithmetic = arithmetic
        self._relays = relays
        self._keep = keep
        self._needs = needs
        self._over_budget = OverBudget(policies)
        self._retry = retry
        self._lease = lease

    def digest(self, version: int) -> Digest | None:
        """Returns the digest of a version; None if this run has not written it."""
        return self._written.get(version)

    @property
    def newest(self) -> int:
        """The newest written version; the base is written first."""
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

    async def announce(self, version: int) -> None:
        """Announces a version on the ledger. Idempotent.

        Raises:
            AnotherTrainer: The ledger names another digest or a newer version, or the lease is lost. The lease is
                checked first because an announcement on the ledger is permanent.
        """
        digest = self._written[version]

        async def announce() -> None:
            latest = await self._ledger.checkpoints.latest(self._pool_id, self._run)
            if latest is None or latest.version < version:
                await self._lease.confirm()
                try:
                    await self._ledger.checkpoints.announce(
                        pool_id=self._pool_id, run=self._run, version=version, attempt=0, digest=digest
                    )
                except TransactionReverted as error:
                    if error.name != "NotNewer":
                        raise
                else:
                    return
            await self._check_ours(version, digest)

        await self._retry(announce, what=f"announcing version {version}")

    async def check_ledger(self, newest: int) -> None:
        """Checks that the ledger's newest version was made by this trainer.

        Args:
            newest: Newest version made, or to be made, from the journal.

        Raises:
            AnotherTrainer: Another trainer made it.
        """
        latest = await self._retry(
            lambda: self._ledger.checkpoints.latest(self._pool_id, self._run), what="reading the newest version"
        )
        if latest is None:
            return
        if latest.version > newest:
            raise AnotherTrainer(
                f"the ledger names version {latest.version} of this run, and this trainer has made none after {newest}"
            )
        await self._check_ours(latest.version, self._written.get(latest.version))

    async def publish_to_orchestrator(self, version: int) -> None:
        """Tells the orchestrator to lease slots for a version from now on.

        Raises:
            AnotherTrainer: The orchestrator knows a newer version, or another trainer has the lease.
        """

        def put(lease: str) -> Awaitable[CheckpointRef]:
            checkpoint = NewCheckpoint(
                version=version,
                attempt=0,
                digest=self._written[version],
                units_per_group=self._units_per_group,
                arithmetic=self._arithmetic,
                relays=self._relays,
                trainer=lease,
            )
            return self._client.put_checkpoint(checkpoint)

        what = f"telling the orchestrator of version {version}"
        try:
            adopted = await self._retry(lambda: self._lease.with_token(put), what=what)
        except Conflict as error:
            if error.code != "checkpoint-goes-back":
                raise
            raise AnotherTrainer(error.detail) from error
        if not adopted.relays:
            _log.warning(
                "no-relay",
                version=version,
                hint="workers can't fetch this version: start `muster shardcast relay`, and add its URL to `relays`",
            )

    def is_adopted(self, view: RunView, version: int) -> bool:
        """Returns whether the orchestrator leases slots for this version or a newer one."""
        return view.checkpoint is not None and view.checkpoint.version >= version

    async def tidy(self, newest: int, *, used: Collection[int] = ()) -> int:
        """Removes folders of versions that are not needed any more; the base stays.

        Nothing is removed while the versions that leases and open work need can't be read from the ledger.

        Args:
            newest: Newer versions are not removed.
            used: Versions that the trainer still reads.

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
        """Returns a complete version under a temporary name; reuses an existing one with the recorded digest."""
        made = self.folder(version).with_name(f".{version}.made")
        if made.exists():
            if (digest := await run_in_thread(_digest_of, made)) == recorded:
                return made, digest
            await run_in_thread(shutil.rmtree, made, ignore_errors=True)
        await write(made)
        return made, await run_in_thread(_digest_of, made)

    def _check_free(self, folder: Path, digest: Digest) -> None:
        """Checks that an unrecorded folder, if it exists, has the expected content.

        Raises:
            Conflict: The folder has other content.
        """
        if folder.exists() and _digest_of(folder) != digest:
            raise Conflict(
                f"{folder} exists and is not version {folder.name} of this run",
                hint="give this run its own folder of versions",
            )

    async def _check_ours(self, version: int, digest: Digest | None) -> None:
        found = await self._ledger.checkpoints.get(self._pool_id, self._run, version)
        if found is None or found.digest != digest:
            named = "none" if found is None else found.digest
            raise AnotherTrainer(f"the ledger names {named} as version {version} of this run, and ours is {digest}")


def _digest_of(folder: Path) -> Digest:
    return version_digest(folder_files(folder))
