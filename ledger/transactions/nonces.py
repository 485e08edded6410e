"""From a call to a nonce: signs and sends in the order of sending, one at a time, so that a refusal leaves no gap."""

from __future__ import annotations

import asyncio
import secrets

from ledger.errors import NonceTaken
from ledger.transactions.fees import Fees
from ledger.transactions.pending import BroadcastResult, TransactionIntent
from ledger.transactions.wallet import Wallet
from protocol.errors import MusterError
from protocol.runtime.clock import Clock

_PLACEMENTS = 128
"""Nonces that are tried for one transaction while other senders with the same key take them."""

_SALT_WEI = 1_000
"""Up to so many wei per gas are added at random, so that two senders' equal transactions are not one and the same."""


class NonceAllocator:
    """Gives nonces away and keeps who has which.

    Args:
        wallet: Signs and sends.
        clock: Says when something was sent.
    """

    def __init__(self, wallet: Wallet, *, clock: Clock) -> None:
        self._wallet = wallet
        self._clock = clock
        self._lock = asyncio.Lock()
        self._next = 0
        self._placed = 0
        self.slots: dict[int, TransactionIntent] = {}
        """What is on its way, by nonce."""

    async def counted(self) -> tuple[int, int] | None:
        """How much was placed before, and our used nonces; None while something is on its way: that is counted here.

        What is being placed counts as placed, and the node may not have it yet.
        """
        if self.slots or self._lock.locked():
            return None
        return self._placed, await self._wallet.count("pending")

    async def place(self, intent: TransactionIntent) -> bool:
        """Gives the intent a nonce and sends it; False if its caller has gone meanwhile.

        Raises:
            NonceTaken: Somebody else with this key is always faster.
            InsufficientFunds: The account can't pay.
            ChainUnavailable: The chain could not be asked; nothing was sent.
        """
        async with self._lock:
            if not self.slots:
                placed, count = intent.counted or (-1, 0)
                self._next = count if placed == self._placed else await self._wallet.count("pending")
            self._placed += 1
            fees = await self._wallet.market()
            salt = secrets.randbelow(_SALT_WEI)
            intent.fees = Fees(most=fees.most + salt, tip=min(fees.tip + salt, fees.most + salt))
            for _ in range(_PLACEMENTS):
                if intent.abandoned:
                    return False  # its caller was told that it was not mined
                nonce = self._next
                intent.broadcasts = []
                answer = await self.broadcast(intent, nonce)
                self._next = nonce + 1
                if answer in {BroadcastResult.TAKEN, BroadcastResult.UNKNOWN}:
                    self.slots[nonce] = intent
                    return True
                # Refused for certain: this version waits nowhere, so another nonce can't make it happen twice.
                self._next = max(self._next, await self._wallet.count("pending"))
            raise NonceTaken(
                f"{_PLACEMENTS} nonces of {self._wallet.address} in a row were taken by somebody else",
                hint="find out who else signs with this key",
            )

    async def broadcast(self, intent: TransactionIntent, nonce: int) -> BroadcastResult:
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
        intent.unanswered = answer is BroadcastResult.UNKNOWN
        if answer in {BroadcastResult.USED, BroadcastResult.OCCUPIED}:
            intent.broadcasts.pop()
        return answer
