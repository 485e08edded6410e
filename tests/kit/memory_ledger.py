"""An orchestrator under test with an in-memory ledger, and nodes that sign their requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from fastapi import FastAPI

from ledger.amounts import UNIT
from ledger.artifacts import Contract
from ledger.client.pools import Terms
from ledger.deployment import Deployment
from orchestrator.chain.interface import (
    Changes,
    ConsentStatus,
    MemberEvent,
    MembershipChange,
    NodeLedgerStatus,
    PoolLedgerStatus,
    PoolMoney,
    ProviderStatus,
)
from orchestrator.dependencies import Dependencies
from orchestrator.loops.ledger_sync import LedgerSync
from orchestrator.loops.liveness import Liveness
from orchestrator.loops.removals import Removals
from orchestrator.loops.scheduler import Scheduler
from protocol.errors import Unavailable
from protocol.http.client import RequestSigner
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.clock import ManualClock
from protocol.wire.heartbeat import HeartbeatAnswer
from protocol.wire.nodes import Hardware, RuntimeKind, Software

POOL = 7
OWNER, MANAGER, PROVIDER = Key.generate(), Key.generate(), Key.generate()
CONTRACT, REGISTRY = Key.generate().address, Key.generate().address

HARDWARE = Hardware(
    cpu_model="x", cpu_cores=4, architecture="x86_64", memory_bytes=8 << 30, disk_free_bytes=100 << 30, gpus=()
)
SOFTWARE = Software(
    worker_version="0.1.0", protocol_version=1, operating_system="Linux", runtimes=(RuntimeKind.DOCKER,)
)


TERMS = Terms(
    price_per_unit=UNIT // 1000,
    penalty_per_unit=UNIT // 100,
    stake_per_capacity=10 * UNIT,
    audit_floor_bps=1_000,
    look_bps=0,
    judge_period=timedelta(hours=1),
    challenge_period=timedelta(hours=1),
    dispute_period=timedelta(hours=1),
    notice_period=timedelta(hours=4),
    max_nodes=100,
    min_capacity=1,
    verdict_fee=0,
)

UNKNOWN = NodeLedgerStatus(provider=None, member=False, banned=False, capacity=0, free_stake=0, needed_stake=0)


@dataclass
class MemoryLedger:
    """A pool's ledger in memory; `down` makes every call fail as a chain does, `stalled` makes them hang."""

    orchestrator: Address
    nodes: dict[Address, NodeLedgerStatus] = field(default_factory=dict)
    waiting: list[MembershipChange] = field(default_factory=list)
    stakes: dict[Address, int] = field(default_factory=dict)
    """Free stake of providers that want to register a node."""
    nonces: dict[Address, int] = field(default_factory=dict)
    """Nonces of the next consents of nodes, if not 0."""
    removed: list[list[Address]] = field(default_factory=list)
    publishers: set[Address] = field(default_factory=set)
    validators: set[Address] = field(default_factory=set)
    stake_per_capacity: int = 10 * UNIT
    calls: int = 0
    down: bool = False
    stalled: bool = False
    domain: SigningDomain = field(default_factory=lambda: SigningDomain(1337, CONTRACT))
    active: bool = True
    terms: Terms = TERMS

    @property
    def deployment(self) -> Deployment:
        return Deployment(chain_id=self.domain.chain_id, block=1, contracts=dict.fromkeys(Contract, CONTRACT))

    def register(self, node: Address, *, member: bool = False, stake: int = 100 * UNIT) -> None:
        self.nodes[node] = NodeLedgerStatus(
            provider=PROVIDER.address,
            member=member,
            banned=False,
            capacity=1,
            free_stake=stake,
            needed_stake=100 * UNIT,
        )

    def happen(self, node: Address, event: MemberEvent, **change: Any) -> None:
        self.nodes[node] = replace(self.nodes.get(node, UNKNOWN), **change)
        self.waiting.append(MembershipChange(event=event, node=node))

    async def _answer(self) -> None:
        self.calls += 1
        if self.stalled:
            await asyncio.Event().wait()
        if self.down:
            raise Unavailable("the chain is down", code="chain-unavailable")

    async def pool(self) -> PoolLedgerStatus:
        await self._answer()
        members = sum(status.member for status in self.nodes.values())
        return PoolLedgerStatus(
            domain_id=1,
            active=self.active,
            owner=OWNER.address,
            managers=frozenset({MANAGER.address}),
            orchestrator=self.orchestrator,
            publishers=frozenset(self.publishers),
            validators=frozenset(self.validators),
            min_capacity=1,
            max_nodes=100,
            members=members,
            terms=self.terms,
        )

    async def node_status(self, node: Address) -> NodeLedgerStatus:
        await self._answer()
        return self.nodes.get(node, UNKNOWN)

    async def provider_status(self, provider: Address) -> ProviderStatus:
        await self._answer()
        return ProviderStatus(
            active=50 * UNIT,
            membership_lock=20 * UNIT,
            work_lock=5 * UNIT,
            unbonding=3 * UNIT,
            unbonds=((3 * UNIT, datetime(2026, 1, 15, tzinfo=UTC)),),
            unbonding_period=timedelta(days=14),
            accrued=UNIT,
        )

    async def money(self, accounts: Sequence[Address]) -> PoolMoney:
        await self._answer()
        return PoolMoney(
            escrow=1000 * UNIT,
            reserved=100 * UNIT,
            withdrawal=0,
            withdrawal_ready=None,
            accrued=30 * UNIT,
            paid=10 * UNIT,
            coins=tuple(UNIT // 4 for _ in accounts),
            head_time=datetime(2026, 1, 1, tzinfo=UTC),
        )

    @property
    def registry_domain(self) -> SigningDomain:
        return SigningDomain(1337, REGISTRY)

    async def free_stake(self, provider: Address) -> int:
        await self._answer()
        return self.stakes.get(provider, 0)

    async def consent_status(self, node: Address, provider: Address) -> ConsentStatus:
        await self._answer()
        found = self.nodes.get(node, UNKNOWN)
        return ConsentStatus(
            nonce=self.nonces.get(node, 0),
            provider=found.provider,
            banned=found.banned,
            stake_per_capacity=self.stake_per_capacity,
            min_capacity=2,
        )

    async def remove(self, nodes: Sequence[Address], *, reason: str) -> None:
        await self._answer()
        self.removed.append(list(nodes))
        for node in nodes:
            if node in self.nodes and self.nodes[node].member:
                self.happen(node, MemberEvent.REMOVED, member=False)

    async def ban(self, node: Address, *, reason: str) -> None:
        await self._answer()
        self.happen(node, MemberEvent.BANNED, member=False, banned=True)

    async def unban(self, node: Address) -> None:
        await self._answer()
        self.happen(node, MemberEvent.UNBANNED, banned=False)

    async def changes(self) -> Changes:
        await self._answer()
        found = tuple(self.waiting)

        async def commit() -> None:
            del self.waiting[: len(found)]

        return Changes(found, commit)

    def forget_position(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


@dataclass
class PoolUnderTest:
    """An orchestrator served in this process; tests run its loops step by step."""

    app: FastAPI
    dependencies: Dependencies
    clock: ManualClock
    ledger: MemoryLedger
    token: str
    liveness: Liveness
    scheduler: Scheduler
    sync: LedgerSync
    removals: Removals

    def http(self, auth: httpx.Auth | None = None) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://pool", auth=auth)

    async def owner(self, method: str, path: str, body: Any = None) -> Any:
        """A request by the pool's owner; the answer's JSON, and a failure if there was an error."""
        async with self.http() as http:
            answer = await http.request(method, path, json=body, headers={"Authorization": f"Bearer {self.token}"})
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    async def send(self, key: Key, path: str, body: Any, *, method: str = "POST") -> httpx.Response:
        signer = RequestSigner(key, audience=self.dependencies.key.address, clock=self.clock)
        content = b"" if body is None else json.dumps(body).encode()
        async with self.http(signer) as http:
            answer = await http.request(method, path, content=content)
            if answer.status_code == 200:
                signer.check(answer.request, status=200, headers=answer.headers, body=answer.content)
        return answer

    async def send_unsigned_answer(self, key: Key, path: str) -> httpx.Response:
        """A signed GET of what the owner's API answers, which is not signed."""
        async with self.http(RequestSigner(key, audience=self.dependencies.key.address, clock=self.clock)) as http:
            return await http.get(path)

    async def beat(self, key: Key, **more: Any) -> HeartbeatAnswer:
        answer = await self.send(key, "/v1/heartbeat", {"pool_id": POOL, "worker_version": "0.1.0", **more})
        assert answer.status_code == 200, answer.text
        return HeartbeatAnswer.model_validate_json(answer.content)

    async def member(self, hardware: Hardware = HARDWARE, labels: dict[str, str] | None = None) -> Key:
        """Returns a node that is a member, is known from discovery and has sent a heartbeat."""
        key = Key.generate()
        self.ledger.register(key.address, member=True)
        if await self.dependencies.nodes.events_read_ms():  # from then on the events say who joined
            self.ledger.happen(key.address, MemberEvent.JOINED)
            await self.sync.round()
        await self.beat(key)
        await self.dependencies.nodes.learn(
            key.address,
            {
                "hardware": hardware.model_dump_json(),
                "software": SOFTWARE.model_dump_json(),
                "labels": json.dumps(labels or {}),
            },
        )
        return key

    async def run(self, **spec: Any) -> str:
        """Posts a task and schedules; the task's id."""
        body = {"spec": {"name": "hello", "image": "python:3.11", **spec}}
        identifier: str = (await self.owner("POST", "/v1/tasks", body))["id"]
        await self.scheduler.tick()
        return identifier
