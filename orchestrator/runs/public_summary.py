"""Writes and reads the public summary of the pool.

One instance composes the summary every few seconds and stores it in Redis. Requests read the stored text, and each
instance keeps it for some seconds, so that strangers cause at most one read of Redis per instance and `HELD`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from ledger.amounts import plain_amount
from ledger.client.pools import Terms
from orchestrator.chain.cached_pool import CachedPool
from orchestrator.runs.control import RunControl
from orchestrator.settings import OrchestratorSettings
from orchestrator.store.accounts import AccountStore, day_earnings
from orchestrator.store.database import Database
from orchestrator.store.nodes import NodeStore
from protocol.errors import MusterError, Unavailable
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.versions import release
from protocol.wire.listings import MOST_FIGURED_STEPS
from protocol.wire.nodes import NodeState
from protocol.wire.public import MOST_PROVIDERS, PublicProvider, PublicSummary, PublicTerms

HELD = timedelta(seconds=5)
"""Time for which an instance answers from memory."""

NODES_AT_ONCE = 500

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """A summary as JSON, with its entity tag."""

    body: bytes
    etag: str


class PublicSummaryService:
    """Service that publishes the summary.

    Args:
        settings: Settings of the orchestrator.
        service: Address of the pool's orchestrator key.
        chain_id: Number of the chain.
        database: Database of the pool.
        pool: The pool on the ledger.
        control: Progress of the run; None if the pool has no run.
        clock: Clock of the summary's time, and of the cache.
    """

    def __init__(
        self,
        settings: OrchestratorSettings,
        *,
        service: Address,
        chain_id: int,
        database: Database,
        pool: CachedPool,
        control: RunControl | None,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._service = service
        self._chain_id = chain_id
        self._database = database
        self._nodes = NodeStore(database)
        self._accounts = AccountStore(database)
        self._pool = pool
        self._control = control
        self._clock = clock
        self._held: Published | None = None
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def read(self) -> Published:
        """Returns the newest stored summary, at most `HELD` older; a later one while Redis is down.

        Raises:
            Unavailable: No summary was written yet; or Redis is down, and this instance has read none.
        """
        if not self._is_fresh() and not (self._reading.locked() and self._held):
            async with self._reading:  # readers that come together share one read
                if not self._is_fresh():
                    await self._read()
        if self._held is None:
            raise Unavailable("there is no public summary yet", hint="try again in some seconds")
        return self._held

    def _is_fresh(self) -> bool:
        return self._clock.monotonic() - self._read_at < HELD.total_seconds()

    async def _read(self) -> None:
        try:
            body = await self._database.ask("GET", self._key)
        except Unavailable:
            if self._held is None:
                raise
        else:
            if body is not None and (self._held is None or self._held.body != body):
                self._held = Published(body, f'"{sha256(body).hexdigest()[:32]}"')
        finally:
            self._read_at = self._clock.monotonic()  # also after a failure: one reader per `HELD` waits for Redis

    async def write(self) -> None:
        """Composes the summary and stores it.

        Raises:
            Unavailable: Redis is down.
        """
        await self._database.ask("SET", self._key, (await self.compose()).model_dump_json())

    async def compose(self) -> PublicSummary:
        """Composes the summary from Redis and the cached state of the ledger."""
        live = await self._live_nodes()
        total, days = await self._accounts.pool(), await self._accounts.earned_by_day()
        best = await self._accounts.best(limit=MOST_PROVIDERS)
        accounts = await self._accounts.providers(best)
        control, settings = self._control, self._settings
        view = None if control is None else await control.view(queued=0)
        figures = () if control is None else await control.figures(first=None, limit=MOST_FIGURED_STEPS)
        try:
            pool = await self._pool.get()
        except MusterError as error:
            _log.warning("public-summary-without-terms", code=error.code, detail=error.detail)
            pool = None
        return PublicSummary(
            pool_id=settings.pool_id,
            chain_id=self._chain_id,
            url=settings.public_url,
            service=self._service,
            release=release(),
            run=settings.run if control is not None else None,
            time_ms=unix_ms(self._clock.now()),
            active=pool is not None and pool.active,
            nodes_live=sum(live.values()),
            nodes_members=0 if pool is None else pool.members,
            version=None if view is None or view.checkpoint is None else view.checkpoint.version,
            steps=() if view is None else view.steps,
            figures=figures,
            verdicts=total.verdicts,
            counted_since_ms=total.since_ms,
            earned=plain_amount(total.earned),
            slashed=plain_amount(total.slashed),
            days=day_earnings(days),
            providers=tuple(
                PublicProvider(
                    provider=provider,
                    nodes_live=live[provider],
                    accepted=account.accepted,
                    rejected=account.rejected,
                    forged=account.forged,
                    earned=plain_amount(account.earned),
                    slashed=plain_amount(account.slashed),
                )
                for provider, account in zip(best, accounts, strict=True)
            ),
            terms=None if pool is None else public_terms(pool.terms),
        )

    async def _live_nodes(self) -> Counter[str]:
        """Counts the healthy nodes by provider; reads all nodes, page by page, so that requests run between pages."""
        found: Counter[str] = Counter()
        after: str | None = None
        while page := await self._nodes.page(after=after, limit=NODES_AT_ONCE):
            found.update(
                provider for state, provider in await self._nodes.states(page) if state == NodeState.HEALTHY.value
            )
            after = page[-1]
        return found

    @property
    def _key(self) -> str:
        return self._database.key("public")


def public_terms(terms: Terms) -> PublicTerms:
    """Converts a pool's terms into the model that the API returns."""
    return PublicTerms(
        price_per_unit=plain_amount(terms.price_per_unit),
        penalty_per_unit=plain_amount(terms.penalty_per_unit),
        stake_per_capacity=plain_amount(terms.stake_per_capacity),
        min_capacity=terms.min_capacity,
        max_nodes=terms.max_nodes,
        audited_share=terms.audit_floor_bps / 10_000,
        judge_period_s=int(terms.judge_period.total_seconds()),
        challenge_period_s=int(terms.challenge_period.total_seconds()),
        dispute_period_s=int(terms.dispute_period.total_seconds()),
        notice_period_s=int(terms.notice_period.total_seconds()),
    )
