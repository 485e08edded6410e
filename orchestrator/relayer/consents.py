"""Checks and queues consents, so that a provider without gas can register a node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from ledger.amounts import UNIT, format_amount
from orchestrator.chain.interface import ConsentStatus, PoolLedger
from orchestrator.chain.run_interface import expiry_of
from orchestrator.relayer.strategies import ConsentStrategy
from orchestrator.relayer.submissions import RelayerService
from orchestrator.store.nodes import NodeStore
from orchestrator.store.relayer import RelayedKind, RelayedTransaction
from protocol.errors import Conflict, Forbidden, MusterError, RateLimited, Unavailable, Unprocessable
from protocol.http.lookups import LookupLimits, Lookups
from protocol.http.rates import IpRates, Rate
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.node_registration import NodeConsent, ProviderConsent
from protocol.runtime.clock import DAY_MS, Clock
from protocol.wire.relayed import ConsentReceipt, ReceiptState, SignedConsents

REGISTER_YOURSELF = "call `ComputeRegistry.registerNode` from the provider's own account"
MAX_VALIDITY = timedelta(days=1)
"""Longest time for which signed consents may be valid. It limits how late the relayer can send them."""
MAX_PER_DAY = {"node": 2, "provider": 8}
"""Maximum number of consents that the relayer takes per day (UTC): for one node, and of one provider."""
MAX_UNJOINED = 4
"""Maximum number of a provider's relayed nodes that have not joined the pool yet. A registration locks no stake, so a
provider that only wants to spend the pool's gas could otherwise repeat it every day with the same stake."""
MIN_STAKE = UNIT
"""Minimum free stake of a provider, in 10⁻¹⁸ MUST; it also applies in pools that lock no stake."""
FRESH = timedelta(seconds=2)
"""Time for which the ledger's answer about a node and a provider is cached."""
POOR_FOR = timedelta(minutes=1)
"""Time for which a free stake below `MIN_STAKE` is cached."""
READS = LookupLimits(at_once=2, waiting=32, remembered=8192)
"""Limits on reads of the chain for consents."""
RATE_PER_IP = Rate(count=10, per=timedelta(minutes=1), burst=10)
"""Rate limit of one IP for consents that need a read of the chain."""
RATE = Rate(count=120, per=timedelta(minutes=1), burst=60)
"""Rate limit of all IPs together for consents that need a read of the chain."""


class ConsentService:
    """Checks and queues the consents of nodes and providers.

    Registrations come from strangers. Only a provider whose free stake covers the node in this pool costs the pool gas,
    a bounded number of times per day, and only while its earlier nodes join the pool. The reads of the chain that
    strangers can cause are limited per IP and in total. They share neither a connection nor a queue with other reads.

    Args:
        relayer: Queues the consents.
        ledger: The pool on the ledger.
        nodes: Store of nodes, which knows the members.
        most_per_day: Maximum number of consents that the relayer takes per day (UTC); 0 for none.
        clock: Clock for deadlines and limits.
    """

    def __init__(
        self, *, relayer: RelayerService, ledger: PoolLedger, nodes: NodeStore, most_per_day: int, clock: Clock
    ) -> None:
        self._relayer = relayer
        self._ledger = ledger
        self._nodes = nodes
        self._most_per_day = most_per_day
        self._clock = clock
        self._ip_rates = IpRates(RATE_PER_IP, clock=clock)
        self._rate = IpRates(RATE, clock=clock)
        self._stakes: Lookups[Address, int] = Lookups(
            ledger.free_stake,
            what=lambda provider: f"asking the ledger about the stake of {provider}",
            fresh=lambda stake: FRESH if stake >= MIN_STAKE else POOR_FOR,
            stale=timedelta(),
            clock=clock,
            limits=READS,
        )
        self._lookups: Lookups[tuple[Address, Address], ConsentStatus] = Lookups(
            lambda pair: ledger.consent_status(*pair),
            what=lambda pair: f"asking the ledger about node {pair[0]} and provider {pair[1]}",
            fresh=lambda _: FRESH,
            stale=timedelta(),
            clock=clock,
            limits=READS,
        )

    async def take(self, sender: Address, consents: SignedConsents, *, ip: str) -> ConsentReceipt:
        """Checks and queues consents; returns their receipt, also for a repeated request.

        Args:
            sender: The node that sent the request.
            consents: The signed consents.
            ip: IP of the sender.

        Raises:
            Forbidden: The consents are of another node, the pool has banned node or provider, or it relays no consents.
            Unprocessable: A signature, the nonce, the deadline or the capacity is wrong.
            Conflict: The node is registered for this provider already; the provider's free stake is too low, or too
                many of its nodes have not joined; or other consents with this nonce were sent.
            RateLimited: A daily limit or a rate is reached, or too many look-ups are running.
            Unavailable: The chain is down or slow.
        """
        self._check_signatures(sender, consents)
        name = f"{consents.node}-{consents.nonce}"
        known = await self._relayer.store.get(RelayedKind.CONSENT, name)
        if known is not None and known.state is not ReceiptState.REFUSED:
            receipt = _receipt(consents, known)
            if receipt.state is ReceiptState.CARRIED and await self._was_undone(consents, ip=ip):
                await self._relayer.requeue(RelayedKind.CONSENT, name)
                return ConsentReceipt(state=ReceiptState.QUEUED)
            return receipt
        if self._most_per_day == 0:
            raise Forbidden("this pool relays no registrations", hint=REGISTER_YOURSELF, code="consents-not-relayed")
        self._admit(ip)
        stake = await self._stakes.get(consents.provider)
        _check_stake(stake, MIN_STAKE)
        _check_status(consents, await self._lookups.get((consents.node, consents.provider)), stake=stake)
        joined = await self._check_unjoined(consents)
        await self._count(consents)
        await self._relayer.store.expect_join(
            consents.provider, consents.node, joined=joined, now_ms=unix_ms(self._clock.now())
        )
        queued, _ = await self._relayer.put(RelayedKind.CONSENT, name, consents.model_dump_json())
        return _receipt(consents, queued)

    async def _was_undone(self, consents: SignedConsents, *, ip: str) -> bool:
        """Returns whether a reorg removed a registration that was relayed; False if the ledger can't be asked now."""
        try:
            self._admit(ip)
            self._lookups.forget((consents.node, consents.provider))  # it may be older than the registration
            status = await self._lookups.get((consents.node, consents.provider))
        except (RateLimited, Unavailable):
            return False
        return status.nonce == consents.nonce and status.provider is None

    def _admit(self, ip: str) -> None:
        """Counts a request that needs a read of the chain."""
        self._ip_rates.admit(ip)
        try:
            self._rate.admit("all")
        except RateLimited as error:
            raise RateLimited(
                f"the orchestrator checks at most {RATE.count} consents per minute",
                retry_after=error.retry_after,
                hint=f"try again later, or {REGISTER_YOURSELF}",
            ) from error

    async def _check_unjoined(self, consents: SignedConsents) -> list[Address]:
        """Checks how many of the provider's relayed nodes have not joined the pool; returns those that have joined."""
        expected = await self._relayer.store.unjoined(consents.provider)
        joined = [row.address for row in await self._nodes.get_many(expected) if row.member]
        if len(set(expected) - {*joined, consents.node}) >= MAX_UNJOINED:
            raise Conflict(
                f"{MAX_UNJOINED} nodes that this pool registered for the provider have not joined it yet, the maximum",
                hint=f"let these nodes join first, or {REGISTER_YOURSELF}",
                code="unjoined-nodes",
                retryable=True,
            )
        return joined

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
        limits = MAX_PER_DAY | {"pool": self._most_per_day}
        for what, who in (("node", consents.node), ("provider", consents.provider), ("pool", "all")):
            count = await self._relayer.store.count_today(RelayedKind.CONSENT, who, now_ms=now_ms)
            if count > limits[what]:
                raise RateLimited(
                    f"the relayer takes at most {limits[what]} consents per day and {what}",
                    retry_after=timedelta(milliseconds=DAY_MS - now_ms % DAY_MS),
                    hint=REGISTER_YOURSELF,
                )


def _receipt(consents: SignedConsents, row: RelayedTransaction) -> ConsentReceipt:
    """Returns the receipt of a queued row, which must register the node for the same provider and machine."""
    queued = ConsentStrategy.parse(row)
    if any(getattr(queued, name) != getattr(consents, name) for name in ("provider", "capacity", "specs_hash")):
        raise Conflict(
            f"other consents of {consents.node} with the nonce {consents.nonce} were sent before: for provider "
            f"{queued.provider}, capacity {queued.capacity} and specs {queued.specs_hash}",
            hint="wait until those are relayed or expired, then read `ComputeRegistry.consentNonce` and sign again",
            code="other-consents",
        )
    return ConsentReceipt(state=row.state, reason=row.reason)


def _check_status(consents: SignedConsents, status: ConsentStatus, *, stake: int) -> None:
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
    _check_stake(stake, max(MIN_STAKE, status.stake_per_capacity * consents.capacity))


def _check_stake(stake: int, needed: int) -> None:
    if stake < needed:
        raise Conflict(
            f"the provider has {format_amount(stake)} MUST of free stake; the relayer registers only nodes "
            f"that could join the pool, which takes at least {format_amount(needed)} MUST",
            hint="stake first and try again after a minute, or call `ComputeRegistry.registerNode` from the provider's "
            "account",
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
