"""Validation of invites, without I/O."""

from __future__ import annotations

from datetime import datetime

from protocol.errors import InvalidInput
from protocol.identifiers import Address
from protocol.identity.typed_data import SigningDomain
from protocol.invites import LONGEST_INVITE
from protocol.wire.invites import SignedInvite


def signer_of(invite: SignedInvite, *, node: Address, pools: SigningDomain, now: datetime) -> Address:
    """Validates an invite and returns its signer.

    It does not read the ledger: the caller must check that the signer is the pool's orchestrator.

    Args:
        invite: The posted invite.
        node: Node to which the invite was posted.
        pools: Signing domain of the contract that accepts invites.
        now: Current time.

    Raises:
        InvalidInput: The invite names another node or contract, has expired, lasts too long, or its signature is
            invalid.
    """
    if invite.node != node:
        raise _refused(f"the invite is for {invite.node}, not for {node}", "post it to the node that it names")
    if invite.domain != pools:
        raise _refused(
            f"the invite is for contract {invite.contract} on chain {invite.chain_id}; "
            f"here it is {pools.contract} on chain {pools.chain_id}",
            "this discovery service serves another deployment",
        )
    if invite.invite.expired(now):
        raise _refused(f"the invite expired at {invite.expiry}", "sign a new one; check the machine's clock")
    if invite.expiry > (now + LONGEST_INVITE).timestamp():
        raise _refused(f"the invite lasts longer than {LONGEST_INVITE.days} days", "sign one that expires sooner")
    try:
        return invite.signer()
    except InvalidInput as error:
        raise _refused(error.detail, "sign it as EIP-712 typed data (docs/protocol.md)") from error


def _refused(detail: str, hint: str) -> InvalidInput:
    return InvalidInput(detail, hint=hint, code="bad-invite")
