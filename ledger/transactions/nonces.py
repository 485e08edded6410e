"""Allocates nonces and broadcasts transactions one at a time, so that a refusal leaves no nonce gap."""

from __future__ import annotations

import asyncio

from ledger.amounts import plain_amount
from ledger.errors import InsufficientFunds, NonceTaken
from ledger.transactions.fees import Fees
from ledger.transactions.pending import BroadcastResult, TransactionIntent
from ledger.transactions.wallet import Wallet
from protocol.errors import MusterError
from protocol.runtime.clock import Clock
from protocol.runtime.randomness import randbelow

_MAX_NONCES_TRIED = 128
"""Maximum number of nonces tried for one transaction, while other senders with the same key take them."""

_SALT_WEI = 1_000
"""A random number of wei below this is added to the fees per gas of each transaction.

Otherwise two processes with the same key that send the same call would produce the same transaction hash, and both
would regard the one mined transaction as their own.
"""


class NonceAllocator:
    """Assigns nonces to transactions and tracks the transactions in flight.

    Args:
        wallet: Signs and sends.
        clock: Clock for the time of sending.
    """

    def __init__(self, wallet: Wallet, *, clock: Clock) -> None:
        self._wallet = wallet
        self._clock = clock
        self._lock = asyncio.Lock()
        self._next = 0
        self._placed = 0
        """Number of transactions that `place` has begun to place."""
        self.slots: dict[int, TransactionIntent] = {}
        """Transactions in flight, by nonce."""

    async def nonce_hint(self) -> tuple[int, int] | None:
        """Reads the account's next nonce before `place` needs it.

        So a caller can read the nonce and estimate gas at the same time.

        Returns:
            The number of transactions placed before, and the node's pending nonce count, which is valid until another
            transaction is placed. None while transactions are in flight or being placed: nonces are then counted
            locally, because the node may not have these transactions yet.
        """
        if self.slots or self._lock.locked():
            return None
        return self._placed, await self._wallet.count("pending")

    async def place(self, intent: TransactionIntent) -> bool:
        """Assigns a nonce to a transaction and sends it.

        Returns False if the transaction's caller no longer waits for it.

        Raises:
            NonceTaken: Another sender with this key took 128 nonces in a row.
            InsufficientFunds: The account can't pay.
            ChainUnavailable: The node did not answer; nothing was sent.
        """
        async with self._lock:
            if not self.slots:
                placed, count = intent.nonce_hint or (-1, 0)
                self._next = count if placed == self._placed else await self._wallet.count("pending")
            self._placed += 1
            fees = await self._wallet.market()
            salt = randbelow(_SALT_WEI)
            intent.fees = Fees(most=fees.most + salt, tip=min(fees.tip + salt, fees.most + salt))
            for _ in range(_MAX_NONCES_TRIED):
                if intent.abandoned:
                    return False  # the caller got TransactionNotMined, so the transaction must not be sent any more
                nonce = self._next
                intent.broadcasts = []
                answer = await self.broadcast(intent, nonce)
                self._next = nonce + 1
                if answer in {BroadcastResult.TAKEN, BroadcastResult.UNKNOWN}:
                    self.slots[nonce] = intent
                    return True
                # The node certainly refused this version, so signing it under another nonce can't execute the call
                # twice.
                self._next = max(self._next, await self._wallet.count("pending"))
            raise NonceTaken(
                f"another sender took {_MAX_NONCES_TRIED} nonces of {self._wallet.address} in a row",
                hint="find the other process that sends with this key",
            )

    async def broadcast(self, intent: TransactionIntent, nonce: int) -> BroadcastResult:
        """Signs and sends one version, and records it unless the node certainly refused it."""
        broadcast = self._wallet.sign(intent, nonce)
        if intent.hook is not None:
            await intent.hook(broadcast)
        intent.sent_at = self._clock.monotonic()
        intent.broadcasts.append(broadcast)  # recorded before it is sent, because a cancelled `submit` may have sent it
        try:
            answer = await self._wallet.submit(broadcast)
        except InsufficientFunds:
            intent.broadcasts.pop()
            most = 0 if intent.fees is None else intent.gas * intent.fees.most
            cost = plain_amount(most)  # the coin has as many decimals as MUST
            raise InsufficientFunds(
                f"insufficient funds: {self._wallet.address} can't pay the gas of this transaction, "
                f"up to {cost} of the chain's coin",
                hint=f"send some of the chain's coin to {self._wallet.address}; MUST does not pay for gas",
            ) from None
        except MusterError:
            intent.broadcasts.pop()
            raise
        intent.unanswered = answer is BroadcastResult.UNKNOWN
        if answer in {BroadcastResult.USED, BroadcastResult.OCCUPIED}:
            intent.broadcasts.pop()
        return answer
