"""From a nonce to a receipt: one look at the chain for all that is on its way; what is late is offered for more."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any, cast

import structlog
from web3 import AsyncWeb3
from web3.exceptions import TransactionNotFound

from ledger.errors import InsufficientFunds, NonceTaken
from ledger.rpc.connection import ChainConnection
from ledger.transactions.fees import bumped
from ledger.transactions.nonces import NonceAllocator
from ledger.transactions.pending import Broadcast, BroadcastResult, SendPolicy, TransactionCall, TransactionIntent
from ledger.transactions.receipts import read_receipt
from ledger.transactions.wallet import Wallet
from protocol.errors import MusterError
from protocol.runtime.clock import Clock

_log = structlog.get_logger(__name__)

_TICKS_UNTIL_LOST = 2
"""Looks in a row that must miss a receipt: nodes behind one address are not equally far."""

_SHORTEST_PAUSE = timedelta(milliseconds=20)
"""The first pause after something was sent; each that follows is twice as long, up to the policy's `poll`."""

_FILLER_GAS = 21_000


class ReceiptWatcher:
    """Sees what was placed to its end.

    Args:
        web3: From `ledger.rpc.connection.connect`.
        wallet: Of the key.
        placer: What is on its way, and who gives it another nonce.
        clock: Time for bumps and looks.
        policy: When to bump, how much to offer, how often to look.
    """

    def __init__(
        self,
        web3: AsyncWeb3[ChainConnection],
        wallet: Wallet,
        placer: NonceAllocator,
        *,
        clock: Clock,
        policy: SendPolicy,
    ) -> None:
        self._web3 = web3
        self._wallet = wallet
        self._placer = placer
        self._slots = placer.slots
        self._clock = clock
        self._policy = policy
        self._looking: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._nap = _SHORTEST_PAUSE
        self._stuck: tuple[int, float] | None = None

    def begin(self) -> None:
        """Looks soon: something was sent."""
        self._wake.set()
        self._nap = _SHORTEST_PAUSE
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._watch_all(), name=f"transactions of {self._wallet.address}")

    async def stop(self) -> None:
        """Looks no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def look_for(self, intent: TransactionIntent) -> None:
        """One look for one transaction, which may be none of those on their way; settles its outcome if it is known."""
        mined, settled, head = await self._progress()
        await self._check_mined(intent, mined=mined, settled=settled, head=head)

    async def _watch_all(self) -> None:
        while self._slots:
            self._wake.clear()
            try:
                await self._tick()
            except MusterError as error:
                _log.warning("chain not readable while transactions are on their way", detail=error.detail)
            if self._slots:
                await self._pause()

    async def _pause(self) -> None:
        """Until the next look: soon after something was sent, which a quick chain has mined, then less and less."""
        nap, self._nap = min(self._nap, self._policy.poll), min(2 * self._nap, self._policy.poll)
        await self._clock.sleep(min(_SHORTEST_PAUSE, nap))
        napping = asyncio.ensure_future(self._clock.sleep(nap - _SHORTEST_PAUSE))
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({napping, woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (napping, woken):
                task.cancel()
            await asyncio.gather(napping, woken, return_exceptions=True)

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
        """Nonces below the first are in a block, below the second for good; the third is the height, if it matters."""
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
            with contextlib.suppress(TransactionNotFound):
                raw = await self._web3.eth.get_transaction_receipt(cast("Any", broadcast.transaction))
                intent.missing_since_ticks = 0
                if not intent.confirmations or head - int(raw["blockNumber"]) >= intent.confirmations:
                    await self._finish(intent, broadcast, dict(raw))
                return
        if nonce < settled:
            intent.missing_since_ticks += 1
        if intent.missing_since_ticks >= _TICKS_UNTIL_LOST and intent.abandoned:
            intent.outcome.set_exception(
                NonceTaken(
                    f"nonce {nonce} of {self._wallet.address} was used by another transaction than {intent.named}"
                )
            )
            intent.outcome.exception()  # may be nobody's any more

    async def _finish(self, intent: TransactionIntent, broadcast: Broadcast, raw: dict[str, Any]) -> None:
        if raw["status"] == 1:
            intent.outcome.set_result(read_receipt(raw))
            return
        intent.outcome.set_exception(await self._wallet.why(broadcast, int(raw["blockNumber"])))
        intent.outcome.exception()

    async def _move_lost(self) -> None:
        """Signs under a new nonce what can't be mined under its old one any more."""
        lost = [
            (nonce, intent)
            for nonce, intent in sorted(self._slots.items())
            if intent.missing_since_ticks >= _TICKS_UNTIL_LOST and not intent.outcome.done()
        ]
        for nonce, intent in lost:
            del self._slots[nonce]
            intent.missing_since_ticks = 0
            _log.info("nonce was used by another sender with this key", address=self._wallet.address, nonce=nonce)
            try:
                if await self._placer.place(intent):
                    self.begin()
            except MusterError as error:
                intent.outcome.set_exception(error)
                intent.outcome.exception()

    async def _repeat_unanswered(self) -> None:
        """Sends again, unchanged, what the node may never have received."""
        for intent in [intent for _, intent in sorted(self._slots.items()) if intent.unanswered]:
            with contextlib.suppress(InsufficientFunds):
                intent.unanswered = await self._wallet.submit(intent.broadcasts[-1]) is BroadcastResult.UNKNOWN

    async def _bump_late(self) -> None:
        """Offers more for what waits too long."""
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
                await self._wallet.submit(intent.broadcasts[-1])  # the node may have forgotten it
                continue
            intent.fees = higher
            _log.info("not mined in time, offered for more", nonce=nonce, most_fee=higher.most)
            try:
                await self._placer.broadcast(intent, nonce)
            except InsufficientFunds as error:
                _log.warning("can't offer more", nonce=nonce, detail=error.detail)
                await self._wallet.submit(intent.broadcasts[-1])

    async def _fill_gap(self, mined: int) -> None:
        """Fills a nonce that nobody's transaction uses while ours wait behind it: with a transfer of nothing to us."""
        if not self._slots or min(self._slots) <= mined or await self._wallet.count("pending") > mined:
            self._stuck = None
            return
        now = self._clock.monotonic()
        if self._stuck is None or self._stuck[0] != mined:
            self._stuck = (mined, now)
            return
        if now - self._stuck[1] < self._policy.bump_after.total_seconds():
            return
        self._stuck = None
        _log.warning("filling a gap before our transactions", address=self._wallet.address, nonce=mined)
        filler = TransactionIntent(
            call=TransactionCall(to=self._wallet.address),
            gas=_FILLER_GAS,
            outcome=asyncio.get_running_loop().create_future(),
            abandoned=True,
            fees=await self._wallet.market(),
        )
        if await self._placer.broadcast(filler, mined) in {BroadcastResult.TAKEN, BroadcastResult.UNKNOWN}:
            self._slots[mined] = filler
