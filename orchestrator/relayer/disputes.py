"""Accepts signed disputes from nodes for the relayer, so that a node without gas can dispute a verdict."""

from __future__ import annotations

from datetime import datetime, timedelta

from orchestrator.chain.run_interface import holds_until
from orchestrator.domain.slots import SlotState
from orchestrator.relayer.submissions import RelayerService
from orchestrator.store.relayer import RelayedKind
from orchestrator.store.runs import RunStore
from protocol.errors import Conflict, MusterError, NotFound, Unprocessable
from protocol.identifiers import Address
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Dispute
from protocol.verdicts import Outcome
from protocol.wire.relayed import DisputeReceipt, ReceiptState, SignedDispute

MAX_VALIDITY = timedelta(days=1)
"""Longest time until the deadline of a signed dispute, so that it can't be sent long after its node forgot it."""


async def take_dispute(
    node: Address,
    dispute: SignedDispute,
    *,
    relay: RelayerService,
    slots: RunStore,
    domain: SigningDomain,
    now: datetime,
) -> DisputeReceipt:
    """Queues a node's dispute, unless it was queued before; returns its state.

    Args:
        node: The node that sent the request.
        dispute: Its signed dispute.
        relay: The relayer's queue.
        slots: Store of slots, with the node and the verdict of each work item.
        domain: EIP-712 domain of the contract that accepts disputes.
        now: The current time.

    Raises:
        NotFound: The node has submitted no such work, as far as this orchestrator knows.
        Conflict: The verdict can't be disputed now, or the work was accepted.
        Unprocessable: The dispute is not signed by the node, or its deadline has passed or is too far ahead.
    """
    row = await slots.slot_of(dispute.key)
    if row is None or row.node != node or not row.slot.state.on_ledger:
        raise NotFound(
            f"this node has submitted no work {dispute.key}", hint="`muster worker verdicts` lists what it has"
        )
    _check_signature(node, dispute, domain=domain, now=now)
    if row.slot.state is SlotState.DISPUTED:
        return DisputeReceipt(key=dispute.key, state=ReceiptState.CARRIED)
    if row.slot.state is not SlotState.PROVISIONAL:
        raise Conflict(
            f"work {dispute.key} is {row.slot.state.value}: there is no verdict that can be disputed now",
            hint="a verdict can be disputed from when it is given until the challenge period is over",
            code="not-disputable",
            retryable=row.slot.state is SlotState.SUBMITTED,
        )
    if row.slot.outcome is Outcome.ACCEPTED:
        raise Conflict("the work was accepted", hint="there is nothing to dispute", code="nothing-to-dispute")
    queued, _ = await relay.put(RelayedKind.DISPUTE, dispute.key, dispute.model_dump_json())
    return DisputeReceipt(key=dispute.key, state=queued.state, reason=queued.reason)


def unsigned(dispute: SignedDispute) -> Dispute:
    """Returns the message that a node signs to dispute a verdict."""
    return Dispute(key=dispute.key, evidence_hash=dispute.evidence_hash, deadline=dispute.deadline)


def _check_signature(node: Address, dispute: SignedDispute, *, domain: SigningDomain, now: datetime) -> None:
    until = holds_until(dispute)
    if not now < until <= now + MAX_VALIDITY:
        raise Unprocessable(
            f"the dispute holds until {until:%Y-%m-%d %H:%M:%S} UTC, and it is {now:%Y-%m-%d %H:%M:%S}",
            fields={"deadline": "it must lie ahead, within a day"},
        )
    try:
        signer = unsigned(dispute).signer(bytes.fromhex(dispute.signature[2:]), domain)
    except MusterError as error:
        raise Unprocessable(f"the signature of the dispute is broken: {error.detail}") from error
    if signer != node:
        raise Unprocessable("the dispute is not signed by the node", fields={"signature": "another signer"})
