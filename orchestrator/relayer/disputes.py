"""Takes disputes that nodes want carried to the ledger, so that a node without gas can defend itself."""

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

LONGEST = timedelta(days=1)
"""A word that holds longer could be carried when nobody thinks of it any more."""


async def take_dispute(
    node: Address,
    dispute: SignedDispute,
    *,
    relay: RelayerService,
    slots: RunStore,
    domain: SigningDomain,
    now: datetime,
) -> DisputeReceipt:
    """Queues a node's dispute, or says how far it is.

    Args:
        node: Who speaks.
        dispute: Its word.
        relay: Carries it.
        slots: Knows whose work it is, and what was said of it.
        domain: The contract that takes disputes.
        now: The time.

    Raises:
        NotFound: The node has submitted no such work, as far as is known here.
        Conflict: Its verdict can't be disputed, or there is no reason to.
        Unprocessable: The word is not signed by the node, or holds too long or no longer.
    """
    row = await slots.slot_of(dispute.key)
    if row is None or row.node != node or not row.slot.state.on_ledger:
        raise NotFound(
            f"this node has submitted no work {dispute.key}", hint="`muster worker verdicts` lists what it has"
        )
    _check_word(node, dispute, domain=domain, now=now)
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


def word_of(dispute: SignedDispute) -> Dispute:
    """Returns the signed dispute."""
    return Dispute(key=dispute.key, evidence_hash=dispute.evidence_hash, deadline=dispute.deadline)


def _check_word(node: Address, dispute: SignedDispute, *, domain: SigningDomain, now: datetime) -> None:
    until = holds_until(dispute)
    if not now < until <= now + LONGEST:
        raise Unprocessable(
            f"the dispute holds until {until:%Y-%m-%d %H:%M:%S} UTC, and it is {now:%Y-%m-%d %H:%M:%S}",
            fields={"deadline": "it must lie ahead, within a day"},
        )
    try:
        signer = word_of(dispute).signer(bytes.fromhex(dispute.signature[2:]), domain)
    except MusterError as error:
        raise Unprocessable(f"the signature of the dispute is broken: {error.detail}") from error
    if signer != node:
        raise Unprocessable("the dispute is not signed by the node", fields={"signature": "another signer"})
