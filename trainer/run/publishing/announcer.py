"""Announces versions on the ledger, and tells the orchestrator to lease slots for them.

Each stage first checks whether it was already done, so it can be repeated after a crash at any moment. Two trainers
can't both announce a version: a trainer that finds another digest on the ledger stops.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass

from ledger.client import Ledger
from ledger.client.checkpoints import Announcement
from ledger.errors import TransactionReverted
from protocol.clients.orchestrator import OrchestratorClient
from protocol.errors import Conflict
from protocol.identifiers import Digest
from protocol.runtime.logs import get_logger
from protocol.wire.runs import CheckpointRef, NewCheckpoint, RunView
from trainer.errors import AnotherTrainer
from trainer.run.orchestrator.lease import RunLease
from trainer.run.orchestrator.outages import OutageRetry
from trainer.run.publishing.folders import VersionFolders

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOffer:
    """Values that are the same in all announcements of a run.

    Args:
        pool_id: Pool of the run.
        run: Id of the run.
        units_per_group: Work units per group, used for leases.
        arithmetic: Engines and dtypes that the recipe accepts. The orchestrator passes them on to nodes.
        relays: URLs of relays that serve versions.
    """

    pool_id: int
    run: Digest
    units_per_group: int
    arithmetic: tuple[str, ...]
    relays: tuple[str, ...]


class Announcer:
    """Announces the versions of one run.

    Args:
        folders: The version folders, with their digests.
        ledger: Ledger client with the publisher's key.
        client: Client of the orchestrator.
        offer: Values that are the same in all announcements of the run.
        retry: Retries during outages.
        lease: The trainer lease; the orchestrator refuses requests without it.
    """

    def __init__(
        self,
        folders: VersionFolders,
        *,
        ledger: Ledger,
        client: OrchestratorClient,
        offer: VersionOffer,
        retry: OutageRetry,
        lease: RunLease,
    ) -> None:
        self._folders = folders
        self._ledger = ledger
        self._client = client
        self._offer = offer
        self._retry = retry
        self._lease = lease

    async def announce(self, version: int) -> None:
        """Announces a version on the ledger. Idempotent.

        Before it announces, the trainer confirms its lease, because an announcement on the ledger is permanent.

        Raises:
            AnotherTrainer: The ledger names another digest for the version, or the lease is lost.
        """
        digest = self._folders.recorded(version)

        async def announce() -> None:
            latest = await self._latest()
            if latest is None or latest.version < version:
                await self._lease.confirm()
                try:
                    await self._ledger.checkpoints.announce(
                        pool_id=self._offer.pool_id, run=self._offer.run, version=version, attempt=0, digest=digest
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
            newest: Newest version that this trainer has written.

        Raises:
            AnotherTrainer: Another trainer made the version.
        """
        latest = await self._retry(self._latest, what="reading the newest version")
        if latest is None:
            return
        if latest.version > newest:
            raise AnotherTrainer(
                f"the ledger names version {latest.version} of this run, but the newest version that this trainer has "
                f"made is {newest}"
            )
        await self._check_ours(latest.version, self._folders.digest(latest.version))

    async def publish_to_orchestrator(self, version: int) -> None:
        """Tells the orchestrator to lease slots for a version from now on.

        Raises:
            AnotherTrainer: The orchestrator already leases slots for a newer version, or another trainer has the lease.
        """

        def put(lease: str) -> Awaitable[CheckpointRef]:
            checkpoint = NewCheckpoint(
                version=version,
                attempt=0,
                digest=self._folders.recorded(version),
                units_per_group=self._offer.units_per_group,
                arithmetic=self._offer.arithmetic,
                relays=self._offer.relays,
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

    async def _latest(self) -> Announcement | None:
        return await self._ledger.checkpoints.latest(self._offer.pool_id, self._offer.run)

    async def _check_ours(self, version: int, digest: Digest | None) -> None:
        found = await self._ledger.checkpoints.get(self._offer.pool_id, self._offer.run, version)
        if found is None or found.digest != digest:
            named = "no digest" if found is None else found.digest
            raise AnotherTrainer(
                f"the ledger names {named} for version {version} of this run, and this trainer has {digest or 'none'}"
            )
