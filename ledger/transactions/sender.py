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
from collections.abc import Sequence
from datetime import timedelta

from eth_account.signers.local import LocalAccount
from web3 import AsyncWeb3

from ledger.errors import InsufficientFunds, TransactionNotMined
from ledger.rpc.connection import ChainConnection
from ledger.transactions.nonces import NonceAllocator
from ledger.transactions.pending import Broadcast, BroadcastHook, SendPolicy, TransactionCall, TransactionIntent
from ledger.transactions.receipt_watcher import ReceiptWatcher
from ledger.transactions.receipts import Receipt
from ledger.transactions.wallet import Wallet
from protocol.identifiers import Address
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.retry import Deadline, DeadlinePassed

__all__ = ["Broadcast", "SendPolicy", "TransactionCall", "TransactionSender"]


class TransactionSender:
    """Sends from one key. An async context manager; leaving it gives up on what is still on its way.

    Args:
        web3: From `ledger.rpc.connection.connect`.
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
        self._clock = clock or SystemClock()
        self._policy = policy or SendPolicy()
        self._wallet = Wallet(web3, account, chain_id=chain_id, clock=self._clock, policy=self._policy)
        self._placer = NonceAllocator(self._wallet, clock=self._clock)
        self._watcher = ReceiptWatcher(web3, self._wallet, self._placer, clock=self._clock, policy=self._policy)

    @property
    def address(self) -> Address:
        """The account that pays."""
        return self._wallet.address

    async def __aenter__(self) -> TransactionSender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops watching. Whoever still waits gets `TransactionNotMined` with the hashes."""
        await self._watcher.stop()
        for intent in self._placer.slots.values():
            if not intent.outcome.done():
                intent.outcome.set_exception(_not_mined(intent, "the sender was closed first"))
                intent.outcome.exception()  # seen: nobody has to fetch it
        self._placer.slots.clear()

    async def send(
        self,
        call: TransactionCall,
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
        intent = TransactionIntent(call=call, confirmations=confirmations, hook=before_broadcast, outcome=outcome)
        try:
            return await limit.bound(self._deliver(intent), what="the transaction")
        except DeadlinePassed as error:
            raise _not_mined(intent, f"{deadline.total_seconds():.0f} s passed") from error
        finally:
            intent.abandoned = True

    async def estimate(self, call: TransactionCall) -> int:
        """The gas that a call takes now, with the policy's margin; what `send` asks for unless the call says it.

        Raises:
            TransactionReverted: A contract refuses it.
            ChainUnavailable: The chain could not be asked.
        """
        return await self._wallet.estimate(call)

    async def _deliver(self, intent: TransactionIntent) -> Receipt:
        if intent.call.gas is None:
            gas, counted = self._wallet.estimate(intent.call), self._placer.counted()
            intent.gas, intent.counted = await asyncio.gather(gas, counted)
        else:
            intent.gas = intent.call.gas  # asks nothing: such calls get nonces in the order in which they were sent
        placing = asyncio.ensure_future(self._place(intent))
        placing.add_done_callback(_seen)
        await asyncio.shield(placing)  # half a placing would leave a nonce that nobody watches
        return await asyncio.shield(intent.outcome)

    async def _place(self, intent: TransactionIntent) -> None:
        if await self._placer.place(intent):
            self._watcher.begin()

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
        intent = TransactionIntent(
            call=TransactionCall(to=None),
            outcome=asyncio.get_running_loop().create_future(),
            abandoned=True,  # so that it is never signed again here
            broadcasts=[version for version in broadcasts if version.nonce == broadcasts[-1].nonce],
        )
        limit = Deadline.after(deadline, clock=self._clock)
        with contextlib.suppress(InsufficientFunds):  # an older version may be mined all the same
            await self._wallet.submit(broadcasts[-1])
        while not intent.outcome.done():
            await self._watcher.look_for(intent)
            if intent.outcome.done():
                break
            if limit.passed:
                raise _not_mined(intent, f"{deadline.total_seconds():.0f} s passed")
            await self._clock.sleep(self._policy.poll)
        return intent.outcome.result()


def _seen(task: asyncio.Future[None]) -> None:
    """Fetches the exception of a task that may have nobody left to do so."""
    if not task.cancelled():
        task.exception()


def _not_mined(intent: TransactionIntent, why: str) -> TransactionNotMined:
    hashes = tuple(broadcast.transaction for broadcast in intent.broadcasts)
    return TransactionNotMined(f"{intent.named} is not mined: {why}", hashes=hashes, nonce=intent.nonce)
