"""The kinds of transactions that the relayer sends for nodes: work submissions, joins and disputes.

The relayer's loop treats all of them alike, through the interface `TransactionKind`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from orchestrator.chain.run_interface import LedgerRefusal, RunLedger, holds_until
from orchestrator.domain.slots import SlotState
from orchestrator.store.relayer import RelayedKind, RelayedTransaction
from protocol.runtime.clock import Clock
from protocol.wire.relayed import JoinRequest, ReceiptState, SignedDispute, SubmissionRequest

BATCH = 64
"""Items of one transaction: they need at most some 10 million gas. The contracts accept up to 256."""

DISPUTES = 8
"""Disputes sent at a time. Each needs a transaction of its own, and submissions wait for them meanwhile."""

TEMPORARY_ERRORS = frozenset({"EscrowTooLow", "StakeTooLow"})
"""Contract errors that end when somebody deposits funds."""

EXPIRED = "it expired before it could be sent to the ledger"
DECIDED = "its verdict can't be disputed any more"
OTHER_WORK = "the ledger has other work under this lease"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settlement:
    """The final outcome of a queued transaction, as its node reads it."""

    state: ReceiptState
    reason: str = ""
    repeatable: bool = False
    """Whether the node may submit the same transaction again."""


CARRIED = Settlement(ReceiptState.CARRIED)


@dataclass(frozen=True, slots=True)
class RelayItem(Generic[T]):
    """A row of the queue and its parsed body."""

    row: RelayedTransaction
    request: T


class TransactionKind(ABC, Generic[T]):
    """Handles one kind of transaction.

    Args:
        ledger: The run on the ledger.
        clock: Tells which requests have expired.
    """

    kind: RelayedKind
    batch = BATCH
    """Most items that are sent at a time."""

    def __init__(self, ledger: RunLedger, *, clock: Clock) -> None:
        self.ledger = ledger
        self.clock = clock

    def item(self, row: RelayedTransaction) -> RelayItem[T]:
        """Parses a row of the queue."""
        return RelayItem(row, self.parse(row.body))

    @abstractmethod
    def parse(self, body: str) -> T:
        """Parses the body of a request."""

    @abstractmethod
    def ledger_name(self, request: T) -> str:
        """Returns the name by which the ledger refers to a request when it refuses it."""

    @abstractmethod
    async def settlement(self, item: RelayItem[T]) -> Settlement | None:
        """Returns the outcome of a request that is on the ledger or has expired; None if it must be sent."""

    async def dry_run(self, requests: Sequence[T]) -> list[LedgerRefusal]:  # noqa: ARG002 - read by kinds that have one
        """Returns the requests that the ledger would refuse now. Costs no gas; does nothing unless overridden."""
        return []

    @abstractmethod
    async def send(self, requests: Sequence[T]) -> list[LedgerRefusal]:
        """Sends requests to the ledger; returns those that it refused."""

    def refused(self, refusal: LedgerRefusal) -> Settlement:
        """Returns the outcome of a request that is not sent again after this refusal."""
        return Settlement(ReceiptState.REFUSED, refusal.detail, repeatable=refusal.error in TEMPORARY_ERRORS)


class WorkTransactions(TransactionKind[SubmissionRequest]):
    """Work submissions; a batch is one transaction."""

    kind = RelayedKind.WORK

    def parse(self, body: str) -> SubmissionRequest:
        """Parses a submission."""
        return SubmissionRequest.model_validate_json(body)

    def ledger_name(self, request: SubmissionRequest) -> str:
        """Returns the work key."""
        return str(request.work.lease.lease.key.hash)

    async def settlement(self, item: RelayItem[SubmissionRequest]) -> Settlement | None:
        """Returns the outcome of work that is on the ledger, or whose lease has expired."""
        work = item.request.work
        expired = work.lease.lease.expired(self.clock.now())
        if not expired and item.row.tries == 0:
            return None
        found = await self.ledger.work(work.lease.lease.key.hash)
        if found is None:
            return Settlement(ReceiptState.REFUSED, EXPIRED) if expired else None
        same = (found.sha256, found.units) == (work.sha256, work.units)
        return CARRIED if same else Settlement(ReceiptState.REFUSED, OTHER_WORK)

    async def dry_run(self, requests: Sequence[SubmissionRequest]) -> list[LedgerRefusal]:
        """Returns the submissions that the ledger would refuse now."""
        return await self.ledger.work_refusals([each.work for each in requests])

    async def send(self, requests: Sequence[SubmissionRequest]) -> list[LedgerRefusal]:
        """Submits work in one transaction."""
        return await self.ledger.submit_work([each.work for each in requests])


class JoinTransactions(TransactionKind[JoinRequest]):
    """Acceptances of invites; a batch is one transaction."""

    kind = RelayedKind.JOIN

    def parse(self, body: str) -> JoinRequest:
        """Parses a join."""
        return JoinRequest.model_validate_json(body)

    def ledger_name(self, request: JoinRequest) -> str:
        """Returns the node's address."""
        return str(request.invite.node)

    async def settlement(self, item: RelayItem[JoinRequest]) -> Settlement | None:
        """Returns the outcome for a node that is a member, or whose invite has expired."""
        invite = item.request.invite
        if item.row.tries > 0 and await self.ledger.seat(invite.node) is not None:
            return CARRIED
        return Settlement(ReceiptState.REFUSED, EXPIRED) if invite.invite.expired(self.clock.now()) else None

    async def dry_run(self, requests: Sequence[JoinRequest]) -> list[LedgerRefusal]:
        """Returns the joins that the ledger would refuse now."""
        return await self.ledger.join_refusals(requests)

    async def send(self, requests: Sequence[JoinRequest]) -> list[LedgerRefusal]:
        """Redeems invites in one transaction."""
        return await self.ledger.submit_joins(requests)


class DisputeTransactions(TransactionKind[SignedDispute]):
    """Disputes of verdicts.

    Each is a transaction of its own. Its gas estimate finds a refusal before anything is sent, so no dry run is needed.
    """

    kind = RelayedKind.DISPUTE
    batch = DISPUTES

    def parse(self, body: str) -> SignedDispute:
        """Parses a dispute."""
        return SignedDispute.model_validate_json(body)

    def ledger_name(self, request: SignedDispute) -> str:
        """Returns the work key."""
        return str(request.key)

    async def settlement(self, item: RelayItem[SignedDispute]) -> Settlement | None:
        """Returns the outcome of a dispute that is open already, comes too late or has expired."""
        found = await self.ledger.work(item.request.key)
        if found is not None and found.state is SlotState.DISPUTED:
            return CARRIED
        if found is None or found.state is not SlotState.PROVISIONAL:
            return Settlement(ReceiptState.REFUSED, DECIDED)
        if self.clock.now() > holds_until(item.request):
            # Only the deadline of the signature has passed; the node may sign the dispute again with a later one.
            return Settlement(ReceiptState.REFUSED, EXPIRED, repeatable=True)
        return None

    async def send(self, requests: Sequence[SignedDispute]) -> list[LedgerRefusal]:
        """Opens disputes, each by itself; refused ones cost no gas."""
        return await self.ledger.submit_disputes(requests)

    def refused(self, refusal: LedgerRefusal) -> Settlement:
        """Returns a refusal after which the node may sign the dispute again, for example with a later deadline."""
        return Settlement(ReceiptState.REFUSED, refusal.detail, repeatable=True)


def transaction_kinds(ledger: RunLedger, *, clock: Clock) -> tuple[TransactionKind[Any], ...]:
    """Returns all kinds, in the order in which a round of the relayer sends them."""
    kinds = (WorkTransactions, JoinTransactions, DisputeTransactions)
    return tuple(kind(ledger, clock=clock) for kind in kinds)
