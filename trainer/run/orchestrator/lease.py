"""The run's lease: while this trainer holds it, the orchestrator refuses requests of other trainers.

A restarted trainer that held the last lease gets a new lease at once; the orchestrator then refuses requests of its
earlier process. Each request carries the id of this trainer process. If an answer with a new lease is lost, the
orchestrator recognises the id in the next request and repeats the answer. If the other trainer uses another
orchestrator, or the orchestrator has lost its Redis data, the orchestrator can't refuse the other trainer. Then the
ledger shows the conflict: a trainer ends when the ledger has an announcement that this trainer did not make.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from protocol.clients.orchestrator import OrchestratorClient
from protocol.errors import Conflict, MusterError
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import token_hex
from protocol.runtime.threads import run_in_thread
from protocol.wire.runs import TrainerWish
from trainer.errors import AnotherTrainer
from trainer.run.orchestrator.outages import OutageRetry
from trainer.run.state.folder import HOLDER_FILE
from trainer.saving.files import write_whole

LIFE = timedelta(seconds=30)
"""Validity of the lease. The trainer renews the lease after a third of this time."""
_AT_ONCE = timedelta(milliseconds=1)
"""Validity that a trainer asks for when it gives up the lease, so that the lease expires at once."""
_FENCED = "trainer-fenced"

T = TypeVar("T")

_log = get_logger(__name__)


class RunLease:
    """The lease of one trainer.

    Args:
        client: Client of the orchestrator.
        folder: The trainer's state directory. A file in it has the id by which the orchestrator recognises a restarted
            trainer.
        clock: Clock of the run.
        retry: Retries the first request while the orchestrator is down.
    """

    def __init__(self, client: OrchestratorClient, *, folder: Path, clock: Clock, retry: OutageRetry) -> None:
        self._client = client
        self._folder = folder
        self._clock = clock
        self._retry = retry
        self._holder = ""
        self._start = token_hex(16)
        self._keeping: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        """Serialises requests, so that an older answer can't replace a newer one."""
        self.value = ""
        """Lease id that the trainer's requests carry."""
        self.lost: AnotherTrainer | None = None
        """Set when another trainer has taken the lease."""

    async def take(self) -> None:
        """Takes the lease and renews it until `give_up`.

        Raises:
            AnotherTrainer: Another trainer holds the lease.
            NotWritten: The state directory can't be written.
        """
        self._holder = await run_in_thread(self._holder_id)
        await self._retry(self._hold, what="taking the run's lease")
        if self.lost is not None:
            raise self.lost
        self._keeping = asyncio.create_task(self._keep())

    async def give_up(self) -> None:
        """Releases the lease; if the orchestrator does not answer, the lease expires."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        if self.lost is None and self.value:
            try:
                await self._client.hold_trainer_lease(self._wish(_AT_ONCE))
            except MusterError as error:
                _log.info("lease-not-given-up", why=error.detail)

    async def with_token(self, put: Callable[[str], Awaitable[T]]) -> T:
        """Sends a request under the lease.

        If the lease has expired, takes it again and repeats the request.

        Raises:
            AnotherTrainer: Another trainer has taken the lease.
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
        """Checks with the orchestrator that this trainer still holds the lease.

        Raises:
            AnotherTrainer: Another trainer holds the lease.
        """
        self.check()
        await self._hold()
        self.check()

    def check(self) -> None:
        """Raises an error if an earlier request found that another trainer holds the lease.

        Raises:
            AnotherTrainer: Another trainer holds the lease.
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

    def _holder_id(self) -> str:
        path = self._folder / HOLDER_FILE
        if not path.exists():
            write_whole(path, token_hex(16).encode())
        return path.read_text().strip()
