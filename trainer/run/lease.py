"""The run's lease: while this trainer has it, what another one says to the orchestrator is refused.

A trainer that begins gets a new lease at once if it had the last one; what still runs under that is fenced. It names
its start in all that it asks: an answer that was lost, also one to a lease that had run out, is given again. The
ledger's announcements fence what the orchestrator can't (a second orchestrator, a Redis that was lost).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import structlog

from protocol.clients.orchestrator import OrchestratorClient
from protocol.errors import Conflict, MusterError
from protocol.runtime.clock import Clock
from protocol.wire.runs import TrainerWish
from trainer.errors import AnotherTrainer
from trainer.files import write_whole
from trainer.run.outages import OutageRetry

LIFE = timedelta(seconds=30)
_AT_ONCE = timedelta(milliseconds=1)
_HOLDER_FILE = "holder"
_FENCED = "trainer-fenced"

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class RunLease:
    """The lease of one trainer.

    Args:
        client: The orchestrator.
        folder: The trainer's state directory: who it is stands there.
        clock: Whose time is waited.
        patience: Waits for the orchestrator at first.
    """

    def __init__(self, client: OrchestratorClient, *, folder: Path, clock: Clock, patience: OutageRetry) -> None:
        self._client = client
        self._folder = folder
        self._clock = clock
        self._patience = patience
        self._holder = ""
        self._start = secrets.token_hex(16)
        self._keeping: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        """One request at a time: an older answer must not replace a newer one."""
        self.value = ""
        """Fencing token of the trainer's requests."""
        self.lost: AnotherTrainer | None = None
        """Reason for which this trainer lost the run."""

    async def take(self) -> None:
        """Takes the lease, and keeps it until `give_up`.

        Raises:
            AnotherTrainer: Somebody else has it.
            NotWritten: The state directory can't be written.
        """
        self._holder = await asyncio.to_thread(self._own_name)
        await self._patience(self._hold, what="taking the run's lease")
        if self.lost is not None:
            raise self.lost
        self._keeping = asyncio.create_task(self._keep())

    async def give_up(self) -> None:
        """Lets another trainer have the run at once; what can't be said now ends by itself."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        if self.lost is None and self.value:
            try:
                await self._client.hold_trainer_lease(self._wish(_AT_ONCE))
            except MusterError as error:
                _log.info("lease-not-given-up", why=error.detail)

    async def say(self, put: Callable[[str], Awaitable[T]]) -> T:
        """Makes a request under the lease; acquires it again if it expired and no other trainer holds it.

        Raises:
            AnotherTrainer: Another trainer holds the lease.
        """
        self.check()
        try:
            return await put(self.value)
        except Conflict as error:
            if error.code != _FENCED:
                raise
        await self._hold()
        self.check()
        return await put(self.value)

    async def confirm(self) -> None:
        """Returns if the run is ours at this moment, by the orchestrator's word.

        Raises:
            AnotherTrainer: It is not.
        """
        self.check()
        await self._hold()
        self.check()

    def check(self) -> None:
        """Returns if the run is still ours, as far as is known.

        Raises:
            AnotherTrainer: It is not.
        """
        if self.lost is not None:
            raise self.lost

    async def _keep(self) -> None:
        while self.lost is None:
            await self._clock.sleep(LIFE / 3)
            try:
                await self._hold()
            except MusterError as error:
                _log.warning("lease-not-renewed", why=error.detail)

    async def _hold(self) -> None:
        async with self._asking:
            try:
                self.value = (await self._client.hold_trainer_lease(self._wish(LIFE))).lease
            except Conflict as error:
                if error.code != _FENCED:
                    raise
                self.lost = AnotherTrainer(error.detail)

    def _wish(self, life: timedelta) -> TrainerWish:
        milliseconds = life // timedelta(milliseconds=1)
        return TrainerWish(holder=self._holder, lease=self.value, start=self._start, life_ms=milliseconds)

    def _own_name(self) -> str:
        path = self._folder / _HOLDER_FILE
        if not path.exists():
            write_whole(path, secrets.token_hex(16).encode())
        return path.read_text().strip()
