"""Background loops, their intervals, and those that run under a leader lease."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import httpx

from orchestrator.chain.run_interface import RunLedger
from orchestrator.dependencies import Dependencies
from orchestrator.loops.invites import Inviter
from orchestrator.loops.ledger_sync import LedgerSync
from orchestrator.loops.liveness import Liveness
from orchestrator.loops.relayer import Relayer
from orchestrator.loops.removals import Removals
from orchestrator.loops.run_sync import RunSync
from orchestrator.loops.scheduler import Scheduler
from orchestrator.loops.sweeper import build_sweeper
from orchestrator.loops.webhooks import WebhookDelivery
from orchestrator.metrics import PoolGauges
from orchestrator.relayer.strategies import all_strategies
from orchestrator.store.runs import LOOP as RUN_LOOP
from protocol.clients.discovery import DiscoveryClient
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.loops import BackgroundLoops
from protocol.runtime.outages import patient

WEBHOOKS_EVERY = timedelta(seconds=1)
GAUGES_EVERY = timedelta(seconds=5)


def add_loops(
    loops: BackgroundLoops,
    parts: Dependencies,
    *,
    run_ledger: RunLedger | None,
    discovery: Sequence[DiscoveryClient],
    webhook_http: httpx.AsyncClient,
    gauges: PoolGauges,
) -> None:
    """Adds the loops of one orchestrator."""
    settings = parts.settings

    def lease(name: str) -> LeaderLease:
        return LeaderLease(parts.database, name, lifetime=timedelta(seconds=settings.lease_s))

    liveness = Liveness(
        database=parts.database,
        nodes=parts.nodes,
        transitions=parts.transitions,
        pace=settings.pace(),
        clock=parts.clock,
        every=timedelta(seconds=settings.liveness_every_s),
        lease=lease("liveness"),
        furthest=timedelta(seconds=settings.invite_life_s * 2),
    )
    scheduler = Scheduler(
        database=parts.database,
        nodes=parts.nodes,
        tasks=parts.tasks,
        assignments=parts.assignments,
        timeouts=settings.scheduler_timeouts(),
        clock=parts.clock,
        lease=lease("scheduler"),
    )
    sync = LedgerSync(parts, lease=lease("ledger"))
    removals = Removals(parts, lease=lease("removals"))
    webhooks = WebhookDelivery(parts, lease=lease("webhooks"), http=webhook_http)
    stalled = timedelta(seconds=60)

    async def live() -> None:
        await liveness.tick()

    async def schedule() -> None:
        await scheduler.tick()

    loops.add("liveness", live, every=timedelta(seconds=settings.liveness_every_s), stalled_after=stalled)
    loops.add("scheduler", schedule, every=timedelta(seconds=settings.schedule_every_s), stalled_after=stalled)
    loops.add("ledger", patient("ledger", sync.round), every=timedelta(seconds=settings.ledger_every_s))
    loops.add("removals", patient("removals", removals.round), every=timedelta(seconds=settings.removals_every_s))
    loops.add("webhooks", webhooks.round, every=WEBHOOKS_EVERY)
    if run_ledger is not None:
        relayer = Relayer(
            parts.relay.store,
            strategies=all_strategies(run_ledger, parts.clock),
            lease=lease("relayer"),
            clock=parts.clock,
        )
        # While one round waits for its transaction, the next one sends newly queued rows.
        for number in range(1, settings.relay_transactions + 1):
            name = f"relayer-{number}"
            every = timedelta(seconds=settings.relay_every_s)
            loops.add(name, patient(name, relayer.round), every=every, woken=parts.relay.wakeup)
    if parts.run is not None and parts.run_owner is not None:
        run = RunSync(
            parts.run,
            parts.run_owner,
            relay=parts.relay.store,
            uploads=parts.uploads,
            lease=lease(RUN_LOOP),
            clock=parts.clock,
        )
        loops.add("run", patient("run", run.round), every=timedelta(seconds=settings.ledger_every_s))
        sweeper = build_sweeper(parts, lease=lease("sweep"))
        loops.add("sweep", patient("sweep", sweeper.round), every=timedelta(seconds=settings.sweep_every_s))
    for number, client in enumerate(discovery):
        inviter = Inviter(parts, client=client, lease=lease(f"invites-{number}"))
        name = f"invites-{number}"
        loops.add(name, patient(name, inviter.round), every=timedelta(seconds=settings.discovery_every_s))
    loops.add("gauges", gauges.read, every=GAUGES_EVERY)
