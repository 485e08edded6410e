"""A contributor's own page: who may log in, and what a provider sees."""

from __future__ import annotations

from datetime import timedelta

from ledger.amounts import plain_amount
from orchestrator.chain.cached_pool import CachedPool
from orchestrator.chain.interface import PoolLedger, ProviderStatus
from orchestrator.runs.evidence import EvidenceReader, explanation_of
from orchestrator.runs.leasing import SlotLeasing
from orchestrator.settings import OrchestratorSettings
from orchestrator.store.accounts import AccountStore, day_earnings
from orchestrator.store.database import Database
from orchestrator.store.nodes import NodeStore
from orchestrator.store.run_rows import SlotRow
from orchestrator.store.runs import RunStore
from orchestrator.store.sessions import LOGIN_LIFE, Session, SessionStore
from protocol.errors import Forbidden, MusterError, NotFound, RateLimited, Unauthenticated
from protocol.http.lookups import LookupLimits, Lookups
from protocol.http.rates import IpRates
from protocol.identifiers import Address, Digest, address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock, milliseconds
from protocol.runtime.logs import get_logger
from protocol.verdicts import Outcome
from protocol.wire.listings import RolloutStatus
from protocol.wire.me import (
    ME_PATH,
    MOST_NODES,
    MOST_UNBONDS,
    Contributor,
    CreatedSession,
    LoginLink,
    OwnNode,
    OwnStake,
    OwnWork,
    OwnWorkPage,
    Unbonding,
    WorkEvidence,
)

FRESH = timedelta(seconds=15)
"""Age up to which a provider's state on the ledger is not read again."""
STALE = timedelta(minutes=5)
MOST_OPEN = 500
"""Number of a provider's newest slots among which open work is looked for; Redis lists no more."""
VIEWED_FOR = timedelta(seconds=3)
"""Time for which an instance keeps the view of a provider, for pages in several tabs."""
EVIDENCE_PAUSE = timedelta(seconds=1)
"""Pause after which a provider may ask for evidence again while another of its requests is not answered yet."""

_log = get_logger(__name__)


class Contributors:
    """Service of the contributors' page. A session belongs to one provider and can only read.

    Args:
        database: Database of the pool.
        leasing: Leasing service of the run; None if the pool has no run.
        ledger: The pool on the ledger.
        pool: The cached pool on the ledger.
        evidence: Reader of audit files.
        settings: Settings of the orchestrator: pool, its URL, and the rate of one provider's sessions together.
        clock: Clock of sessions and caches.
    """

    def __init__(
        self,
        database: Database,
        *,
        leasing: SlotLeasing | None,
        ledger: PoolLedger,
        pool: CachedPool,
        evidence: EvidenceReader,
        settings: OrchestratorSettings,
        clock: Clock,
    ) -> None:
        self.sessions = SessionStore(database)
        self._nodes = NodeStore(database)
        self._accounts = AccountStore(database)
        self._leasing = leasing
        self._pool = pool
        self._evidence = evidence
        self._pool_id = settings.pool_id
        self._url = settings.public_url
        self._clock = clock
        self._rates = IpRates(settings.node_rate(), clock=clock)
        self._reading: set[Address] = set()
        # Sessions exist only for known providers, so strangers can't cause these reads.
        self._on_ledger: Lookups[Address, ProviderStatus] = Lookups(
            ledger.provider_status,
            what=lambda provider: f"reading the provider {provider} from the ledger",
            fresh=lambda _: FRESH,
            stale=STALE,
            clock=clock,
            limits=LookupLimits(at_once=4, waiting=64),
        )
        self._views: Lookups[Address, Contributor] = Lookups(
            self._view,
            what=lambda provider: f"reading the provider {provider}",
            fresh=lambda _: VIEWED_FOR,
            stale=VIEWED_FOR,
            clock=clock,
            limits=LookupLimits(at_once=4, waiting=64, remembered=256, answer=timedelta(seconds=10)),
        )

    async def login(self, signer: Address) -> LoginLink:
        """Returns a one-time link for a node of the pool, or for its provider.

        Raises:
            Forbidden: The signer is neither.
        """
        provider = await self._provider_of(signer)
        code = await self.sessions.new_code(signer, provider)
        return LoginLink(
            url=f"{self._url.rstrip('/')}{ME_PATH}#login={code}",
            provider=provider,
            expires_at_ms=self._now_ms() + milliseconds(LOGIN_LIFE),
        )

    async def revoke(self, signer: Address) -> int:
        """Ends all sessions and unused links of the signer's provider; returns the number of sessions.

        Raises:
            Forbidden: The signer is neither a node of the pool nor a provider of one.
        """
        return await self.sessions.end_all(await self._provider_of(signer))

    async def begin(self, code: str) -> CreatedSession:
        """Exchanges a one-time code for a session.

        Raises:
            Unauthenticated: The code is unknown, used or expired.
        """
        used = await self.sessions.use_code(code)
        if used is None:
            raise Unauthenticated(
                "this link is not valid: it was used already, was revoked, or is older than five minutes",
                hint="`muster worker page` prints a new one",
                code="bad-login",
            )
        token, session = await self.sessions.begin(used, now_ms=self._now_ms())
        return CreatedSession(token=token, provider=used.provider, expires_at_ms=session.ends_at_ms)

    async def session(self, token: str) -> Session:
        """Returns the session of a token.

        Raises:
            Unauthenticated: The session is over, or never existed.
            RateLimited: The provider's sessions send too many requests.
        """
        found = await self.sessions.get(token, now_ms=self._now_ms())
        if found is None:
            raise Unauthenticated(
                "this session is over", hint="`muster worker page` prints a link for a new one", code="bad-session"
            )
        self._rates.admit(found.provider)
        return found

    async def view(self, session: Session) -> Contributor:
        """Returns what the session's provider has earned, staked and lost in this pool."""
        found = await self._views.get(session.provider)
        return found.model_copy(update={"session_ends_at_ms": session.ends_at_ms, "time_ms": self._now_ms()})

    async def works(self, session: Session, *, skip: int, limit: int) -> OwnWorkPage:
        """Returns a page of the provider's newest work on the ledger, newest first."""
        store = self._runs()
        rows = await store.leases_of_provider(session.provider, skipped=skip, limit=limit)
        price = (await store.state()).price
        works = tuple(_own_work(row, price=price) for row in rows if row.slot.state.on_ledger)
        return OwnWorkPage(works=works, next_cursor=skip + limit if len(rows) == limit else None)

    async def evidence(self, session: Session, key: Digest) -> WorkEvidence:
        """Returns the evidence of the verdict on the provider's work.

        Raises:
            NotFound: The provider has no such work, it has no verdict, or its audit file is missing.
            RateLimited: Another request of the provider waits for evidence.
        """
        row = await self._runs().slot_of(key)
        if row is None or row.provider != session.provider:
            raise NotFound(f"your nodes have no work {key} here", hint="`muster worker verdicts` reads the ledger")
        if session.provider in self._reading:  # one at a time, so that a provider can't fill the reader's queue
            raise RateLimited("another request of your sessions still waits for evidence", retry_after=EVIDENCE_PAUSE)
        self._reading.add(session.provider)
        try:
            return await self._evidence.read(row)
        finally:
            self._reading.discard(session.provider)

    async def _provider_of(self, signer: Address) -> Address:
        node = await self._nodes.get(signer)
        if node.revision and node.provider:
            return address(node.provider)
        if await self._accounts.nodes_of(signer):
            return signer
        raise Forbidden(
            f"{signer} is neither a node of this pool nor the provider of one that has leased a slot here",
            hint="sign with the key of a node that joined the pool, or of its provider",
            code="unknown-contributor",
        )

    async def _view(self, provider: Address) -> Contributor:
        nodes = await self._accounts.nodes_of(provider)
        shown = nodes[:MOST_NODES]
        rows = await self._nodes.get_many(shown)
        accounts = await self._accounts.nodes(shown)
        total = (await self._accounts.providers([provider]))[0]
        days = await self._accounts.earned_by_day(provider)
        accepted, unjudged = 0, 0
        if self._leasing is not None:
            state = await self._leasing.store.state()
            for row in await self._leasing.store.leases_of_provider(provider, limit=MOST_OPEN):
                match row.slot.state.value, row.slot.outcome:
                    case RolloutStatus.PROVISIONAL.value, Outcome.ACCEPTED:
                        accepted += row.units * state.price
                    case RolloutStatus.SUBMITTED.value, _:
                        unjudged += row.units * state.price
        status, challenge = None, None
        try:
            status = await self._on_ledger.get(provider)
            challenge = int((await self._pool.get()).terms.challenge_period.total_seconds())
        except MusterError as error:
            _log.warning("contributor-without-ledger", provider=provider, code=error.code, detail=error.detail)
        return Contributor(
            pool_id=self._pool_id,
            run=None if self._leasing is None else self._leasing.terms.name,
            time_ms=0,
            session_ends_at_ms=0,
            provider=provider,
            nodes=tuple(
                OwnNode(
                    address=row.address,
                    state=row.state,
                    since_ms=row.since_ms,
                    reason=row.reason,
                    verdicts=account.verdicts,
                    earned=plain_amount(account.earned),
                    slashed=plain_amount(account.slashed),
                )
                for row, account in zip(rows, accounts, strict=True)
            ),
            nodes_total=len(nodes),
            verdicts=total.verdicts,
            counted_since_ms=total.since_ms,
            earned=plain_amount(total.earned),
            claimed=plain_amount(total.claimed),
            claimable=None if status is None else plain_amount(status.accrued),
            accepted_not_final=plain_amount(accepted),
            not_judged=plain_amount(unjudged),
            slashed=plain_amount(total.slashed),
            days=day_earnings(days),
            challenge_period_s=challenge,
            stake=None if status is None else _own_stake(status),
        )

    def _runs(self) -> RunStore:
        if self._leasing is None:
            raise NotFound("this pool has no run", hint="only pools with a run have work", code="no-run")
        return self._leasing.store

    def _now_ms(self) -> int:
        return unix_ms(self._clock.now())


def _own_stake(status: ProviderStatus) -> OwnStake:
    return OwnStake(
        active=plain_amount(status.active),
        free=plain_amount(max(0, status.active - status.membership_lock - status.work_lock)),
        locked_by_memberships=plain_amount(status.membership_lock),
        locked_by_work=plain_amount(status.work_lock),
        unbonding=plain_amount(status.unbonding),
        unbonds=tuple(
            Unbonding(amount=plain_amount(amount), matures_at_ms=unix_ms(matures))
            for amount, matures in status.unbonds[:MOST_UNBONDS]
        ),
        unbonding_period_s=int(status.unbonding_period.total_seconds()),
    )


def _own_work(row: SlotRow, *, price: int) -> OwnWork:
    judged = row.slot.outcome is not None
    return OwnWork(
        key=row.key,
        node=row.node,
        step=row.step,
        index=row.index,
        version=row.version,
        groups=row.groups,
        units=row.units,
        worth=plain_amount(row.units * price),
        status=RolloutStatus(row.slot.state.value),
        outcome=row.slot.outcome,
        reason=row.reason,
        explanation=explanation_of(row.reason) if judged else "",
        submitted_at_ms=row.at_ms,
        audit_hash=row.audit_hash or None,
    )
