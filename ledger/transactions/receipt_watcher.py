"""Polls the chain for receipts of all transactions in flight.

A transaction that is not mined in time is replaced by a version with higher fees.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

from web3 import AsyncWeb3

from ledger.errors import InsufficientFunds, NonceTaken
from ledger.rpc.connection import ChainConnection
from ledger.transactions.fees import bumped
from ledger.transactions.nonces import NonceAllocator
from ledger.transactions.pending import Broadcast, BroadcastResult, SendPolicy, TransactionCall, TransactionIntent
from ledger.transactions.receipts import read_receipt
from ledger.transactions.wallet import Wallet
from protocol.errors import MusterError
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import cancel_all, sleep_or

_log = get_logger(__name__)

_TICKS_UNTIL_LOST = 2
"""Number of polls in a row that find a nonce used but no receipt, after which the transaction counts as lost.

One poll is not enough, because the nodes behind one URL may be at different heights.
"""

_SHORTEST_PAUSE = timedelta(milliseconds=20)
"""First polling interval after a broadcast; it doubles with each poll, up to the policy's `poll`."""

_FILLER_GAS = 21_000
"""Gas of a transfer without data, with which a nonce gap is filled."""


class ReceiptWatcher:
    """Watches transactions in flight until each has a receipt or an error.

    Args:
        web3: From `ledger.rpc.connection.connect`.
        wallet: Wallet of the sending key.
        nonces: Holds the transactions in flight and assigns new nonces.
        clock: Clock for polling and fee bumps.
        policy: Fee bumps and polling interval.
    """

    def __init__(
        self,
        web3: AsyncWeb3[ChainConnection],
        wallet: Wallet,
        nonces: NonceAllocator,
        *,
        clock: Clock,
        policy: SendPolicy,
    ) -> None:
        self._web3 = web3
        self._wallet = wallet
        self._nonces = nonces
        self._slots = nonces.slots
        self._clock = clock
        self._policy = policy
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._interval = _SHORTEST_PAUSE
        self._gap: tuple[int, float] | None = None
        """An unused nonce that blocks our later ones, and when it was first seen (monotonic seconds)."""

    def wake(self) -> None:
        """Starts the polling loop, or makes it poll soon, because a transaction was sent."""
        self._wake.set()
        self._interval = _SHORTEST_PAUSE
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll_loop(), name=f"transactions of {self._wallet.address}")

    async def stop(self) -> None:
        """Stops polling."""
        if self._task is not None:
            await cancel_all([self._task])

    async def check(self, intent: TransactionIntent) -> None:
        """Polls once for one transaction and sets its outcome if the chain has one.

        The transaction need not be among those that `nonces` tracks.
        """
        mined, settled, head = await self._progress()
        await self._check_mined(intent, mined=mined, settled=settled, head=head)

    async def _poll_loop(self) -> None:
        while self._slots:
            self._wake.clear()
            try:
                await self._tick()
            except MusterError as error:
                _log.warning("can't check transactions in flight", detail=error.detail)
            if self._slots:
                await self._pause()

    async def _pause(self) -> None:
        """Waits until the next poll: 20 ms after a broadcast, then doubling up to the policy's `poll`."""
        pause, self._interval = min(self._interval, self._policy.poll), min(2 * self._interval, self._policy.poll)
        await self._clock.sleep(min(_SHORTEST_PAUSE, pause))
        await sleep_or(self._clock, pause - _SHORTEST_PAUSE, self._wake)

    async def _tick(self) -> None:
        mined, settled, head = await self._progress()
        done = [nonce for nonce in sorted(self._slots) if nonce < mined]
        checks = (self._check_mined(self._slots[nonce], mined=mined, settled=settled, head=head) for nonce in done)
        await asyncio.gather(*checks)
        for nonce in done:
            if self._slots[nonce].outcome.done():
                del self._slots[nonce]
        await self._move_lost()
        await self._repeat_unanswered()
        await self._bump_late()
        await self._fill_gap(mined)

    async def _progress(self) -> tuple[int, int, int]:
        """Returns the number of mined nonces, of irreversibly mined ones, and the chain's height (0 if not needed)."""
        depth = self._policy.settled_after
        wanted = depth or any(intent.confirmations for intent in self._slots.values())
        head = int(await self._web3.eth.block_number) if wanted else 0
        mined = await self._wallet.count("latest")
        settled = mined if depth == 0 else await self._wallet.count(max(0, head - depth))
        return mined, settled, head

    async def _check_mined(self, intent: TransactionIntent, *, mined: int, settled: int, head: int) -> None:
        nonce = intent.nonce
        if nonce is None or nonce >= mined:
            return
        for broadcast in intent.broadcasts:
            raw = await self._web3.provider.request("eth_getTransactionReceipt", broadcast.transaction)
            if raw is not None:
                intent.missing_since_ticks = 0
                if not intent.confirmations or head - int(raw["blockNumber"], 16) >= intent.confirmations:
                    await self._finish(intent, broadcast, raw)
                return
        if nonce < settled:
            intent.missing_since_ticks += 1
        if intent.missing_since_ticks >= _TICKS_UNTIL_LOST and intent.abandoned:
            intent.outcome.set_exception(
                NonceTaken(
                    f"nonce {nonce} of {self._wallet.address} was used by another transaction than {intent.hashes_text}"
                )
            )
            intent.outcome.exception()  # marks the exception as retrieved: the caller may be gone

    async def _finish(self, intent: TransactionIntent, broadcast: Broadcast, raw: dict[str, Any]) -> None:
        if int(raw["status"], 16) == 1:
            intent.outcome.set_result(read_receipt(raw))
            return
        intent.outcome.set_exception(await self._wallet.revert_reason(broadcast, int(raw["blockNumber"], 16)))
        intent.outcome.exception()

    async def _move_lost(self) -> None:
        """Signs transactions under a new nonce if another sender has irreversibly used their old one."""
        lost = [
            (nonce, intent)
            for nonce, intent in sorted(self._slots.items())
            if intent.missing_since_ticks >= _TICKS_UNTIL_LOST and not intent.outcome.done()
        ]
        for nonce, intent in lost:
            del self._slots[nonce]
            intent.missing_since_ticks = 0
            _log.info("another sender with this key used the nonce", address=self._wallet.address, nonce=nonce)
            try:
                if await self._nonces.place(intent):
                    self.wake()
            except MusterError as error:
                intent.outcome.set_exception(error)
                intent.outcome.exception()

    async def _repeat_unanswered(self) -> None:
        """Sends transactions again, unchanged, if their last broadcast got no response."""
        for intent in [intent for _, intent in sorted(self._slots.items()) if intent.unanswered]:
            with contextlib.suppress(InsufficientFunds):
                intent.unanswered = await self._wallet.submit(intent.broadcasts[-1]) is BroadcastResult.UNKNOWN

    async def _bump_late(self) -> None:
        """Replaces transactions that are not mined after `bump_after` by versions with higher fees."""
        now = self._clock.monotonic()
        late = [
            (nonce, intent)
            for nonce, intent in sorted(self._slots.items())
            if now - intent.sent_at >= self._policy.bump_after.total_seconds() and not intent.missing_since_ticks
        ]
        for nonce, intent in late:
            market = await self._wallet.market()
            higher = bumped(intent.fees or market, market=market, limit=self._policy.most_fee)
            if higher is None:
                intent.sent_at = now
                await self._wallet.submit(intent.broadcasts[-1])  # the node's pool may have dropped it
                continue
            intent.fees = higher
            _log.info("transaction not mined in time, raising its fees", nonce=nonce, most_fee=higher.most)
            try:
                await self._nonces.broadcast(intent, nonce)
            except InsufficientFunds as error:
                _log.warning("can't pay higher fees", nonce=nonce, detail=error.detail)
                await self._wallet.submit(intent.broadcasts[-1])

    async def _fill_gap(self, mined: int) -> None:
        """Fills a nonce gap that has blocked our later transactions for `bump_after`, by sending 0 wei to ourselves."""
        if not self._slots or min(self._slots) <= mined or await self._wallet.count("pending") > mined:
            self._gap = None
            return
        now = self._clock.monotonic()
        if self._gap is None or self._gap[0] != mined:
            self._gap = (mined, now)
            return
        if now - self._gap[1] < self._policy.bump_after.total_seconds():
            return
        self._gap = None
        _log.warning("filling a nonce gap before our transactions", address=self._wallet.address, nonce=mined)
        filler = TransactionIntent(
            call=TransactionCall(to=self._wallet.address),
            gas=_FILLER_GAS,
            outcome=asyncio.get_running_loop().create_future(),
            abandoned=True,
            fees=await self._wallet.market(),
        )
        if await self._nonces.broadcast(filler, mined) in {BroadcastResult.TAKEN, BroadcastResult.UNKNOWN}:
            self._slots[mined] = filler
