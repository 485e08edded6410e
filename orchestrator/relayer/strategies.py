"""One strategy per kind of relayed transaction: submissions, joins, disputes, leaves and consents.

The loop in `loops/relayer.py` batches, retries and settles the rows of the relayer's queue. A strategy defines how the
request in a row is parsed, when it needs no transaction any more, and which call of the ledger sends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from ledger.client.contract import Refusal
from ledger.client.work import WorkStatus
from orchestrator.chain.run_interface import RunLedger, expiry_of
from orchestrator.store.relayer import RelayedKind, RelayedTransaction
from protocol.runtime.clock import Clock
from protocol.wire.base import WireModel
from protocol.wire.relayed import (
    JoinRequest,
    ReceiptState,
    SignedConsents,
    SignedDispute,
    SignedLeave,
    SubmissionRequest,
)

R = TypeVar("R", bound=WireModel)

MAX_BATCH = 64
"""Maximum number of items per transaction. A full batch takes at most about 10 million gas. The contracts accept up to
256 items."""

MAX_DISPUTES = 8
"""Maximum number of disputes, of leaves and of consents per round. Each is a transaction of its own, and the next round
waits until all of them are mined."""

EXPIRED = "it expired before it could be relayed to the ledger"
DECIDED = "its verdict can't be disputed any more"
OTHER_CONSENT = "the node's consent was used for another provider, or was revoked"
OTHER_WORK = "the ledger has other work under this lease"


@dataclass(frozen=True, slots=True)
class Settlement:
    """Final state of a row of the relayer's queue."""

    state: ReceiptState
    reason: str = ""
    resubmittable: bool = False
    """Whether the node may submit the same request again."""


ON_LEDGER = Settlement(ReceiptState.CARRIED)


class RelayStrategy(ABC, Generic[R]):
    """Defines how one kind of transaction is relayed.

    Args:
        ledger: The run on the ledger; its key pays the gas.
        clock: Clock for expiry times.
    """

    kind: ClassVar[RelayedKind]
    done_error: ClassVar[str | None] = None
    """Contract error after which the ledger may have the row's request already."""
    batch: ClassVar[int] = MAX_BATCH
    """Maximum number of rows that one round takes."""
    resubmittable: ClassVar[bool] = False
    """Whether a node may submit the same request again after the ledger's final refusal."""

    def __init__(self, ledger: RunLedger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    @staticmethod
    @abstractmethod
    def parse(row: RelayedTransaction) -> R:
        """Parses the request of a queued row."""

    def subject(self, row: RelayedTransaction) -> str:
        """Returns the name by which a refusal of the ledger identifies this row (`Refusal.subject`)."""
        return row.name

    @abstractmethod
    async def settlement(self, row: RelayedTransaction, request: R) -> Settlement | None:
        """Returns the final state of a row that needs no transaction any more, else None.

        Such a row has expired, or the ledger has its work, join or dispute already.
        """

    @abstractmethod
    async def dry_run(self, requests: Sequence[R]) -> list[Refusal]:
        """Returns the refusals of requests that the ledger would refuse now. A dry run costs no gas."""

    @abstractmethod
    async def send(self, requests: Sequence[R]) -> list[Refusal]:
        """Sends requests to the ledger; returns its refusals."""


class WorkStrategy(RelayStrategy[SubmissionRequest]):
    """Submits work, many items in one transaction."""

    kind = RelayedKind.WORK
    done_error = "WorkExists"

    @staticmethod
    def parse(row: RelayedTransaction) -> SubmissionRequest:
        """Parses the submission of a queued row."""
        return SubmissionRequest.model_validate_json(row.body)

    async def settlement(self, row: RelayedTransaction, request: SubmissionRequest) -> Settlement | None:
        """Looks up the work on the ledger, if it may have been sent before or its lease expired."""
        work = request.work
        expired = work.lease.lease.expired(self._clock.now())
        if not expired and row.tries == 0:
            return None
        found = await self._ledger.work(work.lease.lease.key.hash)
        if found is None:
            return Settlement(ReceiptState.REFUSED, EXPIRED) if expired else None
        same = (found.sha256, found.units) == (work.sha256, work.units)
        return ON_LEDGER if same else Settlement(ReceiptState.REFUSED, OTHER_WORK)

    async def dry_run(self, requests: Sequence[SubmissionRequest]) -> list[Refusal]:
        """Estimates the gas of each submission; this fails if the ledger would refuse it."""
        return await self._ledger.work_refusals([request.work for request in requests])

    async def send(self, requests: Sequence[SubmissionRequest]) -> list[Refusal]:
        """Sends all requests in one transaction."""
        return await self._ledger.submit_work([request.work for request in requests])


class JoinStrategy(RelayStrategy[JoinRequest]):
    """Redeems invites, many in one transaction."""

    kind = RelayedKind.JOIN
    done_error = "MemberAlready"

    @staticmethod
    def parse(row: RelayedTransaction) -> JoinRequest:
        """Parses the join of a queued row."""
        return JoinRequest.model_validate_json(row.body)

    def subject(self, row: RelayedTransaction) -> str:
        """Returns the node's address, by which the ledger's refusal names a join.

        The row's name is `NODE-NONCE`.
        """
        return row.name.partition("-")[0]

    async def settlement(self, row: RelayedTransaction, request: JoinRequest) -> Settlement | None:
        """Looks up the node's membership on the ledger if the row may have been sent before."""
        if row.tries > 0 and await self._ledger.membership(request.invite.node) is not None:
            return ON_LEDGER
        expired = request.invite.invite.expired(self._clock.now())
        return Settlement(ReceiptState.REFUSED, EXPIRED) if expired else None

    async def dry_run(self, requests: Sequence[JoinRequest]) -> list[Refusal]:
        """Estimates the gas of each join; this fails if the ledger would refuse it."""
        return await self._ledger.join_refusals(requests)

    async def send(self, requests: Sequence[JoinRequest]) -> list[Refusal]:
        """Sends all requests in one transaction."""
        return await self._ledger.redeem_invites(requests)


class DisputeStrategy(RelayStrategy[SignedDispute]):
    """Opens disputes, each in a transaction of its own."""

    kind = RelayedKind.DISPUTE
    done_error = "WrongStatus"
    batch = MAX_DISPUTES
    resubmittable = True  # the node may sign the dispute again with a later deadline

    @staticmethod
    def parse(row: RelayedTransaction) -> SignedDispute:
        """Parses the dispute of a queued row."""
        return SignedDispute.model_validate_json(row.body)

    async def settlement(self, row: RelayedTransaction, request: SignedDispute) -> Settlement | None:  # noqa: ARG002
        """Looks up the work on the ledger, because only a provisional verdict can be disputed."""
        found = await self._ledger.work(request.key)
        if found is not None and found.status is WorkStatus.DISPUTED:
            return ON_LEDGER
        if found is None or found.status is not WorkStatus.PROVISIONAL:
            return Settlement(ReceiptState.REFUSED, DECIDED)
        if self._clock.now() > expiry_of(request):
            return Settlement(ReceiptState.REFUSED, EXPIRED, resubmittable=True)
        return None

    async def dry_run(self, requests: Sequence[SignedDispute]) -> list[Refusal]:  # noqa: ARG002
        """Returns no refusals, because disputes need no dry run.

        Each dispute is a transaction of its own. If it would revert, it fails at its gas estimate, which costs nothing.
        """
        return []

    async def send(self, requests: Sequence[SignedDispute]) -> list[Refusal]:
        """Sends one transaction for each dispute."""
        return await self._ledger.open_disputes(requests)


class LeaveStrategy(RelayStrategy[SignedLeave]):
    """Ends memberships, each in a transaction of its own."""

    kind = RelayedKind.LEAVE
    done_error = "NotMember"
    batch = MAX_DISPUTES
    resubmittable = True  # the node may sign the leave again with a later deadline

    @staticmethod
    def parse(row: RelayedTransaction) -> SignedLeave:
        """Parses the leave of a queued row."""
        return SignedLeave.model_validate_json(row.body)

    def subject(self, row: RelayedTransaction) -> str:
        """Returns the node's address; the row's name is `NODE-NONCE`."""
        return row.name.partition("-")[0]

    async def settlement(self, row: RelayedTransaction, request: SignedLeave) -> Settlement | None:  # noqa: ARG002
        """Looks up the membership on the ledger. It may have ended, and the node may have joined again since."""
        member = await self._ledger.membership(request.node) is not None
        if not member or await self._ledger.joins(request.node) != request.nonce:
            return ON_LEDGER
        if self._clock.now() > expiry_of(request):
            return Settlement(ReceiptState.REFUSED, EXPIRED, resubmittable=True)
        return None

    async def dry_run(self, requests: Sequence[SignedLeave]) -> list[Refusal]:  # noqa: ARG002
        """Returns no refusals, because each leave fails at its gas estimate if it would revert."""
        return []

    async def send(self, requests: Sequence[SignedLeave]) -> list[Refusal]:
        """Sends one transaction for each leave."""
        return await self._ledger.end_memberships(requests)


class ConsentStrategy(RelayStrategy[SignedConsents]):
    """Registers nodes, each in a transaction of its own."""

    kind = RelayedKind.CONSENT
    batch = MAX_DISPUTES
    resubmittable = True  # node and provider may sign again with a later deadline

    @staticmethod
    def parse(row: RelayedTransaction) -> SignedConsents:
        """Parses the consents of a queued row."""
        return SignedConsents.model_validate_json(row.body)

    def subject(self, row: RelayedTransaction) -> str:
        """Returns the node's address; the row's name is `NODE-NONCE`."""
        return row.name.partition("-")[0]

    async def settlement(self, row: RelayedTransaction, request: SignedConsents) -> Settlement | None:  # noqa: ARG002
        """Looks up the node's nonce on the ledger. A used nonce means that the node was registered, or has revoked."""
        nonce, provider = await self._ledger.registration(request.node)
        if nonce != request.nonce:
            return ON_LEDGER if provider == request.provider else Settlement(ReceiptState.REFUSED, OTHER_CONSENT)
        if self._clock.now() > expiry_of(request):
            return Settlement(ReceiptState.REFUSED, EXPIRED, resubmittable=True)
        return None

    async def dry_run(self, requests: Sequence[SignedConsents]) -> list[Refusal]:  # noqa: ARG002
        """Returns no refusals, because each registration fails at its gas estimate if it would revert."""
        return []

    async def send(self, requests: Sequence[SignedConsents]) -> list[Refusal]:
        """Sends one transaction for each node."""
        return await self._ledger.register_nodes(requests)


def all_strategies(ledger: RunLedger, clock: Clock) -> tuple[RelayStrategy[Any], ...]:
    """Returns one strategy per kind, in the order in which the relayer serves them."""
    strategies = (WorkStrategy, JoinStrategy, DisputeStrategy, LeaveStrategy, ConsentStrategy)
    return tuple(strategy(ledger, clock) for strategy in strategies)
