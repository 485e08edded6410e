"""Sends transactions from one key: many at once, without waiting for each other, each executed at most once.

    async with Sender(web3, account, chain_id=31337) as sender:
        receipt = await sender.send(Call(to=contract, data=payload), deadline=timedelta(seconds=60))

Nonces are given out in the order of sending, so that a hundred transactions can share a block. One watcher looks at
the chain while anything is on its way: one question about the account tells which nonces are done.

**Two processes with the same key** meet at a nonce. The node refuses the second one, which then takes the next nonce.
If ours had been accepted and was outbid, it is signed again under a new nonce only when the chain says that the old
nonce went to somebody else and no reorg of `settled_after` blocks can give it back.

**After a crash**: give `send` a hook that writes each `Broadcast` down before it leaves, and ask `outcome` about what
was written. Contracts that key what they record (as ours do) are safe without.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import structlog
from eth_account.signers.local import LocalAccount
from web3 import AsyncWeb3
from web3.exceptions import TransactionNotFound

from ledger.errors import (
    InsufficientFunds,
    NonceTaken,
    TransactionNotMined,
)
from ledger.fees import Fees, bumped
from ledger.inflight import Answer, Broadcast, BroadcastHook, Call, Intent, SendPolicy
from ledger.receipts import Receipt, read_receipt
from ledger.rpc import ChainConnection
from ledger.wallet import Wallet
from protocol.clock import Clock, SystemClock
from protocol.errors import MusterError
from protocol.identifiers import Address
from protocol.retry import Deadline, DeadlinePassed

__all__ = ["Broadcast", "Call", "SendPolicy", "Sender"]

_log = structlog.get_logger(__name__)

_PLACEMENTS = 128
"""Nonces that are tried for one transaction while other senders with the same key take them."""

_TICKS_UNTIL_LOST = 2
"""Looks in a row that must miss a receipt: nodes behind one address are not equally far."""

_SALT_WEI = 1_000
"""Up to so many wei per gas are added at random, so that two senders' equal transactions are not one and the same."""

_SHORTEST_PAUSE = timedelta(milliseconds=20)
"""The first pause after something was sent; each that follows is twice as long, up to the policy's `poll`."""

_FILLER_GAS = 21_000


class Sender:
    """Sends from one key. An async context manager; leaving it gives up on what is still on its way.

    Args:
        web3: From `ledger.rpc.connect`.
        account: Signs.
        chain_id: Signed into every transaction, so that none is valid elsewhere.
        clock: Time for deadlines and bumps.
        policy: When to bump, how much to offer, how often to look.
    """

    def __init__(
        self,
        web3: AsyncWeb3[ChainConnection],
        account: LocalAccount,
        *,
        chain_id: int,
        clock: Clock | None = None,
        policy: SendPolicy | None = None,
    ) -> None:
        self._web3 = web3
        self._clock = clock or SystemClock()
        self._policy = policy or SendPolicy()
        self._wallet = Wallet(web3, account, chain_id=chain_id, clock=self._clock, policy=self._policy)
        self._lock = asyncio.Lock()
        self._next = 0
        self._placed = 0
        self._slots: dict[int, Intent] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._nap = _SHORTEST_PAUSE
        self._stuck: tuple[int, float] | None = None

    @property
    def address(self) -> Address:
        """The account that pays."""
        return self._wallet.address

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops watching. Whoever still waits gets `TransactionNotMined` with the hashes."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        for intent in self._slots.values():
            if not intent.outcome.done():
                intent.outcome.set_exception(_not_mined(intent, "the sender was closed first"))
                intent.outcome.exception()  # seen: nobody has to fetch it
        self._slots.clear()

    async def send(
        self,
        call: Call,
        *,
        deadline: timedelta | None = None,
        confirmations: int = 0,
        before_broadcast: BroadcastHook | None = None,
    ) -> Receipt:
        """Has a call executed exactly once and returns its receipt.

        Args:
            call: What to do.
            deadline: How long to wait, in all; the policy's patience if it is not said.
            confirmations: Blocks on top of the transaction's own that are waited for.
            before_broadcast: Told of every signed version before it leaves.

        Raises:
            TransactionReverted: A contract refused, before it was sent (`transaction` is None) or in its block.
            InsufficientFunds: The account can't pay.
            TransactionNotMined: The deadline passed. It may still be mined; `hashes` tells what to look for.
            ChainUnavailable: The chain could not be asked; nothing was sent.
        """
        deadline = self._policy.patience if deadline is None else deadline
        limit = Deadline.after(deadline, clock=self._clock)
        outcome: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        intent = Intent(call=call, confirmations=confirmations, hook=before_broadcast, outcome=outcome)
        try:
            return await limit.bound(self._deliver(intent), what="the transaction")
        except DeadlinePassed as error:
            raise _not_mined(intent, f"{deadline.total_seconds():.0f} s passed") from error
        finally:
            intent.abandoned = True

    async def estimate(self, call: Call) -> int:
        """The gas that a call takes now, with the policy's margin; what `send` asks for unless the call says it.

        Raises:
            TransactionReverted: A contract refuses it.
            ChainUnavailable: The chain could not be asked.
        """
        return await self._wallet.estimate(call)

    async def _deliver(self, intent: Intent) -> Receipt:
        if intent.call.gas is None:
            intent.gas, intent.counted = await asyncio.gather(self._wallet.estimate(intent.call), self._counted())
        else:
            intent.gas = intent.call.gas  # asks nothing: such calls get nonces in the order in which they were sent
        placing = asyncio.ensure_future(self._place(intent))
        placing.add_done_callback(_seen)
        await asyncio.shield(placing)  # half a placing would leave a nonce that nobody watches
        return await asyncio.shield(intent.outcome)

    async def _counted(self) -> tuple[int, int] | None:
        """How much was placed before, and our used nonces; None while something is on its way: that is counted here.

        What is being placed counts as placed, and the node may not have it yet.
        """
        if self._slots or self._lock.locked():
            return None
        return self._placed, await self._wallet.count("pending")

    async def outcome(self, broadcasts: Sequence[Broadcast], *, deadline: timedelta) -> Receipt:
        """What became of a transaction that was written down before a crash.

        Args:
            broadcasts: All versions of it, oldest first. Those under an older nonce than the last are known to be void.
            deadline: How long to wait for it to be mined. The newest version is sent once more.

        Raises:
            NonceTaken: Another transaction used the nonce: this one never will be mined, and may be sent anew.
            TransactionReverted: It is in a block and failed.
            TransactionNotMined: Neither happened in time.
        """
        intent = Intent(
            call=Call(to=None),
            outcome=asyncio.get_running_loop().create_future(),
            abandoned=True,  # so that it is never signed again here
            broadcasts=[version for version in broadcasts if version.nonce == broadcasts[-1].nonce],
        )
        limit = Deadline.after(deadline, clock=self._clock)
        with contextlib.suppress(InsufficientFunds):  # an older version may be mined all the same
            await self._wallet.submit(broadcasts[-1])
        while not intent.outcome.done():
            mined, settled, head = await self._progress()
            await self._check_mined(intent, mined=mined, settled=settled, head=head)
            if intent.outcome.done():
                break
            if limit.passed:
                raise _not_mined(intent, f"{deadline.total_seconds():.0f} s passed")
            await self._clock.sleep(self._policy.poll)
        return intent.outcome.result()

    # Placing: from a call to a nonce

    async def _place(self, intent: Intent) -> None:
        """Gives the intent a nonce and sends it; in order, one at a time, so that a refusal leaves no gap."""
        async with self._lock:
            if not self._slots:
                placed, count = intent.counted or (-1, 0)
                self._next = count if placed == self._placed else await self._wallet.count("pending")
            self._placed += 1
            fees = await self._wallet.market()
            salt = secrets.randbelow(_SALT_WEI)
            intent.fees = Fees(most=fees.most + salt, tip=min(fees.tip + salt, fees.most + salt))
            for _ in range(_PLACEMENTS):
                if intent.abandoned:
                    return  # its caller was told that it was not mined
                nonce = self._next
                intent.broadcasts = []
                answer = await self._broadcast(intent, nonce)
                self._next = nonce + 1
                if answer in {Answer.TAKEN, Answer.UNKNOWN}:
                    self._slots[nonce] = intent
                    self._watch()
                    return
                # Refused for certain: this version waits nowhere, so another nonce can't make it happen twice.
                self._next = max(self._next, await self._wallet.count("pending"))
            raise NonceTaken(
                f"{_PLACEMENTS} nonces of {self.address} in a row were taken by somebody else",
                hint="find out who else signs with this key",
            )

    async def _broadcast(self, intent: Intent, nonce: int) -> Answer:
        """Signs and sends one version, and remembers it unless the node refused it for certain."""
        broadcast = self._wallet.sign(intent, nonce)
        if intent.hook is not None:
            await intent.hook(broadcast)
        intent.sent_at = self._clock.monotonic()
        intent.broadcasts.append(broadcast)  # before it leaves: a cancelled await must not forget it
        try:
            answer = await self._wallet.submit(broadcast)
        except MusterError:
            intent.broadcasts.pop()
            raise
        intent.unanswered = answer is Answer.UNKNOWN
        if answer in {Answer.USED, Answer.OCCUPIED}:
            intent.broadcasts.pop()
        return answer

    # Watching: from a nonce to a receipt

    def _watch(self) -> None:
        self._wake.set()
        self._nap = _SHORTEST_PAUSE
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch_all(), name=f"transactions of {self.address}")

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

    async def _check_mined(self, intent: Intent, *, mined: int, settled: int, head: int) -> None:
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
                NonceTaken(f"nonce {nonce} of {self.address} was used by another transaction than {_listed(intent)}")
            )
            intent.outcome.exception()  # may be nobody's any more

    async def _finish(self, intent: Intent, broadcast: Broadcast, raw: dict[str, Any]) -> None:
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
            _log.info("nonce was used by another sender with this key", address=self.address, nonce=nonce)
            try:
                await self._place(intent)
            except MusterError as error:
                intent.outcome.set_exception(error)
                intent.outcome.exception()

    async def _repeat_unanswered(self) -> None:
        """Sends again, unchanged, what the node may never have received."""
        for intent in [intent for _, intent in sorted(self._slots.items()) if intent.unanswered]:
            with contextlib.suppress(InsufficientFunds):
                intent.unanswered = await self._wallet.submit(intent.broadcasts[-1]) is Answer.UNKNOWN

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
                await self._broadcast(intent, nonce)
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
        _log.warning("filling a gap before our transactions", address=self.address, nonce=mined)
        filler = Intent(
            call=Call(to=self.address),
            gas=_FILLER_GAS,
            outcome=asyncio.get_running_loop().create_future(),
            abandoned=True,
            fees=await self._wallet.market(),
        )
        if await self._broadcast(filler, mined) in {Answer.TAKEN, Answer.UNKNOWN}:
            self._slots[mined] = filler


def _seen(task: asyncio.Future[None]) -> None:
    """Fetches the exception of a task that may have nobody left to do so."""
    if not task.cancelled():
        task.exception()


def _not_mined(intent: Intent, why: str) -> TransactionNotMined:
    hashes = tuple(broadcast.transaction for broadcast in intent.broadcasts)
    return TransactionNotMined(f"{_listed(intent)} is not mined: {why}", hashes=hashes, nonce=intent.nonce)


def _listed(intent: Intent) -> str:
    return " or ".join(broadcast.transaction for broadcast in intent.broadcasts) or "a transaction never sent"
