"""Registers a node through the relayer of a pool, which pays the gas."""

from __future__ import annotations

from datetime import timedelta

from cli.output.progress import working
from ledger.client import Ledger
from protocol.clients import NodeClient
from protocol.errors import Conflict, Unavailable
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.node_registration import NodeConsent, ProviderConsent
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.retry import Deadline
from protocol.wire.relayed import ReceiptState, SignedConsents

RELAYER_TIMEOUT = timedelta(minutes=2)
"""Time that the relayer gets."""
VALID = timedelta(minutes=30)
"""Time for which the consents are valid, longer than `RELAYER_TIMEOUT`, so that a later attempt can continue."""
_POLL_INTERVAL = timedelta(seconds=1)


async def register_by_relay(
    ledger: Ledger,
    client: NodeClient,
    *,
    provider: Key,
    node: Key,
    capacity: int,
    specs_hash: Digest,
    clock: Clock | None = None,
) -> None:
    """Registers a node under a provider; returns when the ledger shows the registration.

    Args:
        ledger: Ledger on which the outcome is read, because the relayer's answer alone is not trusted.
        client: Client of the pool's orchestrator, with the node's key.
        provider: Key of the provider, which signs a consent and pays nothing.
        node: Key of the node.
        capacity: Capacity of the hardware.
        specs_hash: Hash of the hardware's description; zeros are allowed.
        clock: Clock that measures the time-out and pauses; the system's by default.

    Raises:
        Conflict: The relayer's transaction was refused by the ledger.
        Unavailable: The ledger does not show the registration in time.
        MusterError: The orchestrator refuses the consents.
    """
    clock = SystemClock() if clock is None else clock
    until = int((max(clock.now(), await ledger.now()) + VALID).timestamp())
    nonce, domain = await ledger.registry.consent_nonce(node.address), ledger.registry.domain
    by_node = NodeConsent(provider=provider.address, node=node.address, nonce=nonce, deadline=until)
    by_provider = ProviderConsent(
        provider=provider.address,
        node=node.address,
        specs_hash=specs_hash,
        capacity=capacity,
        nonce=nonce,
        deadline=until,
    )
    consents = SignedConsents(
        provider=provider.address,
        node=node.address,
        specs_hash=specs_hash,
        capacity=capacity,
        nonce=nonce,
        deadline=until,
        provider_signature="0x" + by_provider.sign(provider, domain).hex(),
        node_signature="0x" + by_node.sign(node, domain).hex(),
    )
    deadline = Deadline.after(RELAYER_TIMEOUT, clock=clock)
    with working("waiting for the pool's relayer"):
        while not deadline.passed:
            receipt = await client.register(consents)
            if await ledger.registry.provider_of(node.address) == provider.address:
                return
            if receipt.state is ReceiptState.REFUSED:
                raise Conflict(
                    f"the ledger refused the registration: {receipt.reason}",
                    hint="`muster node show` shows the node; without --relay the provider pays the gas itself",
                )
            await clock.sleep(_POLL_INTERVAL)
    raise Unavailable(
        f"the pool's relayer did not register {node.address} within {RELAYER_TIMEOUT}",
        hint="run this command again: it continues, unless the relayer has registered the node meanwhile",
    )
