"""A run under test with an in-memory ledger that enforces the contracts' rules that matter here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from ledger.client.contract import Refusal
from ledger.client.event_follower import ObservedEvent
from ledger.client.work import WorkRecord, WorkStatus
from ledger.events.types import (
    CheckpointAnnounced,
    Departure,
    LedgerEvent,
    MemberJoined,
    MemberLeft,
    VerdictGiven,
    WorkDisputed,
    WorkExpired,
    WorkFinal,
    WorkSubmitted,
)
from ledger.transactions.receipts import EventLog
from orchestrator.chain.run import LedgerRun
from orchestrator.chain.run_interface import (
    AnnouncedCheckpoint,
    Funds,
    JoinedNode,
    RunEvents,
)
from orchestrator.domain.slots import SlotEvent
from orchestrator.loops.relayer import Relayer
from orchestrator.loops.run_sync import RunSync
from orchestrator.loops.sweeper import build_sweeper
from orchestrator.metrics import RetentionMetrics
from orchestrator.relayer.strategies import all_strategies
from orchestrator.runs.leasing import SlotLeasing
from orchestrator.storage import ObjectStore
from orchestrator.storage.local import LocalStore
from orchestrator.store.runs import LOOP
from protocol.errors import Unavailable
from protocol.identifiers import ZERO_DIGEST, Address, Digest, digest, run_id
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease, WorkClaim
from protocol.redis.leader_lease import LeaderLease as LoopLease
from protocol.verdicts import Outcome
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import JoinRequest, SignedConsents, SignedDispute, SignedLeave
from protocol.wire.runs import StepAnswer
from protocol.wire.slots import SlotGrant
from protocol.wire.uploads import ObjectKey
from tests.kit.memory_ledger import POOL, PROVIDER, PoolUnderTest
from validator.domain.submissions import SubmittedWork

RUN = "main"
DOMAIN = SigningDomain(1337, Key.generate().address)
PUBLISHER, VALIDATOR, RELAYER = Key.generate(), Key.generate(), Key.generate()
UNITS = 100
"""Work units per group."""

__all__ = ["LedgerRun", "MemoryRunLedger", "RunUnderTest", "sha", "upload"]


def sha(number: int) -> Digest:
    """Returns a recognisable digest."""
    return digest(f"0x{number:064x}")


def funds(*, free: int = 10**9, price: int = 1, penalty: int = 2, **more: Any) -> Funds:
    """What a pool can pay, under terms that suit these tests."""
    usual: dict[str, Any] = {"active": True, "notice": timedelta(hours=4)}
    usual |= {"judging": timedelta(hours=1), "settling": timedelta(hours=3)}
    return Funds(free=free, price=price, penalty=penalty, **(usual | more))


def upload(store: ObjectStore, work: SignedWorkClaim) -> Path:
    """Leaves the file of some work in the store."""
    return place_file(store, pool_id=work.lease.pool_id, node=work.lease.node, sha256=work.sha256)


def place_file(store: ObjectStore, *, node: Address, sha256: Digest, pool_id: int = POOL, size: int = 0) -> Path:
    """Leaves a file of this name in the store, of zeros: only validators look into it."""
    assert isinstance(store, LocalStore)
    path = store.path(ObjectKey(pool_id=pool_id, owner=node, sha256=sha256))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    if size:
        os.truncate(path, size)
    return path


def record(lease: Lease, *, sha256: Digest, units: int) -> WorkRecord:
    """The ledger's record of work that was submitted now."""
    return WorkRecord(
        node=lease.node,
        provider=PROVIDER.address,
        pool_id=lease.pool_id,
        units=units,
        max_units=lease.max_units,
        sha256=sha256,
        status=WorkStatus.SUBMITTED,
        outcome=None,
        reason=0,
        judge=None,
        looker=None,
        disputer=None,
        juror=None,
        opinion=None,
        since=datetime.fromtimestamp(0, UTC),
        deadline=None,
        reward=0,
        penalty=0,
    )


@dataclass
class MemoryRunLedger:
    """A run's ledger in memory; `down` makes every call fail as a chain does."""

    domain: SigningDomain = DOMAIN
    relayer: Address = RELAYER.address
    head: int = 100
    confirmations: int = 0
    money: Funds = field(default_factory=funds)
    stake: int = 10**9
    versions: dict[int, AnnouncedCheckpoint] = field(default_factory=dict)
    memberships: dict[Address, JoinedNode] = field(default_factory=dict)
    registered: dict[Address, tuple[int, Address | None]] = field(default_factory=dict)
    """Consent nonce and provider of each node."""
    joined: dict[Address, int] = field(default_factory=dict)
    """How often each node has joined."""
    held: dict[Address, int] = field(default_factory=dict)
    """Up to when leases of former members may expire, in Unix seconds."""
    works: dict[Digest, WorkRecord] = field(default_factory=dict)
    leases: dict[Digest, Lease] = field(default_factory=dict)
    happened: list[ObservedEvent] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=dict)
    """Times of blocks, in Unix seconds."""
    read: int = 0
    """How many events were committed; in Redis where the ledger is real."""
    down: bool = False
    refuse: dict[Digest | Address, str] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    die_after_carrying: bool = False

    def announce(self, version: int, *, attempt: int = 0) -> AnnouncedCheckpoint:
        self.head += 1
        made = AnnouncedCheckpoint(
            version=version, attempt=attempt, digest=sha(version * 100 + attempt + 1), block=self.head
        )
        self.versions[version] = made
        self.emit(CheckpointAnnounced, run=run_id(RUN), version=version, attempt=attempt, digest=made.digest)
        return made

    def add_member(self, node: Address) -> None:
        self.head += 1
        self.memberships[node] = JoinedNode(provider=PROVIDER.address, block=self.head)
        self.joined[node] = self.joined.get(node, 0) + 1
        self.emit(MemberJoined, node=node, provider=PROVIDER.address, nonce=1, stake_lock=0)

    def remove_member(self, node: Address, *, held_until: int, expelled: bool = False) -> None:
        """A node leaves, is put out, or (held until 0) is evicted for forged work."""
        del self.memberships[node]
        self.held[node] = held_until
        cause = Departure.EVICTED if expelled else Departure.LEFT
        self.emit(MemberLeft, node=node, provider=PROVIDER.address, cause=cause, reason="")

    def submit(self, lease: Lease, sha256: Digest, units: int) -> str:
        """The contract's rules; the error, or nothing."""
        key = lease.key.hash
        if (error := self.refuse.get(key)) is not None:
            return error
        if key in self.works:
            return "WorkExists"
        self.head += 1
        transaction = sha(self.head)
        self.works[key] = record(lease, sha256=sha256, units=units)
        self.leases[transaction] = lease
        self.money = replace(self.money, free=self.money.free - units * self.money.price)
        work = asdict(SubmittedWork.under(lease, sha256=sha256, units=units, block=self.head))
        self.emit(WorkSubmitted, **{name: value for name, value in work.items() if name not in {"block", "pool_id"}})
        return ""

    def happen(
        self,
        key: Digest,
        node: Address,
        what: SlotEvent,
        outcome: Outcome | None = None,
        *,
        audit: Digest = ZERO_DIGEST,
    ) -> None:
        """A verdict, a dispute, an end."""
        self.head += 1
        states = {
            SlotEvent.JUDGED: WorkStatus.PROVISIONAL,
            SlotEvent.DISPUTED: WorkStatus.DISPUTED,
            SlotEvent.DECIDED: WorkStatus.DISPUTED,
            SlotEvent.FINAL: WorkStatus.FINAL,
            SlotEvent.EXPIRED: WorkStatus.EXPIRED,
        }
        now = self.works[key]
        self.works[key] = replace(now, status=states[what], outcome=outcome or now.outcome)
        match what:
            case SlotEvent.DISPUTED:
                self.emit(WorkDisputed, key=key, node=node, disputer=node, evidence_hash=audit)
            case SlotEvent.FINAL:
                self.emit(WorkFinal, key=key, node=node, outcome=outcome, paid=0, slashed=0)
            case SlotEvent.EXPIRED:
                self.emit(WorkExpired, key=key, node=node)
            case _:
                given: dict[str, Any] = {"outcome": outcome, "reason": 0, "audit_hash": audit}
                decisive = what is SlotEvent.DECIDED
                self.emit(VerdictGiven, key=key, node=node, validator=VALIDATOR.address, decisive=decisive, **given)

    def take_back(self, key: Digest) -> None:
        """A reorg: the submission never was."""
        del self.works[key]
        gone = next(each for each in self.happened if getattr(each.event, "key", None) == key)
        self.happened.append(replace(gone, reverted=True))

    def emit(self, kind: type[LedgerEvent], **fields: Any) -> None:
        """Adds an event of the pool in the newest block."""
        block, pool = sha(self.head), {"pool_id": POOL} if "pool_id" in kind.__dataclass_fields__ else {}
        contract = self.domain.contract
        log = EventLog(
            address=contract,
            topics=(),
            data=b"",
            block_number=self.head,
            block_hash=block,
            transaction=block,
            index=0,
        )
        self.happened.append(ObservedEvent(kind(log=log, **pool, **fields)))

    def _answer(self) -> None:
        if self.down:
            raise Unavailable("the chain is down", code="chain-unavailable")

    async def announced(self, version: int | None = None) -> AnnouncedCheckpoint | None:
        self._answer()
        return self.versions.get(max(self.versions, default=0) if version is None else version)

    async def publisher_of(self, announced: AnnouncedCheckpoint) -> Address:
        self._answer()
        return PUBLISHER.address

    async def funds(self) -> Funds:
        self._answer()
        return self.money

    async def free_stake(self, provider: Address) -> int:
        self._answer()
        return self.stake

    async def membership(self, node: Address) -> JoinedNode | None:
        self._answer()
        return self.memberships.get(node)

    async def held_until(self, node: Address) -> int:
        self._answer()
        return self.held.get(node, 0)

    async def block_hash(self, block: int) -> Digest | None:
        self._answer()
        return sha(block) if self.head >= block + self.confirmations else None

    async def block_time(self, block: int) -> int | None:
        self._answer()
        return self.times.get(block)

    async def work(self, key: Digest) -> WorkRecord | None:
        self._answer()
        return self.works.get(key)

    async def submit_work(self, works: Sequence[SignedWorkClaim]) -> list[Refusal]:
        self._answer()
        self.batches.append(len(works))
        results = [(w.lease.lease.key.hash, self.submit(w.lease.lease, w.sha256, w.units)) for w in works]
        if self.die_after_carrying:
            raise Unavailable("the answer was lost", code="transaction-not-mined")
        return [Refusal(key, error, f"{error}(…)") for key, error in results if error]

    async def work_refusals(self, works: Sequence[SignedWorkClaim]) -> list[Refusal]:
        self._answer()
        keys = [work.lease.lease.key.hash for work in works]
        return [Refusal(key, self.refuse[key], f"{self.refuse[key]}(…)") for key in keys if key in self.refuse]

    async def join_refusals(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        self._answer()
        nodes = [join.invite.node for join in joins]
        return [Refusal(node, self.refuse[node], f"{self.refuse[node]}(…)") for node in nodes if node in self.refuse]

    async def redeem_invites(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        self._answer()
        self.batches.append(len(joins))
        refused = []
        for each in joins:
            node = each.invite.node
            if node in self.refuse or node in self.memberships:
                error = self.refuse.get(node, "MemberAlready")
                refused.append(Refusal(node, error, f"{error}(…)"))
            else:
                self.add_member(node)
        return refused

    async def open_disputes(self, disputes: Sequence[SignedDispute]) -> list[Refusal]:
        self._answer()
        refused = []
        for each in disputes:
            error = self.refuse.get(each.key, "")
            if not error and self.works[each.key].status is not WorkStatus.PROVISIONAL:
                error = "WrongStatus"
            if error:
                refused.append(Refusal(each.key, error, f"{error}(…)"))
            else:
                self.batches.append(1)
                node = next(lease.node for lease in self.leases.values() if lease.key.hash == each.key)
                self.happen(each.key, node, SlotEvent.DISPUTED)
        if self.die_after_carrying:
            raise Unavailable("the answer was lost", code="transaction-not-mined")
        return refused

    async def joins(self, node: Address) -> int:
        self._answer()
        return self.joined.get(node, 0)

    async def end_memberships(self, leaves: Sequence[SignedLeave]) -> list[Refusal]:
        self._answer()
        refused = []
        for each in leaves:
            error = self.refuse.get(each.node, "" if each.node in self.memberships else "NotMember")
            if error:
                refused.append(Refusal(each.node, error, f"{error}(…)"))
            else:
                self.batches.append(1)
                del self.memberships[each.node]
        if self.die_after_carrying:
            raise Unavailable("the answer was lost", code="transaction-not-mined")
        return refused

    async def registration(self, node: Address) -> tuple[int, Address | None]:
        self._answer()
        return self.registered.get(node, (0, None))

    async def register_nodes(self, consents: Sequence[SignedConsents]) -> list[Refusal]:
        self._answer()
        refused = []
        for each in consents:
            error = self.refuse.get(each.node, "")
            if error:
                refused.append(Refusal(each.node, error, f"{error}(…)"))
            else:
                self.batches.append(1)
                self.registered[each.node] = (each.nonce + 1, each.provider)
        if self.die_after_carrying:
            raise Unavailable("the answer was lost", code="transaction-not-mined")
        return refused

    async def events(self) -> RunEvents:
        self._answer()
        found = tuple(self.happened[self.read :])
        upto = len(self.happened)

        async def commit() -> None:
            self.read = upto

        return RunEvents(found, commit, more=False)

    def forget_position(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


@dataclass
class RunUnderTest:
    """An orchestrator with a run; tests run its loops step by step."""

    pool: PoolUnderTest
    chain: Any
    requests: int = 0

    def __post_init__(self) -> None:
        dependencies = self.pool.dependencies
        assert dependencies.slot_leasing is not None
        assert dependencies.run_control is not None
        self.leasing: SlotLeasing = dependencies.slot_leasing
        self.sync = RunSync(
            self.leasing,
            dependencies.run_control,
            relayer_store=dependencies.relayer.store,
            uploads=dependencies.uploads,
            lease=self._lease(LOOP),
            clock=dependencies.clock,
        )
        self.metrics = CollectorRegistry()
        self.sweeper = build_sweeper(dependencies, lease=self._lease("sweep"), metrics=RetentionMetrics(self.metrics))
        self.relayer = Relayer(
            dependencies.relayer.store,
            strategies=all_strategies(self.chain, dependencies.clock),
            lease=self._lease("relayer"),
            clock=dependencies.clock,
        )

    def _lease(self, name: str) -> LoopLease:
        return LoopLease(self.pool.dependencies.database, name, lifetime=timedelta(seconds=60))

    async def member(self) -> Key:
        """A healthy member that may lease."""
        key = await self.pool.member()
        self.chain.add_member(key.address)
        await self.pool.sync.round()
        await self.pool.dependencies.nodes.learn(key.address, {"member": "1"})
        return key

    async def publish(self, version: int, *, attempt: int = 0, arithmetic: Sequence[str] = ()) -> None:
        """Announces a version and tells the orchestrator."""
        made = self.chain.announce(version, attempt=attempt)
        body = {"version": version, "attempt": attempt, "digest": made.digest, "units_per_group": UNITS}
        body |= {"arithmetic": list(arithmetic)}
        await self.pool.owner("PUT", "/v1/run/checkpoint", body)
        await self.sync.round()

    async def demand(self, step: int, groups: int, *, closed: bool = False) -> Any:
        return await self.pool.owner("PUT", "/v1/run/demand", {"step": step, "groups": groups, "closed": closed})

    async def step(self, key: Key) -> StepAnswer:
        answer = await self.pool.send(key, "/v1/run/step", None, method="GET")
        assert answer.status_code == 200, answer.text
        return StepAnswer.model_validate_json(answer.content)

    async def ask(self, key: Key, *, step: int = 0, groups: int = 4, request: str | None = None) -> httpx.Response:
        self.requests += 1
        body = {"step": step, "groups": groups, "request_id": request or f"{self.requests:032x}"}
        return await self.pool.send(key, "/v1/slots", body)

    async def lease(self, key: Key, *, step: int = 0, groups: int = 4) -> SlotGrant:
        answer = await self.ask(key, step=step, groups=groups)
        assert answer.status_code == 200, answer.text
        return SlotGrant.model_validate_json(answer.content)

    def signed(self, key: Key, grant: SlotGrant, *, file: int = 1, units: int = 7) -> SignedWorkClaim:
        work = WorkClaim(lease_hash=grant.lease.lease.hash, sha256=sha(file), units=units)
        signature = work.sign(key, grant.lease.domain)
        return SignedWorkClaim(lease=grant.lease, sha256=sha(file), units=units, signature="0x" + signature.hex())

    async def hand_in(
        self, key: Key, work: SignedWorkClaim, *, uploaded: bool = True, **figures: float
    ) -> httpx.Response:
        """Submits work after placing its file, with arbitrary bytes, in the store."""
        if uploaded:
            upload(self.pool.dependencies.objects, work)
        return await self.pool.send(key, "/v1/submissions", {"work": work.model_dump(mode="json"), "figures": figures})

    def submit_alone(self, grant: SlotGrant, *, file: int = 1, units: int = 7, uploaded: bool = True) -> str:
        """A node submits on the ledger itself; the ledger's error, or nothing. Not uploaded: a ghost."""
        lease = grant.lease.lease
        if uploaded:
            place_file(self.pool.dependencies.objects, pool_id=lease.pool_id, node=lease.node, sha256=sha(file))
        return str(self.chain.submit(lease, sha(file), units))

    async def delivered(self, key: Key, grant: SlotGrant, *, file: int = 1) -> Digest:
        """Hands work in and has it carried and read; its key."""
        answer = await self.hand_in(key, self.signed(key, grant, file=file))
        assert answer.status_code == 200, answer.text
        await self.relayer.round()
        await self.sync.round()
        return grant.lease.lease.key.hash

    async def view(self, step: int = 0) -> Any:
        steps = (await self.pool.owner("GET", "/v1/run"))["steps"]
        return next(each for each in steps if each["step"] == step)

    async def rollouts(self, **query: str) -> list[Any]:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        items: list[Any] = (await self.pool.owner("GET", f"/v1/run/rollouts?{text}"))["items"]
        return items


MAIN = run_id(RUN)
