"""Checks and queues consents, so that a provider without gas can register a node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from ledger.amounts import format_amount
from orchestrator.chain.interface import ConsentStatus, PoolLedger
from orchestrator.chain.run_interface import expiry_of
from orchestrator.relayer.submissions import RelayerService
from orchestrator.store.relayer import DAY_MS, RelayedKind
from protocol.errors import Conflict, Forbidden, MusterError, RateLimited, Unprocessable
from protocol.http.lookups import Lookups
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.node_registration import NodeConsent, ProviderConsent
from protocol.runtime.clock import Clock
from protocol.wire.relayed import ConsentReceipt, ReceiptState, SignedConsents

MAX_VALIDITY = timedelta(days=1)
"""Longest time for which signed consents may be valid. It limits how late the relayer can send them."""
MAX_PER_DAY = {"node": 2, "provider": 8, "pool": 256}
"""Maximum number of consents that the relayer takes per day (UTC): for one node, of one provider, and in total."""
FRESH = timedelta(seconds=2)
"""Time for which the ledger's answer about a node and a provider is cached."""


class ConsentService:
    """Checks and queues the consents of nodes and providers.

    Registrations come from strangers. Only a provider whose free stake covers the node in this pool costs the pool gas,
    a bounded number of times per day. The reads of the chain that strangers can cause are limited and use a connection
    of their own.

    Args:
        relayer: Queues the consents.
        ledger: The pool on the ledger.
        clock: Clock for deadlines and limits.
    """

    def __init__(self, *, relayer: RelayerService, ledger: PoolLedger, clock: Clock) -> None:
        self._relayer = relayer
        self._ledger = ledger
        self._clock = clock
        self._lookups: Lookups[tuple[Address, Address], ConsentStatus] = Lookups(
            lambda pair: ledger.consent_status(*pair),
            what=lambda pair: f"asking the ledger about node {pair[0]} and provider {pair[1]}",
            fresh=lambda _: FRESH,
            stale=timedelta(),
            clock=clock,
        )

    async def take(self, sender: Address, consents: SignedConsents) -> ConsentReceipt:
        """Checks and queues consents; returns their receipt, also for a repeated request.

        Raises:
            Forbidden: The consents are of another node, or the pool has banned node or provider.
            Unprocessable: A signature, the nonce, the deadline or the capacity is wrong.
            Conflict: The node is registered for this provider already, or the provider's free stake is too low.
            RateLimited: One of the limits in `MAX_PER_DAY` is reached, or too many look-ups are running.
            Unavailable: The chain is down or slow.
        """
        self._check_signatures(sender, consents)
        name = f"{consents.node}-{consents.nonce}"
        known = await self._relayer.store.get(RelayedKind.CONSENT, name)
        if known is not None and known.state is not ReceiptState.REFUSED:
            return ConsentReceipt(state=known.state, reason=known.reason)
        _check_status(consents, await self._lookups.get((consents.node, consents.provider)))
        await self._count(consents)
        queued, _ = await self._relayer.put(RelayedKind.CONSENT, name, consents.model_dump_json())
        return ConsentReceipt(state=queued.state, reason=queued.reason)

    def _check_signatures(self, sender: Address, consents: SignedConsents) -> None:
        if consents.node != sender:
            raise Forbidden(
                f"the consents are of {consents.node}, and the request is from {sender}",
                hint="the node itself sends the request",
                code="foreign-consent",
            )
        now, until = self._clock.now(), expiry_of(consents)
        if not now < until <= now + MAX_VALIDITY:
            raise Unprocessable(
                f"the consents are valid until {until:%Y-%m-%d %H:%M:%S} UTC, and the time is {now:%Y-%m-%d %H:%M:%S}",
                fields={"deadline": "it must be in the future, at most one day ahead"},
                hint="check the clock of the machine that signs, and sign again",
            )
        domain, shared = self._ledger.registry_domain, {"nonce": consents.nonce, "deadline": consents.deadline}
        by_node = NodeConsent(provider=consents.provider, node=consents.node, **shared)
        by_provider = ProviderConsent(
            provider=consents.provider,
            node=consents.node,
            specs_hash=consents.specs_hash,
            capacity=consents.capacity,
            **shared,
        )
        for field, struct, signature, signer in (
            ("node_signature", by_node, consents.node_signature, consents.node),
            ("provider_signature", by_provider, consents.provider_signature, consents.provider),
        ):
            raw = bytes.fromhex(signature[2:])
            if _signer(lambda struct=struct, raw=raw: struct.signer(raw, domain)) != signer:  # type: ignore[misc]
                raise Unprocessable(
                    f"the consent is not signed by {signer}",
                    fields={field: "another signer"},
                    hint="a contract wallet calls `ComputeRegistry.registerNode` itself",
                )

    async def _count(self, consents: SignedConsents) -> None:
        now_ms = unix_ms(self._clock.now())
        for what, who in (("node", consents.node), ("provider", consents.provider), ("pool", "all")):
            count = await self._relayer.store.count_today(RelayedKind.CONSENT, who, now_ms=now_ms)
            if count > MAX_PER_DAY[what]:
                raise RateLimited(
                    f"the relayer takes at most {MAX_PER_DAY[what]} consents per day and {what}",
                    retry_after=timedelta(milliseconds=DAY_MS - now_ms % DAY_MS),
                    hint="the provider calls `ComputeRegistry.registerNode` from its own account",
                )


def _check_status(consents: SignedConsents, status: ConsentStatus) -> None:
    if status.provider == consents.provider:
        raise Conflict(
            f"{consents.node} is registered for {consents.provider} already",
            hint="start the node's worker; nothing is left to register",
            code="registered",
        )
    if status.banned:
        raise Forbidden(
            "the pool has banned this node or its provider", hint="ask the pool's owner to lift the ban", code="banned"
        )
    if consents.nonce != status.nonce:
        raise Unprocessable(
            f"the consents have the nonce {consents.nonce}, and the ledger expects {status.nonce}",
            fields={"nonce": f"it must be {status.nonce}"},
            hint="read `ComputeRegistry.consentNonce`, and sign again",
        )
    if consents.capacity < status.min_capacity:
        raise Unprocessable(
            f"the pool requires capacity {status.min_capacity}",
            fields={"capacity": "too small for this pool"},
            hint="sign consents for that capacity, or join another pool",
        )
    needed = max(1, status.stake_per_capacity * consents.capacity)
    if status.free_stake < needed:
        raise Conflict(
            f"the provider has {format_amount(status.free_stake)} MUST of free stake; the relayer registers only nodes "
            f"that could join the pool, which takes {format_amount(needed)} MUST",
            hint="stake first, or call `ComputeRegistry.registerNode` from the provider's account",
            code="stake-too-low",
            retryable=True,
        )


def _signer(recover: Callable[[], Address]) -> Address:
    try:
        return recover()
    except MusterError as error:
        raise Unprocessable(
            f"the signature of a consent is broken: {error.detail}",
            hint="sign the EIP-712 struct of docs/protocol.md with an account's key (65 bytes)",
        ) from error
