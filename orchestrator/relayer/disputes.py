"""Checks and queues disputes, so that a node without gas can dispute a verdict."""

from __future__ import annotations

from datetime import datetime, timedelta

from orchestrator.chain.run_interface import expiry_of
from orchestrator.domain.slots import SlotState
from orchestrator.relayer.submissions import SIGN_AGAIN, RelayerService
from orchestrator.store.relayer import RelayedKind
from orchestrator.store.runs import RunStore
from protocol.errors import Conflict, MusterError, NotFound, Unprocessable
from protocol.identifiers import Address
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Dispute
from protocol.verdicts import Outcome
from protocol.wire.relayed import DisputeReceipt, ReceiptState, SignedDispute

MAX_VALIDITY = timedelta(days=1)
"""Longest time for which a signed dispute may be valid. It limits how late the relayer can send the dispute."""


async def take_dispute(
    node: Address,
    dispute: SignedDispute,
    *,
    relayer: RelayerService,
    slots: RunStore,
    domain: SigningDomain,
    now: datetime,
) -> DisputeReceipt:
    """Checks and queues a node's dispute; returns its receipt, also for a repeated request.

    Args:
        node: The node that sent the request.
        dispute: The signed dispute.
        relayer: Queues the dispute.
        slots: Slots of the run, with their nodes and verdicts.
        domain: Signing domain of the contract that opens disputes.
        now: The current time.

    Raises:
        NotFound: The node submitted no such work.
        Conflict: The work has no verdict that can be disputed now, or the work was accepted.
        Unprocessable: The node did not sign the dispute, or the dispute's deadline is past or too far ahead.
    """
    row = await slots.slot_of(dispute.key)
    if row is None or row.node != node or not row.slot.state.on_ledger:
        raise NotFound(
            f"this node has submitted no work {dispute.key}",
            hint="`muster worker verdicts` lists the work of this node",
        )
    _check_signature(node, dispute, domain=domain, now=now)
    if row.slot.state is SlotState.DISPUTED:
        return DisputeReceipt(key=dispute.key, state=ReceiptState.CARRIED)
    if row.slot.state is not SlotState.PROVISIONAL:
        raise Conflict(
            f"work {dispute.key} is {row.slot.state.value}: it has no verdict that can be disputed now",
            hint="a verdict can be disputed until its challenge period ends",
            code="not-disputable",
            retryable=row.slot.state is SlotState.SUBMITTED,
        )
    if row.slot.outcome is Outcome.ACCEPTED:
        raise Conflict("the work was accepted", hint="there is nothing to dispute", code="nothing-to-dispute")
    queued, _ = await relayer.put(RelayedKind.DISPUTE, dispute.key, dispute.model_dump_json())
    return DisputeReceipt(key=dispute.key, state=queued.state, reason=queued.reason)


def _check_signature(node: Address, dispute: SignedDispute, *, domain: SigningDomain, now: datetime) -> None:
    until = expiry_of(dispute)
    if not now < until <= now + MAX_VALIDITY:
        raise Unprocessable(
            f"the dispute is valid until {until:%Y-%m-%d %H:%M:%S} UTC, and the time is {now:%Y-%m-%d %H:%M:%S}",
            fields={"deadline": "it must be in the future, at most one day ahead"},
            hint="sign the dispute again with a deadline within the next day; check the machine's clock",
        )
    try:
        signed = Dispute(key=dispute.key, evidence_hash=dispute.evidence_hash, deadline=dispute.deadline)
        signer = signed.signer(bytes.fromhex(dispute.signature[2:]), domain)
    except MusterError as error:
        raise Unprocessable(f"the signature of the dispute is broken: {error.detail}", hint=SIGN_AGAIN) from error
    if signer != node:
        raise Unprocessable(
            "the dispute is not signed by the node", fields={"signature": "another signer"}, hint=SIGN_AGAIN
        )
