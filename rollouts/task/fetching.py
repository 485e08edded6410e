"""Fetches the version named by a step from the run's relays, which are untrusted."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from protocol.identifiers import Digest
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.wire.runs import CheckpointRef
from rollouts.errors import BadVersionFolder
from rollouts.task.policies import INCOMING, NoPolicy
from shardcast.client import Client
from shardcast.freshness import AnnouncedVersion

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _FixedVersion:
    """Version source that names only the step's version, regardless of the versions that relays offer."""

    announced: AnnouncedVersion

    async def latest(self) -> AnnouncedVersion:
        return self.announced


class RelayFetch:
    """Fetches versions by SHARDCAST.

    Args:
        allow_plain_http: Allows `http` to other machines; the content is verified with `http` too.
        clock: Clock for waiting.
    """

    def __init__(self, *, clock: Clock, allow_plain_http: bool = False) -> None:
        self._clock = clock
        self._allow_plain_http = allow_plain_http

    async def __call__(self, run: Digest, checkpoint: CheckpointRef, to: Path) -> None:
        """Creates the complete and verified folder `to`; resumes an interrupted fetch.

        Raises:
            NoPolicy: The run has no relays.
            BadVersionFolder: The version that the publisher signed for the relays is not the announced version.
            MusterError: No relay serves the version now.
        """
        if not checkpoint.relays:
            raise NoPolicy(
                f"version {checkpoint.version} is not on this machine, but the run names no relays",
                hint="the pool owner names relays in the settings of the orchestrator or the trainer",
            )
        incoming = to.with_name(f"{INCOMING}{to.name}")
        wanted = AnnouncedVersion(checkpoint.version, checkpoint.attempt, checkpoint.digest)
        async with Client(
            checkpoint.relays,
            run=run,
            signer=checkpoint.publisher,
            announcements=_FixedVersion(wanted),
            allow_plain_http=self._allow_plain_http,
            clock=self._clock,
        ) as client:
            await asyncio.to_thread(incoming.mkdir, parents=True, exist_ok=True)
            fetched = await client.fetch(checkpoint.version, incoming)
        if fetched.digest != checkpoint.digest:
            await asyncio.to_thread(shutil.rmtree, incoming, ignore_errors=True)
            raise BadVersionFolder(
                f"the relays' version {checkpoint.version} is {fetched.digest}, not {checkpoint.digest}"
            )
        await asyncio.to_thread(fetched.path.rename, to)
        await asyncio.to_thread(shutil.rmtree, incoming, ignore_errors=True)
        _log.info(
            "version-fetched",
            version=checkpoint.version,
            bytes=fetched.size,
            received=fetched.received,
            seconds=round(fetched.took.total_seconds(), 2),
        )
