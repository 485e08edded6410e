"""Sends transactions concurrently from one key; each transaction is executed at most once.

    async with TransactionSender(web3, account, chain_id=31337) as sender:
        receipt = await sender.send(TransactionCall(to=contract, data=payload), deadline=timedelta(seconds=60))

Nonces are assigned in the order of sending, before earlier transactions are mined, so that a hundred transactions can
share a block. One watcher polls the chain while transactions are in flight. A single query of the account's nonce shows
which transactions are mined.

**Two processes with the same key** may choose the same nonce. The node refuses the second transaction, which then takes
the next nonce. If the node had accepted ours and the other transaction replaced it, ours is signed again under a new
nonce, but only once the other transaction is `settled_after` blocks deep, so that no reorg frees the old nonce.

**After a crash**: pass `send` a hook that stores each `Broadcast` before it is sent, and call `outcome` with the stored
broadcasts. Calls that the contract refuses when repeated, such as a submission under a known key, can simply be
sent again.
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
    """Sends transactions from one key. As an async context manager it stops watching its transactions on exit.

    Args:
        web3: From `ledger.rpc.connection.connect`.
        account: The signing account.
        chain_id: Signed into every transaction, so that it is invalid on other chains.
        clock: Clock for deadlines and fee bumps.
        policy: Fees, polling and the default deadline.
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
        self._nonces = NonceAllocator(self._wallet, clock=self._clock)
        self._watcher = ReceiptWatcher(web3, self._wallet, self._nonces, clock=self._clock, policy=self._policy)

    @property
    def address(self) -> Address:
        """The account that pays."""
        return self._wallet.address

    async def __aenter__(self) -> TransactionSender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops watching. Pending `send` calls raise `TransactionNotMined` with the hashes."""
        await self._watcher.stop()
        for intent in self._nonces.slots.values():
            if not intent.outcome.done():
                intent.outcome.set_exception(_not_mined(intent, "the sender was closed first"))
                intent.outcome.exception()  # marks the exception as retrieved: the caller may be gone
        self._nonces.slots.clear()

    async def send(
        self,
        call: TransactionCall,
        *,
        deadline: timedelta | None = None,
        confirmations: int = 0,
        before_broadcast: BroadcastHook | None = None,
    ) -> Receipt:
        """Sends a call, waits until it is mined, and returns its receipt.

        Args:
            call: The call to make.
            deadline: Maximum time to wait in total; the policy's `deadline` by default.
            confirmations: Number of blocks to wait for on top of the transaction's block.
            before_broadcast: Called with every signed version before it is sent.

        Raises:
            TransactionReverted: The contract refused the call, before anything was sent (`transaction` is None) or in a
                block.
            InsufficientFunds: The account can't pay.
            TransactionNotMined: The deadline passed. The transaction may still be mined, under one of `hashes`.
            ChainUnavailable: The node did not answer; nothing was sent.
        """
        deadline = self._policy.deadline if deadline is None else deadline
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
        """Returns the gas that a call takes now, plus the policy's margin.

        `send` uses this estimate if the call has no gas limit.

        Raises:
            TransactionReverted: The contract would refuse the call.
            ChainUnavailable: The node did not answer.
        """
        return await self._wallet.estimate(call)

    async def most_fee(self) -> int:
        """Returns the maximum fee per gas, in wei, that the sender offers for a transaction now.

        Raises:
            ChainUnavailable: The node did not answer.
        """
        return (await self._wallet.market()).most

    async def _deliver(self, intent: TransactionIntent) -> Receipt:
        if intent.call.gas is None:
            gas, hint = self._wallet.estimate(intent.call), self._nonces.nonce_hint()
            intent.gas, intent.nonce_hint = await asyncio.gather(gas, hint)
        else:
            intent.gas = intent.call.gas  # no await here: calls with a gas limit get nonces in the order of `send`
        placing = asyncio.ensure_future(self._place(intent))
        placing.add_done_callback(_mark_retrieved)
        await asyncio.shield(placing)  # a half-way cancellation could leave a sent transaction unwatched
        return await asyncio.shield(intent.outcome)

    async def _place(self, intent: TransactionIntent) -> None:
        if await self._nonces.place(intent):
            self._watcher.wake()

    async def outcome(self, broadcasts: Sequence[Broadcast], *, deadline: timedelta) -> Receipt:
        """Returns the receipt of a transaction that was stored before a crash.

        Args:
            broadcasts: All stored versions, oldest first. Versions with another nonce than the newest one are ignored.
            deadline: Maximum time to wait until the transaction is mined. The newest version is sent once more.

        Raises:
            NonceTaken: Another transaction used the nonce, so this one can't be mined any more. The caller may send the
                call again.
            TransactionReverted: The transaction was mined and failed.
            TransactionNotMined: The transaction was not mined in time.
        """
        intent = TransactionIntent(
            call=TransactionCall(to=None),
            outcome=asyncio.get_running_loop().create_future(),
            abandoned=True,  # never sign it under another nonce: the call is not known here
            broadcasts=[version for version in broadcasts if version.nonce == broadcasts[-1].nonce],
        )
        limit = Deadline.after(deadline, clock=self._clock)
        with contextlib.suppress(InsufficientFunds):  # an older version may still be mined
            await self._wallet.submit(broadcasts[-1])
        while not intent.outcome.done():
            await self._watcher.check(intent)
            if intent.outcome.done():
                break
            if limit.passed:
                raise _not_mined(intent, f"{deadline.total_seconds():.0f} s passed")
            await self._clock.sleep(self._policy.poll)
        return intent.outcome.result()


def _mark_retrieved(task: asyncio.Future[None]) -> None:
    """Retrieves a task's exception, so that asyncio does not log it when the caller was cancelled."""
    if not task.cancelled():
        task.exception()


def _not_mined(intent: TransactionIntent, why: str) -> TransactionNotMined:
    hashes = tuple(broadcast.transaction for broadcast in intent.broadcasts)
    return TransactionNotMined(f"{intent.hashes_text} is not mined: {why}", hashes=hashes, nonce=intent.nonce)
