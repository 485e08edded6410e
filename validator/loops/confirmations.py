"""Sends second looks that agree with the first verdict to the ledger in batches, one transaction at a time."""

from __future__ import annotations

import asyncio

from ledger.client import Ledger
from ledger.client.contract import Refusal
from ledger.client.work import Verdict

MOST = 64
"""Maximum number of confirmations per transaction."""


class Confirmations:
    """Sends this validator's confirmations in batches, one transaction at a time."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Verdict, asyncio.Future[Refusal | None]]] = []
        self._sending = asyncio.Lock()

    async def send(self, ledger: Ledger, look: Verdict) -> Refusal | None:
        """Sends a confirmation together with all waiting ones.

        Args:
            ledger: Ledger client with the validator's key.
            look: Outcome of the second look, which agrees with the first verdict.

        Returns:
            The contract's refusal of this confirmation; None if the contract accepted it.

        Raises:
            ChainUnavailable: The chain does not answer.
            TransactionNotMined: The transaction's outcome is unknown.
            TransactionReverted: The transaction failed with all its confirmations.
        """
        answer: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((look, answer))
        async with self._sending:
            # If the answer is done, the previous holder of the lock has sent this confirmation, too.
            if not answer.done():
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
        except Exception as error:  # noqa: BLE001 - every caller with a confirmation in the batch must get the error
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for look, answer in batch:
            if not answer.done():
                answer.set_result(refused.get(look.key))
