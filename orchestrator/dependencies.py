"""Dependencies shared by the routes and loops of one orchestrator."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

from fastapi import Request
from redis.asyncio import Redis

from orchestrator.chain.cached_pool import CachedPool
from orchestrator.chain.interface import PoolLedger
from orchestrator.chain.run_interface import RunLedger
from orchestrator.domain.keys import pool_keys
from orchestrator.nodes.heartbeat import HeartbeatService
from orchestrator.nodes.membership import NodeStatusCache
from orchestrator.nodes.transitions import NodeTransitions
from orchestrator.relayer.consents import ConsentService
from orchestrator.relayer.submissions import RelayerService
from orchestrator.runs.checkpoint_relays import CheckpointRelays
from orchestrator.runs.contributors import Contributors
from orchestrator.runs.control import RunControl
from orchestrator.runs.evidence import EvidenceReader
from orchestrator.runs.leasing import SlotLeasing
from orchestrator.runs.money import MoneyReader
from orchestrator.runs.numerics import ValidatorNumerics
from orchestrator.runs.public_summary import PublicSummaryService
from orchestrator.secrets import SecretCipher
from orchestrator.settings import OrchestratorSettings
from orchestrator.storage import ObjectStore
from orchestrator.storage.factory import build_store
from orchestrator.storage.service import UploadLimits, UploadService
from orchestrator.store.accounts import AccountStore
from orchestrator.store.assignments import AssignmentStore
from orchestrator.store.checkpoint_relays import CheckpointRelayStore
from orchestrator.store.database import Database
from orchestrator.store.events import EventStore
from orchestrator.store.idempotency import IdempotencyStore
from orchestrator.store.nodes import NodeStore
from orchestrator.store.numerics import NumericsStore
from orchestrator.store.relayer import RelayerStore
from orchestrator.store.runs import RunStore
from orchestrator.store.tasks import TaskStore
from orchestrator.store.uploads import UploadStore
from orchestrator.store.webhooks import WebhookStore
from protocol.http.replay_guard import ReplayGuard
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from protocol.wire.money import GasRole


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Dependency container of one orchestrator."""

    settings: OrchestratorSettings
    clock: Clock
    key: Key
    redis: Redis
    database: Database
    replay_guard: ReplayGuard
    nodes: NodeStore
    tasks: TaskStore
    assignments: AssignmentStore
    events: EventStore
    webhooks: WebhookStore
    idempotency: IdempotencyStore
    transitions: NodeTransitions
    ledger: PoolLedger
    status_cache: NodeStatusCache
    pool: CachedPool
    heartbeats: HeartbeatService
    objects: ObjectStore
    uploads: UploadService
    relayer: RelayerService
    consents: ConsentService
    checkpoint_relays: CheckpointRelays
    numerics: ValidatorNumerics
    slot_leasing: SlotLeasing | None
    """None if the pool has no run."""
    run_control: RunControl | None
    accounts: AccountStore
    public: PublicSummaryService
    money: MoneyReader
    evidence: EvidenceReader
    contributors: Contributors
    stream_slots: asyncio.Semaphore
    """Limits concurrent streams of logs and events, and blocking reads."""
    filtered_reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    """Limits concurrent filtered listings, which may read many items."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Number of blocking reads of each caller."""


def build_dependencies(
    settings: OrchestratorSettings,
    *,
    redis: Redis,
    ledger: PoolLedger,
    run_ledger: RunLedger | None = None,
    key: Key,
    clock: Clock,
) -> Dependencies:
    """Builds all objects of an orchestrator without starting any background work."""
    keys = pool_keys(settings.pool_id)
    database = Database(redis, keys=keys)
    cipher = SecretCipher.from_file(settings.secrets_key_file) if settings.secrets_key_file else SecretCipher([])
    replay_guard = ReplayGuard(redis, keys=keys, rate=settings.node_rate(), clock=clock)
    nodes = NodeStore(database)
    tasks = TaskStore(database, cipher=cipher, clock=clock)
    heartbeat_interval = settings.heartbeat_interval()
    transitions = NodeTransitions(
        nodes, heartbeat_interval=heartbeat_interval, clock=clock, invite_life=timedelta(seconds=settings.invite_life_s)
    )
    status_cache = NodeStatusCache(ledger, nodes=nodes, clock=clock)
    pool = CachedPool(ledger, clock=clock)
    objects = build_store(settings, clock=clock)
    terms, slot_leasing = settings.run_terms(), None
    checkpoint_relays = CheckpointRelays(
        CheckpointRelayStore(database), clock=clock, private=settings.relays_in_private_networks
    )
    numerics = ValidatorNumerics(NumericsStore(database), clock=clock)
    if terms is not None and run_ledger is not None:
        runs = RunStore(database, default_demand=terms.default_demand)
        slot_leasing = SlotLeasing(
            terms=terms,
            store=runs,
            ledger=run_ledger,
            relays=checkpoint_relays.live,
            unverifiable=numerics.unverifiable,
            key=key,
            clock=clock,
        )
    run_control = None if slot_leasing is None else RunControl(slot_leasing, clock=clock)
    relayer = RelayerService(
        pool_id=settings.pool_id,
        store=RelayerStore(database),
        objects=objects,
        pool=pool,
        key=key,
        invites=ledger.domain,
        clock=clock,
    )
    gas = {GasRole.ORCHESTRATOR: key.address}
    if run_ledger is not None and run_ledger.relayer != key.address:
        gas[GasRole.RELAYER] = run_ledger.relayer
    evidence = EvidenceReader(objects, pool_id=settings.pool_id)
    return Dependencies(
        settings=settings,
        clock=clock,
        key=key,
        redis=redis,
        database=database,
        replay_guard=replay_guard,
        nodes=nodes,
        tasks=tasks,
        assignments=AssignmentStore(
            database, kept=timedelta(seconds=settings.log_kept_s), most_log_bytes=settings.log_bytes
        ),
        events=EventStore(database),
        webhooks=WebhookStore(database, cipher=cipher, clock=clock),
        idempotency=IdempotencyStore(database, cipher=cipher, clock=clock),
        transitions=transitions,
        ledger=ledger,
        status_cache=status_cache,
        pool=pool,
        heartbeats=HeartbeatService(
            pool_id=settings.pool_id,
            database=database,
            nodes=nodes,
            tasks=tasks,
            transitions=transitions,
            status_cache=status_cache,
            admission=replay_guard,
            heartbeat_interval=heartbeat_interval,
            clock=clock,
        ),
        objects=objects,
        uploads=UploadService(
            pool_id=settings.pool_id,
            store=objects,
            uploads=UploadStore(database, quota=settings.quota()),
            nodes=nodes,
            status_cache=status_cache,
            pool=pool,
            slots=None if slot_leasing is None else slot_leasing.store,
            clock=clock,
            limits=UploadLimits(
                largest=settings.upload_most_bytes,
                unit=settings.upload_bytes_per_unit,
                group=settings.upload_bytes_per_group,
            ),
            admitted_for=timedelta(seconds=settings.run_lease_s + settings.upload_url_life_s + settings.run_pending_s),
            put_life=timedelta(seconds=settings.upload_url_life_s),
            get_life=timedelta(seconds=settings.download_url_life_s),
        ),
        relayer=relayer,
        consents=ConsentService(
            relayer=relayer, ledger=ledger, nodes=nodes, most_per_day=settings.relay_consents_per_day, clock=clock
        ),
        checkpoint_relays=checkpoint_relays,
        numerics=numerics,
        slot_leasing=slot_leasing,
        run_control=run_control,
        accounts=AccountStore(database),
        public=PublicSummaryService(
            settings,
            service=key.address,
            chain_id=ledger.domain.chain_id,
            database=database,
            pool=pool,
            control=run_control,
            clock=clock,
        ),
        money=MoneyReader(ledger, nodes=nodes, accounts=AccountStore(database), gas=gas, clock=clock),
        evidence=evidence,
        contributors=Contributors(
            database,
            leasing=slot_leasing,
            ledger=ledger,
            pool=pool,
            evidence=evidence,
            settings=settings,
            clock=clock,
        ),
        stream_slots=asyncio.Semaphore(settings.streams),
    )


def dependencies_of(request: Request) -> Dependencies:
    """Returns the dependencies of the application that serves this request."""
    dependencies = request.app.state.dependencies
    if not isinstance(dependencies, Dependencies):
        raise TypeError("app.state.dependencies must be Dependencies")
    return dependencies
