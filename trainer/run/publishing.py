"""A version on its way to the workers: whole in its folder, in the journal, on the ledger, told to the orchestrator.

Each stage looks first whether it was done, so the whole can be done again after a crash at any moment. The ledger's
announcement is what two trainers can't both make: who finds another digest there stops.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from ledger.client import Ledger
from ledger.errors import TransactionReverted
from protocol.checkpoints import folder_files, version_digest
from protocol.clients.orchestrator import OrchestratorClient
from protocol.errors import Conflict
from protocol.identifiers import Digest
from protocol.runtime.budgets import KeepRule, stored_version
from protocol.wire.runs import CheckpointRef, NewCheckpoint, RunView
from trainer.errors import AnotherTrainer
from trainer.files import put_in_place
from trainer.run.journal import Journal, Written
from trainer.run.lease import RunLease
from trainer.run.outages import OutageRetry

KEPT_VERSIONS = 16
"""Folders that are kept if the disk allows: relays that were away fetch them from here."""

_log = structlog.get_logger(__name__)

Writer = Callable[[Path], Awaitable[None]]
"""Writes a version's folder, whole or not at all."""


class Publisher:
    """Publishes the versions of one run.

    Args:
        policies: The folder whose versions the origin publishes.
        journal: Where what was written is recorded.
        written: What the journal holds already, by version; added to.
        ledger: With the publisher's key.
        client: Tells the orchestrator.
        pool_id: The pool.
        run: The run's id.
        units_per_group: What leases need to know.
        arithmetic: What nodes need to know: the engines and types that the recipe takes.
        relays: Where versions can be fetched.
        keep: Which folders are left.
        patience: Waits for what is down.
        lease: Fences what is said.
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
        patience: OutageRetry,
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
        self._patience = patience
        self._lease = lease

    def digest(self, version: int) -> Digest | None:
        """Returns the digest of a version of this run; None if it was not written."""
        return self._written.get(version)

    @property
    def newest(self) -> int:
        """Returns the newest written version; at first the base."""
        return max(self._written)

    def folder(self, version: int) -> Path:
        """Returns the folder of a version."""
        return self._policies / str(version)

    async def write(self, version: int, write: Writer) -> Digest:
        """Writes a version's folder and records its digest; idempotent, and restores a missing folder.

        The digest is recorded before the folder gets its name. A folder without a record is therefore not this run's,
        and a recorded one need not be computed again, which other devices would not reproduce bit by bit.

        Raises:
            Conflict: A foreign folder exists, or the written version differs from the recorded digest.
            NotWritten: The disk is full, or refuses.
        """
        recorded, folder = self._written.get(version), self.folder(version)
        if recorded is not None and folder.exists():
            return recorded
        made, digest = await self._made(version, recorded, write)
        if recorded is not None:
            if digest != recorded:
                raise Conflict(
                    f"{folder} was gone and is made anew as {digest}; it was announced as {recorded}",
                    hint="put the folder back from a copy or from a relay: `muster shardcast fetch`",
                )
        else:
            await asyncio.to_thread(self._check_free, folder, digest)
            await asyncio.to_thread(self._journal.append, Written(version=version, digest=digest))
            self._written[version] = digest
        if folder.exists():
            await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)
        else:
            await asyncio.to_thread(put_in_place, made, folder)
        return digest

    async def announce(self, version: int) -> None:
        """Announces a version on the ledger; idempotent.

        Raises:
            AnotherTrainer: It names another digest for it, or a newer version; or the run is not ours any more: the
                ledger takes the publisher's word from whoever comes first, and can't take it back.
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

        await self._patience(announce, what=f"announcing version {version}")

    async def check_ledger(self, newest: int) -> None:
        """Makes sure that the ledger names nothing that we did not make.

        Args:
            newest: The newest version that was or will be made of the journal.

        Raises:
            AnotherTrainer: It does.
        """
        latest = await self._patience(
            lambda: self._ledger.checkpoints.latest(self._pool_id, self._run), what="reading the newest version"
        )
        if latest is None:
            return
        if latest.version > newest:
            raise AnotherTrainer(
                f"the ledger names version {latest.version} of this run, and this trainer has made none after {newest}"
            )
        await self._check_ours(latest.version, self._written.get(latest.version))

    async def tell(self, version: int) -> None:
        """Asks the orchestrator to lease slots for a version from now on.

        Raises:
            AnotherTrainer: The orchestrator knows a newer one, or the run is another trainer's.
        """

        def put(lease: str) -> Awaitable[CheckpointRef]:
            told = NewCheckpoint(
                version=version,
                attempt=0,
                digest=self._written[version],
                units_per_group=self._units_per_group,
                arithmetic=self._arithmetic,
                relays=self._relays,
                trainer=lease,
            )
            return self._client.put_checkpoint(told)

        what = f"telling the orchestrator of version {version}"
        try:
            adopted = await self._patience(lambda: self._lease.say(put), what=what)
        except Conflict as error:
            if error.code != "checkpoint-goes-back":
                raise
            raise AnotherTrainer(error.detail) from error
        if not adopted.relays:
            _log.warning(
                "no-relay",
                version=version,
                hint="workers can't fetch it: start `muster shardcast relay`, and name it in `relays`",
            )

    def is_told(self, view: RunView, version: int) -> bool:
        """Returns whether the orchestrator leases this version or a newer one."""
        return view.checkpoint is not None and view.checkpoint.version >= version

    def tidy(self, newest: int, *, needed: frozenset[int] = frozenset()) -> None:
        """Removes folders of versions beyond the keep rule, but never the base or a version in `needed`."""
        known = sorted((each for each in self._written if 0 < each <= newest), reverse=True)
        found = [each for each in known if self.folder(each).exists()]
        kept = self._keep.count([stored_version(self.folder(each)) for each in found], now=time.time())
        for version in found[kept:]:
            if version not in needed:
                shutil.rmtree(self.folder(version), ignore_errors=True)

    async def _made(self, version: int, recorded: Digest | None, write: Writer) -> tuple[Path, Digest]:
        """A version that is whole under a name that nobody publishes; the one that is recorded, if it lies there."""
        made = self.folder(version).with_name(f".{version}.made")
        if made.exists():
            if (digest := await asyncio.to_thread(_digest_of, made)) == recorded:
                return made, digest
            await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)
        await write(made)
        return made, await asyncio.to_thread(_digest_of, made)

    def _check_free(self, folder: Path, digest: Digest) -> None:
        """Makes sure that a folder which no record names, if there is one, is what this run makes.

        Raises:
            Conflict: It is somebody else's.
        """
        if folder.exists() and _digest_of(folder) != digest:
            raise Conflict(
                f"{folder} is there, and is not version {folder.name} of this run",
                hint="give this run a folder of versions of its own",
            )

    async def _check_ours(self, version: int, digest: Digest | None) -> None:
        found = await self._ledger.checkpoints.get(self._pool_id, self._run, version)
        if found is None or found.digest != digest:
            named = "none" if found is None else found.digest
            raise AnotherTrainer(f"the ledger names {named} as version {version} of this run, and ours is {digest}")


def _digest_of(folder: Path) -> Digest:
    return version_digest(folder_files(folder))
