"""Opens sessions for leases, and signs the lists of what sessions answered."""

from __future__ import annotations

import hashlib
from datetime import timedelta

from gateway.chain.pool import CachedLedger
from gateway.errors import NO_ANSWER
from gateway.settings import GatewaySettings
from gateway.store.database import Database
from gateway.store.scripts import CloseSession, OpenSession
from protocol.errors import Conflict, Forbidden, InvalidInput, NotFound, RateLimited, Unauthenticated
from protocol.http.tokens import new_token
from protocol.identifiers import Address, Digest, digest, run_id
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import token_hex
from protocol.wire.leases import SignedLease
from protocol.wire.served import MOST_SERVED, RequestKind, ServedList, ServedRequest, SignedServedList
from protocol.wire.serving import OpenSession as OpenRequest
from protocol.wire.serving import ServingSession

_log = get_logger(__name__)

_FULL = {
    "node": ("the node has {} open sessions, which is the limit", "sessions_per_node"),
    "provider": ("the provider's nodes have {} open sessions, which is the limit", "sessions_per_provider"),
    "total": ("the gateway has {} open sessions, which is the limit", "most_sessions"),
}


def hash_session_token(token: str) -> str:
    """Returns the hash under which a session's token is stored. The token is random, so SHA-256 is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


class SessionOpening:
    """Opens and closes sessions.

    Args:
        settings: Settings of the gateway.
        database: State in Redis.
        ledger: The ledger, cached.
        key: The gateway's key, which signs lists.
        clock: Clock for the leases' ends.
    """

    def __init__(
        self, settings: GatewaySettings, *, database: Database, ledger: CachedLedger, key: Key, clock: Clock
    ) -> None:
        self._settings = settings
        self._database = database
        self._ledger = ledger
        self._key = key
        self._clock = clock
        self._run = run_id(settings.run)

    async def open(self, node: Address, request: OpenRequest) -> ServingSession:
        """Opens a session for a lease, or gives the session of a lease a new token.

        Raises:
            InvalidInput: The lease is for another pool, run or contract, or has impossible numbers.
            Forbidden: The lease is another node's, was not signed by the pool's orchestrator, or the node is no member.
            Conflict: The arithmetic is not accepted, the lease ends too soon, its version is not announced, or its
                session is closed.
            RateLimited: There are too many open sessions.
        """
        lease = request.lease
        if request.arithmetic not in self._settings.arithmetic:
            raise Conflict(
                f"{request.arithmetic} may not answer here; accepted are {', '.join(self._settings.arithmetic)}",
                hint="the pool's owner sets `arithmetic` of the gateway as in the recipe of the version",
                code="arithmetic-not-accepted",
            )
        ends_ms = self._check(node, lease)
        if lease.lease.signer(lease.raw_signature, self._ledger.domain) not in await self._ledger.orchestrators():
            raise Forbidden(
                "the lease was not signed by the pool's orchestrator",
                hint="check the pool and the contract of the deployment",
                code="foreign-lease",
            )
        try:
            provider = await self._ledger.provider_of(node)
        except NotFound as error:
            raise Forbidden(error.detail, hint=error.hint, code="not-a-member") from None
        await self._check_version(lease)
        settings = self._settings
        token, now = new_token(), self._database.now_ms()
        opened = await self._database.scripts.run(
            OpenSession(
                id=token_hex(16),
                token_hash=hash_session_token(token),
                work_key=lease.lease.key.hash,
                node=node,
                provider=provider,
                digest=lease.digest,
                version=lease.version,
                arithmetic=request.arithmetic,
                groups=lease.groups,
                limit=lease.max_units // lease.groups,
                ends_ms=ends_ms,
                expiry_ms=lease.expiry * 1000,
                now_ms=now,
                alive_ms=round(settings.session_lost_s * 1000),
                most_of_node=settings.sessions_per_node,
                most_of_provider=settings.sessions_per_provider,
                most_sessions=settings.most_sessions,
                last=NO_ANSWER,
            )
        )
        if opened.outcome == "closed":
            raise Conflict("the session of this lease is closed", hint="lease another slot", code="session-closed")
        if opened.outcome != "ok":
            text, name = _FULL[opened.outcome]
            raise RateLimited(
                text.format(getattr(settings, name)),
                retry_after=timedelta(seconds=settings.slot_time_s),
                hint="close a session, or wait until one ends",
            )
        _log.info("session-opened", session=opened.id, node=node, step=lease.step, index=lease.index)
        return ServingSession(
            id=opened.id,
            url=settings.public_url.rstrip("/"),
            token=token,
            gateway=self._key.address,
            ends_at_ms=ends_ms,
        )

    async def close(self, session: str, token_hash: str) -> SignedServedList:
        """Closes a session and returns the signed list of its requests; may be repeated.

        Raises:
            Unauthenticated: The token is not that of the session.
        """
        closed = await self._database.scripts.run(
            CloseSession(session=session, token_hash=token_hash, now_ms=self._database.now_ms(), last=NO_ANSWER)
        )
        if closed.outcome != "ok":
            raise wrong_session()
        served = ServedList(
            requests=tuple(_served(closed.served[place : place + 6]) for place in range(0, len(closed.served), 6))
        )
        _log.info("session-closed", session=session, node=closed.node, requests=len(served.requests))
        return SignedServedList.sign(
            served, work_key=Digest(closed.work_key), key=self._key, domain=self._ledger.domain
        )

    def _check(self, node: Address, lease: SignedLease) -> int:
        """Checks what needs no ledger; returns the time at which the session ends, in Unix milliseconds."""
        settings = self._settings
        if lease.pool_id != settings.pool_id or lease.run != self._run:
            raise InvalidInput(
                f"the lease is for another pool or run; this gateway serves run {settings.run} of pool "
                f"{settings.pool_id}",
                hint="check the setting run_gateway_url of the orchestrator",
                code="other-run",
            )
        if lease.domain != self._ledger.domain:
            raise InvalidInput(
                "the lease is for another WorkLedger contract", hint="check the deployment file", code="other-contract"
            )
        if lease.node != node:
            raise Forbidden(f"the lease is for {lease.node}, but {node} signed the request", code="other-node")
        if lease.groups > MOST_SERVED or lease.max_units < lease.groups:
            raise InvalidInput(
                f"the lease has {lease.groups} groups and {lease.max_units} units",
                hint=f"a served slot has at most {MOST_SERVED} groups, and at least one unit per group",
                code="lease-size",
            )
        ends_ms = lease.expiry * 1000 - round(settings.margin_s * 1000)
        if ends_ms <= self._database.now_ms():
            raise Conflict(
                f"the lease ends within {settings.margin_s:g} s, which the node needs to deliver its file",
                hint="lease another slot; the setting run_lease_s of the orchestrator sets the length of leases",
                code="lease-too-short",
            )
        return ends_ms

    async def _check_version(self, lease: SignedLease) -> None:
        try:
            announced = await self._ledger.version(lease.version)
        except NotFound:
            announced = None
        if announced != lease.digest:
            raise Conflict(
                f"version {lease.version} of the lease is not announced on the ledger with this digest",
                hint="lease another slot",
                code="unknown-version",
            )


def wrong_session() -> Unauthenticated:
    """Returns the error for a token that is not, or no longer, that of the session."""
    return Unauthenticated(
        "the token is not that of this session",
        hint="use the newest token of the session: opening it again replaced the former one",
        code="bad-token",
    )


def _served(values: tuple[bytes, ...]) -> ServedRequest:
    identifier, kind, body, seed, choices, answer = (value.decode() for value in values)
    return ServedRequest(
        id=identifier,
        kind=RequestKind(kind),
        body=body,
        seed=digest(bytes.fromhex(seed[2:])),
        choices=int(choices),
        answer=digest(bytes.fromhex(answer[2:])),
    )
