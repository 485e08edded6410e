"""Publishes one version without training, for example for a pool that serves a model."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from protocol.identifiers import Digest, run_id
from protocol.identity.keys import Key
from protocol.runtime.clock import SystemClock
from protocol.runtime.threads import run_in_thread
from rollouts.models.facts import read_model
from rollouts.recipe import check_classes, read_recipe
from trainer.run.connections import Outside, connect, publisher_key
from trainer.run.orchestrator.lease import RunLease
from trainer.run.orchestrator.outages import OutageRetry
from trainer.run.publishing.announcer import Announcer, VersionOffer
from trainer.run.publishing.folders import digest_of, open_folders
from trainer.run.settings import TrainerSettings
from trainer.run.state.folder import lock_state
from trainer.run.state.journal import Journal
from trainer.saving.files import copy_version


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVersion:
    """A version that the orchestrator leases slots for.

    Args:
        version: Number of the version.
        digest: Digest of its folder.
        is_new: False if it was the run's newest version already.
    """

    version: int
    digest: Digest
    is_new: bool


async def publish_one(
    settings: TrainerSettings, *, key: Key | None = None, outside: Outside | None = None
) -> PublishedVersion:
    """Publishes `settings.start` as the run's next version. Idempotent.

    The version is copied to `settings.policies`, announced on the ledger, and named to the orchestrator. If the newest
    version on the ledger has the same digest, only missing parts are done again.

    Raises:
        BadVersionFolder: The folder is not a version, or its recipe names a numerics class that does not fit the model.
        AnotherTrainer: A trainer works on this run, or uses the state directory.
        Conflict: The folder of versions contains another version of this number.
        NotWritten: The disk is full or refuses the write.
        Unavailable: The chain or the orchestrator did not answer for `settings.patience`.
    """
    outside = outside or Outside(clock=SystemClock())
    key = key or publisher_key(settings)
    folder = settings.start
    recipe = read_recipe(folder)
    check_classes(recipe, read_model(folder), folder=folder)
    digest = await run_in_thread(digest_of, folder)
    with lock_state(settings.state):
        async with AsyncExitStack() as stack:
            ledger, client = await connect(settings, key, outside, stack)
            retry = OutageRetry(clock=outside.clock, longest=settings.patience)
            lease = RunLease(client, folder=settings.state, clock=outside.clock, retry=retry)
            stack.push_async_callback(lease.give_up)
            await lease.take()
            pool_id, run = settings.pool_id, run_id(settings.run)
            latest = await retry(lambda: ledger.checkpoints.latest(pool_id, run), what="reading the newest version")
            is_new = latest is None or latest.digest != digest
            version = 0 if latest is None else latest.version + is_new
            journal = Journal(settings.state)
            folders = open_folders(
                settings,
                ledger,
                journal=journal,
                written=(await run_in_thread(journal.read)).written,
                clock=outside.clock,
            )
            settings.policies.mkdir(parents=True, exist_ok=True)
            await folders.write(version, lambda target: run_in_thread(copy_version, folder, target))
            announcer = Announcer(
                folders,
                ledger=ledger,
                client=client,
                offer=VersionOffer(
                    pool_id=pool_id,
                    run=run,
                    units_per_group=recipe.units_per_group,
                    arithmetic=recipe.taken,
                    relays=settings.relays,
                ),
                retry=retry,
                lease=lease,
            )
            await announcer.announce(version)
            await announcer.publish_to_orchestrator(version)
            await folders.tidy(version)
    return PublishedVersion(version=version, digest=digest, is_new=is_new)
