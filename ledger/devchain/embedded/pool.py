"""Transaction pool: pending transactions by nonce per sender, and by tip between senders."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from ledger.devchain.embedded.errors import RpcError
from ledger.devchain.embedded.records import PendingTransaction

MAX_PENDING = 16_384
MAX_NONCE_GAP = 4_096
"""Largest distance of a nonce from the sender's nonce on the chain; limits one sender's share of the pool."""

PRICE_BUMP_PERCENT = 10
"""Percentage by which both fees per gas of a replacement must exceed those of the replaced transaction, as in
go-ethereum. Otherwise a client could flood the node with replacements at no cost."""


class TransactionPool:
    """Holds at most one transaction per sender and nonce."""

    def __init__(self) -> None:
        self._by_sender: dict[bytes, dict[int, PendingTransaction]] = {}
        self._by_hash: dict[bytes, PendingTransaction] = {}

    def __len__(self) -> int:
        return len(self._by_hash)

    def get(self, transaction_hash: bytes) -> PendingTransaction | None:
        """Returns a pending transaction by hash."""
        return self._by_hash.get(transaction_hash)

    def add(self, pending: PendingTransaction, *, next_nonce: int) -> None:
        """Adds a transaction.

        Args:
            pending: The transaction.
            next_nonce: The sender's nonce on the chain.

        Raises:
            RpcError: The transaction is known, its nonce is used or too far ahead, the pool is full, or a replacement
                pays too little. The messages are go-ethereum's, which clients match on.
        """
        if pending.hash in self._by_hash:
            raise RpcError("already known")
        if pending.nonce < next_nonce:
            raise RpcError(f"nonce too low: next nonce {next_nonce}, tx nonce {pending.nonce}")
        if pending.nonce > next_nonce + MAX_NONCE_GAP:
            raise RpcError(f"nonce too high: next nonce {next_nonce}, tx nonce {pending.nonce}")
        queue = self._by_sender.setdefault(pending.sender, {})
        former = queue.get(pending.nonce)
        if former is not None:
            if not _pays_more(pending, former):
                raise RpcError("replacement transaction underpriced")
            del self._by_hash[former.hash]
        elif len(self) >= MAX_PENDING:
            raise RpcError(f"txpool is full ({MAX_PENDING} transactions)")
        queue[pending.nonce] = pending
        self._by_hash[pending.hash] = pending

    def remove(self, pending: PendingTransaction) -> None:
        """Removes a transaction, and its sender's transactions with lower nonces."""
        queue = self._by_sender.get(pending.sender, {})
        for nonce in [nonce for nonce in queue if nonce <= pending.nonce]:
            self._by_hash.pop(queue.pop(nonce).hash, None)
        if not queue:
            self._by_sender.pop(pending.sender, None)

    def next_nonce(self, sender: bytes, *, mined: int) -> int:
        """Returns the sender's first free nonce, after the mined and the consecutive pending transactions."""
        queue = self._by_sender.get(sender, {})
        nonce = mined
        while nonce in queue:
            nonce += 1
        return nonce

    def executable(self, *, base_fee: int, nonce_of: Callable[[bytes], int]) -> Iterator[PendingTransaction]:
        """Yields transactions for a block, best tip first and in nonce order per sender.

        The consumer removes each transaction that it executed or refused before it asks for the next one; one that does
        not fit into the block stays in the pool. A transaction that did not advance its
        sender's nonce, as `nonce_of` returns it, ends that sender's sequence.
        """
        heap: list[tuple[int, int, bytes, int]] = []

        def push(sender: bytes, nonce: int) -> None:
            candidate = self._by_sender.get(sender, {}).get(nonce)
            if candidate is not None and candidate.transaction.max_fee_per_gas >= base_fee:
                heapq.heappush(heap, (-_tip(candidate, base_fee), candidate.arrival, sender, nonce))

        for sender in list(self._by_sender):
            push(sender, nonce_of(sender))
        while heap:
            _, arrival, sender, nonce = heapq.heappop(heap)
            current = self._by_sender.get(sender, {}).get(nonce)
            if current is None:
                continue
            if current.arrival != arrival:  # replaced while the block was being built
                push(sender, nonce)
                continue
            yield current
            if nonce_of(sender) > nonce:
                push(sender, nonce + 1)

    def clear(self) -> None:
        """Removes all transactions."""
        self._by_sender.clear()
        self._by_hash.clear()


def _tip(pending: PendingTransaction, base_fee: int) -> int:
    transaction = pending.transaction
    return int(min(transaction.max_priority_fee_per_gas, transaction.max_fee_per_gas - base_fee))


def _pays_more(new: PendingTransaction, former: PendingTransaction) -> bool:
    fees = (
        (new.transaction.max_fee_per_gas, former.transaction.max_fee_per_gas),
        (new.transaction.max_priority_fee_per_gas, former.transaction.max_priority_fee_per_gas),
    )
    return all(offered * 100 >= before * (100 + PRICE_BUMP_PERCENT) and offered > before for offered, before in fees)
