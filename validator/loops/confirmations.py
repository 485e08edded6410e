"""Sends confirmations of first verdicts in batches: those that arrive during a transaction go into the next one."""

from __future__ import annotations

import asyncio

from ledger.client import Ledger
from ledger.client.contract import Refusal
from ledger.client.work import Verdict

MOST = 64
"""Confirmations per transaction."""


class Confirmations:
    """Batches confirmations of this validator."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Verdict, asyncio.Future[Refusal | None]]] = []
        self._sending = asyncio.Lock()

    async def send(self, ledger: Ledger, look: Verdict) -> Refusal | None:
        """Sends a confirmation together with all waiting ones; returns the refusal, if there is one.

        Raises:
            ChainUnavailable: The chain does not answer.
            TransactionNotMined: The outcome is unknown.
            TransactionReverted: The whole transaction failed.
        """
        answer: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((look, answer))
        async with self._sending:
            if not answer.done():  # otherwise the previous holder of the lock has sent this one, too
                batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._send(ledger, batch)
        return await answer

    async def _send(self, ledger: Ledger, batch: list[tuple[Verdict, asyncio.Future[Refusal | None]]]) -> None:
        try:
            refused = {each.subject: each for each in await ledger.work.confirm([look for look, _ in batch])}
        except asyncio.CancelledError:
            for _, answer in batch:
                answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - each caller with a confirmation in the batch must get the error
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for look, answer in batch:
            if not answer.done():
                answer.set_result(refused.get(look.key))
