"""Simulates a run with attackers under the former and the current rules; `python -m benchmarks.economy`.

A hundred nodes make rollouts for a run of 1,000 steps; some of them follow an attacking strategy. The product's own
functions decide which step needs work, how a slot's state changes, how long it is leased, which nodes are throttled,
how many rows are recomputed and which, the seed of a slot, and the outcome of disputes. Time is simulated, so the
result depends only on the seed. `Rules` holds the differences between the former and the current rules.

Attackers whose slots cost them no work (ghost, launderer, slow) request slots without pause, so they are served before
all honest nodes. Each node has its own provider with one stake. Attackers know all rules, but not which rows will be
drawn. `poisoner` is an attack that stakes can only make expensive: it shows the cost of a bad row.

`--steps 1000 --share 1,10,30 --seed 1` are the defaults, with shares in per cent of the nodes; about 90 s of one core.
"stopped" compares steps per hour with a pool that does not have the attacking nodes at all.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial

from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from cli.pool.economics import looked_at
from ledger.amounts import UNIT
from ledger.client.pools import Escrow, Terms
from ledger.economics import collusion, explain_economics
from orchestrator.domain.deliveries import DeliveryTerms, PastLease, judge_deliveries
from orchestrator.domain.lease_terms import TIMES_KEPT, DeliveryTime, is_late, lease_length, wait_length
from orchestrator.domain.slots import LEASED, SPARE, Counted, Slot, SlotEvent, StoredFileState
from orchestrator.domain.slots import after as slot_after
from orchestrator.domain.steps import StepCount, Window, choose_step
from protocol.identifiers import ZERO_DIGEST, Address, Digest, address, digest, run_id
from protocol.verdicts import Outcome
from rollouts.seeds import draw_targets, slot_seed
from validator.audit.draw import RowDraw, draw_rows
from validator.audit.rate import NEW, AuditRecord, RatePolicy, share_of
from validator.audit.rate import after as record_after

NODES = 100
ASYNC_LEVEL = 2
SLOTS_PER_STEP = 16
GROUPS_PER_SLOT = 4
DEMAND = SLOTS_PER_STEP * GROUPS_PER_SLOT
ROWS_PER_GROUP = 16
ROWS = GROUPS_PER_SLOT * ROWS_PER_GROUP
TARGETS = (4, 5, 6)
"""Possible answer lengths in tokens; a group's answers have one length."""
MAX_UNITS = ROWS * max(TARGETS)

LEARNING = 40.0
"""Seconds that the trainer needs for a step once it has its rollouts."""
SLOT_TIME = 60.0
"""Seconds that a typical node needs for a slot; nodes and slots differ around it (log-normal)."""
NODES_DIFFER, SLOTS_DIFFER = 0.3, 0.2
HONEST_FAILURES = 0.001
"""The share of leases that an honest node loses to accidents."""
VERDICT = 20.0
"""Seconds from the upload of a file to its verdict."""
STAKE = 100 * UNIT
VALIDATORS, CORRUPT = 4, 1

TERMS = Terms.deterring(
    Terms(
        price_per_unit=UNIT // 10_000,
        penalty_per_unit=0,
        stake_per_capacity=10 * UNIT,
        audit_floor_bps=1_000,
        look_bps=500,
        judge_period=timedelta(hours=1),
        challenge_period=timedelta(hours=1),
        dispute_period=timedelta(hours=2),
        notice_period=timedelta(hours=1),
        max_nodes=NODES,
        min_capacity=1,
        verdict_fee=UNIT // 1_000,
    )
)
FLOOR = TERMS.audit_floor_bps / 10_000
DELIVERIES = DeliveryTerms(
    newest=20, provider_newest=60, least=5, threshold=0.5, rejections=2, pause=timedelta(seconds=600)
)
LONGEST_LEASE, SHORTEST_LEASE, PENDING = timedelta(seconds=600), timedelta(seconds=30), 900.0
JUDGE, CHALLENGE, DISPUTE = (
    period.total_seconds() for period in (TERMS.judge_period, TERMS.challenge_period, TERMS.dispute_period)
)
RUN = run_id("economy")
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Differences between the former and the current rules.

    Args:
        name: Name in the tables.
        absent_files_count: Whether a submission occupies its step and counts as delivered without a file.
        penalty_by_lease: Whether the penalty is for all units of the lease instead of the claimed ones.
        units_must_fit: Whether claiming fewer units than the file holds is forgery.
        late_files_in_full: Whether all rows are recomputed of a file that arrived after its submission.
        seeds_are_public: Whether a slot's seed can be known before the slot is leased.
        disputes_are_confirmed: Whether validators decide disputes by rank, and by two.
        rejections_count: Whether rejected work counts against its node, beyond the free ones.
        forgery_stops_leases: Whether provisional forgery stops leases of the node, has its provider's nodes audited in
            full, and keeps them from joining again for a while.
        most_of_step: The share of a step that one provider may hold while others request slots.
        leases_follow_deliveries: Whether lease durations follow the median of recent deliveries instead of the maximum.
        slow_slots_are_spare: Whether no step waits for a slot past half of its lease or for a slot of a node on trial,
            and late work counts against its node.
    """

    name: str
    absent_files_count: bool
    penalty_by_lease: bool
    units_must_fit: bool
    late_files_in_full: bool
    seeds_are_public: bool
    disputes_are_confirmed: bool
    rejections_count: bool
    forgery_stops_leases: bool
    most_of_step: float
    leases_follow_deliveries: bool
    slow_slots_are_spare: bool


BEFORE = Rules(
    name="before",
    absent_files_count=True,
    penalty_by_lease=False,
    units_must_fit=False,
    late_files_in_full=False,
    seeds_are_public=True,
    disputes_are_confirmed=False,
    rejections_count=False,
    forgery_stops_leases=False,
    most_of_step=1.0,
    leases_follow_deliveries=False,
    slow_slots_are_spare=False,
)
NOW = Rules(
    name="now",
    absent_files_count=False,
    penalty_by_lease=True,
    units_must_fit=True,
    late_files_in_full=True,
    seeds_are_public=False,
    disputes_are_confirmed=True,
    rejections_count=True,
    forgery_stops_leases=True,
    most_of_step=1 / 3,
    leases_follow_deliveries=True,
    slow_slots_are_spare=True,
)
OTHERS_ASKED = 60.0
CAUGHT_AFTER = 120.0
"""Seconds from a verdict until a second look has led to a dispute that two validators have decided."""


# Strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A node's use of a slot.

    Args:
        seconds: Seconds until the node submits.
        units: Work units of the file.
        claimed: Work units that the node submits.
        uploads: Seconds after the submission at which the file arrives; None if it never does.
        bad: Rows that differ from what the slot's seed requires.
        launders: Whether a corrupt validator helps.
    """

    seconds: float
    units: int
    claimed: int
    uploads: float | None = 0.0
    bad: frozenset[int] = frozenset()
    launders: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A slot that a node is about to lease for `lease` seconds."""

    run: Run
    node: Node
    step: int
    lease: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The behaviour of one kind of nodes.

    Args:
        plan: Chooses what the node does with a slot.
        at_once: The number of slots that the node holds at a time.
        eager: Whether the node requests slots without pause, because they cost it no work.
    """

    plan: Callable[[Offer], Plan]
    at_once: int = 1
    eager: bool = False


def honest(offer: Offer) -> Plan:
    """Makes the file, claims its units, and occasionally loses a slot."""
    units = offer.run.draw_units()
    seconds = offer.node.seconds * offer.run.random.lognormvariate(0, SLOTS_DIFFER)
    if offer.run.random.random() < HONEST_FAILURES:
        seconds = 2 * offer.lease
    return Plan(seconds=seconds, units=units, claimed=units)


def ghost(_: Offer) -> Plan:
    """Submits a hash at once and uploads nothing."""
    return Plan(seconds=1.0, units=1, claimed=1, uploads=None)


def one_unit(offer: Offer) -> Plan:
    """Poisons one row of each file once it is audited at the floor, and claims one unit of them."""
    plan = poisoner(offer)
    return replace(plan, claimed=1) if plan.bad else plan


def poisoner(offer: Offer) -> Plan:
    """Poisons one row of each file once it is audited at the floor, and claims all units."""
    plan = honest(offer)
    if audited_share(offer.node) > FLOOR:
        return plan
    return replace(plan, bad=frozenset({offer.run.random.randrange(ROWS)}))


def late_upload(offer: Offer) -> Plan:
    """As the poisoner, but submits at an epoch's end, and uploads when it knows that the row is not drawn."""
    plan = poisoner(offer)
    return replace(plan, uploads=300.0) if plan.bad else plan


def shopper(offer: Offer) -> Plan:
    """Predicts the slots of several keys and leases the one that pays best."""
    plan = honest(offer)
    index = offer.node.leased
    keys = [_key_of(offer.node.number, number) for number in range(SHOPPER_KEYS)]
    known = ZERO_DIGEST if offer.run.rules.seeds_are_public else _digest_of("a guess")
    best = max(keys, key=lambda key: units_of(key, offer.step, index, known))
    salt = ZERO_DIGEST if offer.run.rules.seeds_are_public else _digest_of(f"salt {best} {offer.step} {index}")
    units = units_of(best, offer.step, index, salt)
    return replace(plan, units=units, claimed=units)


def launderer(_: Offer) -> Plan:
    """Invents a file and has a corrupt validator accept it."""
    units = MAX_UNITS
    return Plan(seconds=5.0, units=units, claimed=units, bad=frozenset(range(ROWS)), launders=True)


def slow(offer: Offer) -> Plan:
    """Makes the file and submits it at the end of the lease."""
    units = offer.run.draw_units()
    return Plan(seconds=0.95 * offer.lease, units=units, claimed=units)


STRATEGIES: Mapping[str, Strategy] = {
    "honest": Strategy(plan=honest),
    "ghost": Strategy(plan=ghost, at_once=4, eager=True),
    "one-unit": Strategy(plan=one_unit),
    "poisoner": Strategy(plan=poisoner),
    "late-upload": Strategy(plan=late_upload),
    "shopper": Strategy(plan=shopper),
    "launderer": Strategy(plan=launderer, at_once=4, eager=True),
    "slow": Strategy(plan=slow, at_once=4, eager=True),
}
SHOPPER_KEYS = 4


# Adapters: the product's decisions in terms of the simulation


def step_count(row: StepRow) -> StepCount:
    """Returns a step in the form that `choose_step` takes."""
    groups = row.groups
    return StepCount(
        demand=DEMAND,
        leased=groups[Counted.LEASED],
        spare=groups[Counted.SPARE],
        pending=groups[Counted.PENDING],
        accepted=groups[Counted.ACCEPTED],
    )


def past_leases(jobs: Sequence[Job]) -> list[PastLease]:
    """Returns a node's leases, newest first, in the form that `judge_deliveries` takes."""
    return [PastLease(job.slot, int(job.ended * 1000), late=job.late) for job in jobs]


def delivery_terms(rules: Rules) -> DeliveryTerms:
    """Returns the pool's delivery terms; under rules where rejections do not count, all of them are free."""
    return DELIVERIES if rules.rejections_count else replace(DELIVERIES, rejections=DELIVERIES.newest)


def audited_share(node: Node) -> float:
    """Returns the share of rows that are recomputed in files of a node."""
    return share_of(node.record, floor=FLOOR, policy=RatePolicy())[0]


def finds_forgery(run: Run, job: Job) -> bool:
    """Returns whether an honest validator finds a file forged."""
    plan, rules = job.plan, run.rules
    if rules.units_must_fit and plan.claimed != plan.units:
        return True
    return bool(plan.bad) and bool(plan.bad & drawn_rows(run, job))


def drawn_rows(run: Run, job: Job) -> frozenset[int]:
    """Returns the rows of a file that are recomputed."""
    if run.rules.late_files_in_full and job.plan.uploads:
        return frozenset(range(ROWS))
    return frozenset(draw_rows(RowDraw(seed=job.draw_seed, share=job.share), ROWS))


@cache
def laundered() -> tuple[float, float]:
    """Returns the probabilities that laundering succeeds now: by a dispute, and as the first judge."""
    economics = explain_economics(TERMS, Escrow(0, 0), units=MAX_UNITS, open_work=1)
    looks = looked_at(TERMS, honest=VALIDATORS - CORRUPT, corrupt=CORRUPT)
    found = collusion(economics, validators=VALIDATORS, corrupt=CORRUPT, looked_at=looks)
    return found.launders_by_dispute, found.launders_first


def units_of(key: Address, step: int, index: int, salt: Digest) -> int:
    """Returns the work units of a slot's file, from its seed."""
    seed = slot_seed(
        chain_id=1,
        pool_id=1,
        run_id=RUN,
        step=step,
        node=key,
        index=index,
        digest=_digest_of(f"version {step}"),
        beacon=ZERO_DIGEST,
        salt=salt,
    )
    return ROWS_PER_GROUP * sum(draw_targets(seed, TARGETS, GROUPS_PER_SLOT))


@cache
def _key_of(node: int, number: int) -> Address:
    return address("0x" + hashlib.sha256(f"key {node} {number}".encode()).hexdigest()[:40])


def _digest_of(text: str) -> Digest:
    return digest(hashlib.sha256(text.encode()).digest())


# The run


@dataclass(slots=True)
class Node:
    """A node and its provider. Amounts are in the token's smallest unit."""

    number: int
    strategy: Strategy
    cheats: bool
    seconds: float
    live: int = 0
    leased: int = 0
    record: AuditRecord = NEW
    jobs: deque[Job] = field(default_factory=lambda: deque(maxlen=2 * DELIVERIES.newest))
    stale: bool = False
    """Whether the node's delivery record must be recomputed."""
    failed: bool = False
    """Whether any delivery ever failed; until then no record is computed."""
    on_trial: bool = False
    away_until: float = 0.0
    rests: int = 0
    locked: int = 0
    pay: int = 0
    lost: int = 0
    unpaid: int = 0
    """Honest files of the node that were not paid."""


@dataclass(slots=True)
class Job:
    """A slot from its lease to its end."""

    node: Node
    step: int
    groups: int
    plan: Plan
    share: float
    draw_seed: bytes
    slot: Slot = LEASED
    counts: Counted = Counted.NOTHING
    lease: timedelta = timedelta()
    late: bool = False
    uploaded: bool = False
    leased_at: float = 0.0
    ended: float = 0.0
    penalty: int = 0

    @property
    def is_absent(self) -> bool:
        """Returns whether the work was submitted and the orchestrator knows that its file is missing."""
        return self.slot.file is StoredFileState.ABSENT


@dataclass(slots=True)
class StepRow:
    """Counters of a step, in groups."""

    groups: dict[Counted, int] = field(default_factory=lambda: defaultdict(int))
    held: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Groups by provider: leased, pending or accepted."""
    rows: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run. Amounts are in the token's smallest unit, per node of the strategy.

    Args:
        slots: The number of leased slots.
        pay: Rewards.
        lost: Slashed stake.
        per_slot: Rewards minus slashed stake, per leased slot.
        honest_per_slot: The same for honest nodes.
        steps_an_hour: Learned steps per hour.
        bad_rows: The share of learned rows that are bad.
        bad_row_costs: The stake slashed and rewards missed for files with bad rows, per learned bad row; None without
            bad rows.
        honest_lost: The stake slashed and rewards missed by honest nodes.
        honest_rests: How often honest nodes were throttled, per node.
    """

    slots: float
    pay: float
    lost: float
    per_slot: float
    honest_per_slot: float
    steps_an_hour: float
    bad_rows: float
    bad_row_costs: float | None
    honest_lost: int
    honest_rests: float


class Run:
    """A run of a hundred nodes.

    Args:
        rules: The rules of the pool.
        strategy: The strategy of some nodes; the others are honest.
        cheats: The number of nodes that follow the strategy.
        present: Whether these nodes exist at all.
        proven: Whether all nodes are audited at the floor from the beginning.
        steps: The number of steps; the run ends earlier if they take four times the expected time.
        seed: The seed of all random numbers.
    """

    def __init__(
        self,
        rules: Rules,
        strategy: str,
        *,
        cheats: int,
        steps: int,
        seed: int,
        present: bool = True,
        proven: bool = False,
    ) -> None:
        self.rules = rules
        self.random = random.Random(f"{seed} {strategy} {cheats}")
        self.now = 0.0
        self._steps = steps
        self._until = 4 * steps * LEARNING + SLOT_TIME
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._rows: dict[int, StepRow] = defaultdict(StepRow)
        self.version = 0
        self._learning = False
        self._changed = False
        """Whether an event occurred after which slots may be available."""
        self._others_asked = 0.0
        self._took: deque[DeliveryTime] = deque(maxlen=TIMES_KEPT)
        speeds = random.Random(seed)  # every strategy has the same nodes
        self.nodes = [
            Node(
                number=number,
                strategy=STRATEGIES[strategy if number < cheats else "honest"],
                cheats=number < cheats,
                record=AuditRecord(clean=1_000) if proven else NEW,
                seconds=SLOT_TIME * speeds.lognormvariate(0, NODES_DIFFER),
            )
            for number in range(NODES)
        ][0 if present else cheats :]
        self._eager = deque(node for node in self.nodes if node.strategy.eager)
        self._waiting = deque(node for node in self.nodes if not node.strategy.eager)
        self.random.shuffle(self._waiting)
        self._learned_rows = self._learned_bad = 0
        self._bad_cost = 0

    def draw_units(self) -> int:
        """Draws the work units of a file whose slot was not chosen."""
        return ROWS_PER_GROUP * sum(self.random.choices(TARGETS, k=GROUPS_PER_SLOT))

    def play(self) -> Result:
        """Simulates the run to its end."""
        self._grant()
        while self._events and self.version < self._steps:
            when, _, event = heapq.heappop(self._events)
            if when > self._until:
                break
            self.now = when
            event()
            if self._changed:
                self._changed = False
                self._learn()
                self._grant()
        return self._result()

    def _later(self, seconds: float, event: Callable[..., None], *arguments: Job | SlotEvent) -> None:
        what: Callable[[], None] = partial(event, *arguments)
        heapq.heappush(self._events, (self.now + seconds, next(self._sequence), what))

    # Leases

    def _grant(self) -> None:
        window = Window.of(floor=self.version, version=self.version, async_level=ASYNC_LEVEL)
        while True:
            rows = {step: step_count(self._rows[step]) for step in window.steps}
            choice = choose_step(window, rows, default_demand=DEMAND)
            if not choice.need:
                return
            node = self._next_node(choice.step)
            if node is None:
                return
            self._lease(node, choice.step, min(GROUPS_PER_SLOT, choice.need))

    def _next_node(self, step: int) -> Node | None:
        if self._waiting:
            self._others_asked = self.now
        for queue in (self._eager, self._waiting):
            for _ in range(len(queue)):
                node = queue[0]
                queue.rotate(-1)
                if self._may_lease(node, step):
                    if not node.strategy.eager:
                        queue.pop()
                    return node
        return None

    def _may_lease(self, node: Node, step: int) -> bool:
        if node.away_until > self.now:
            return False
        if node.stale and node.failed:
            self._judge_deliveries(node)
            if node.away_until > self.now:
                return False
        most = 1 if node.on_trial else node.strategy.at_once
        penalty = self._penalty(MAX_UNITS if self.rules.penalty_by_lease else 1)
        if node.live >= most or node.locked + penalty > STAKE - TERMS.stake_per_capacity:
            return False
        allowed = max(GROUPS_PER_SLOT, int(self.rules.most_of_step * DEMAND))
        others = self.now - self._others_asked <= OTHERS_ASKED
        return not others or self._rows[step].held[node.number] + GROUPS_PER_SLOT <= allowed

    def _judge_deliveries(self, node: Node) -> None:
        node.stale = False
        found = judge_deliveries(
            past_leases(tuple(node.jobs)), terms=delivery_terms(self.rules), now_ms=int(self.now * 1000)
        )
        node.on_trial = found.on_trial
        if found.resting_until_ms is not None:
            node.rests += 1
            self._send_away(node, found.resting_until_ms / 1000 + 0.001 - self.now)

    def _send_away(self, node: Node, seconds: float) -> None:
        node.away_until = max(node.away_until, self.now + seconds)
        self._later(seconds, self._wake)

    def _wake(self) -> None:
        self._changed = True

    def _lease(self, node: Node, step: int, groups: int) -> None:
        lease = self._lease_length()
        job = Job(
            node=node,
            step=step,
            groups=groups,
            plan=node.strategy.plan(Offer(run=self, node=node, step=step, lease=lease)),
            share=audited_share(node),
            draw_seed=self.random.randbytes(32),
            leased_at=self.now,
            lease=timedelta(seconds=lease),
            slot=SPARE if node.on_trial and self.rules.slow_slots_are_spare else LEASED,
        )
        node.leased += 1
        node.live += 1
        node.jobs.appendleft(job)
        row = self._rows[step]
        row.held[node.number] += groups
        self._recount(job)
        if job.plan.seconds < lease:
            self._later(job.plan.seconds, self._submit, job)
        else:
            self._later(lease, self._lease_over, job)
        if self.rules.slow_slots_are_spare:
            wait = wait_length(job.lease).total_seconds()
            if job.plan.seconds > wait:
                self._later(wait, self._happen, job, SlotEvent.WAIT_OVER)

    def _lease_length(self) -> float:
        if not self.rules.leases_follow_deliveries:
            return LONGEST_LEASE.total_seconds()
        return lease_length(self._took, least=SHORTEST_LEASE, most=LONGEST_LEASE).total_seconds()

    def _lease_over(self, job: Job) -> None:
        self._took.append(DeliveryTime(int(2000 * (self.now - job.leased_at)), job.groups))
        job.node.failed = True
        self._happen(job, SlotEvent.LEASE_OVER)
        self._free(job)

    def _free(self, job: Job) -> None:
        node = job.node
        node.live -= 1
        self._changed = True
        job.ended = self.now
        if not node.strategy.eager:
            self._waiting.append(node)

    # Work

    def _submit(self, job: Job) -> None:
        plan, node = job.plan, job.node
        job.penalty = self._penalty(MAX_UNITS if self.rules.penalty_by_lease else plan.claimed)
        node.locked += job.penalty
        self._free(job)
        if self.rules.slow_slots_are_spare:
            job.late = is_late(timedelta(seconds=self.now - job.leased_at), self._took, lease=job.lease)
            node.failed |= job.late
        self._happen(job, SlotEvent.SUBMITTED)
        if plan.uploads == 0:
            self._upload(job)
            return
        if not self.rules.absent_files_count:
            self._happen(job, SlotEvent.FILE_ABSENT)
        knows_draw = not self.rules.late_files_in_full
        if plan.uploads is not None and not (knows_draw and plan.bad & drawn_rows(self, job)):
            self._later(plan.uploads, self._upload, job)
        self._later(PENDING, self._pending_over, job)
        self._later(JUDGE, self._expire, job)

    def _upload(self, job: Job) -> None:
        job.uploaded = True
        if not self.rules.absent_files_count:
            self._happen(job, SlotEvent.FILE_PRESENT)
        self._later(VERDICT, self._judge, job)

    def _pending_over(self, job: Job) -> None:
        if not job.uploaded:
            self._happen(job, SlotEvent.PENDING_OVER)

    def _expire(self, job: Job) -> None:
        if not job.uploaded:
            self._happen(job, SlotEvent.EXPIRED)
            job.node.locked -= job.penalty
            self._missed(job, 0)

    def _judge(self, job: Job) -> None:
        if job.plan.launders:
            self._launder(job)
            return
        outcome = Outcome.FORGED if finds_forgery(self, job) else Outcome.ACCEPTED
        self._happen(job, SlotEvent.JUDGED, outcome)
        self._close(job, outcome, final_in=CHALLENGE)

    def _launder(self, job: Job) -> None:
        by_dispute, as_first = laundered()
        if not self.rules.disputes_are_confirmed:
            # An honest validator judges it forged; the corrupt one decides the dispute in the same second.
            self._happen(job, SlotEvent.JUDGED, Outcome.ACCEPTED)
            self._close(job, Outcome.ACCEPTED, final_in=0)
            return
        self._happen(job, SlotEvent.JUDGED, Outcome.ACCEPTED)
        passes = self.random.random() < max(by_dispute, as_first)
        self._close(job, Outcome.ACCEPTED if passes else Outcome.FORGED, final_in=CHALLENGE if passes else CAUGHT_AFTER)

    def _close(self, job: Job, outcome: Outcome, *, final_in: float) -> None:
        node, plan = job.node, job.plan
        if outcome is Outcome.ACCEPTED:
            self._took.append(DeliveryTime(int(1000 * (job.ended - job.leased_at)), job.groups))
            node.pay += TERMS.price_per_unit * plan.claimed
            self._missed(job, TERMS.price_per_unit * plan.claimed)
        else:
            node.lost += job.penalty
            self._missed(job, -job.penalty)
            if not plan.bad:
                node.unpaid += TERMS.price_per_unit * plan.units
            if self.rules.forgery_stops_leases and not plan.launders:
                self._send_away(node, final_in)
        node.record = record_after(node.record, outcome, at=BEGINNING + timedelta(seconds=self.now))
        self._later(final_in, self._finish if outcome is Outcome.ACCEPTED else self._expel, job)

    def _missed(self, job: Job, paid: int) -> None:
        """Adds the cost of a file with bad rows to its node, compared with the reward of an honest file."""
        if job.plan.bad:
            self._bad_cost += TERMS.price_per_unit * job.plan.units - paid

    def _finish(self, job: Job) -> None:
        job.node.locked -= job.penalty

    def _expel(self, job: Job) -> None:
        node = job.node
        node.locked -= job.penalty
        if self.rules.forgery_stops_leases:
            self._send_away(node, JUDGE + CHALLENGE + DISPUTE)
        else:
            node.record = NEW  # another key of the same provider joins in the next transaction

    def _happen(self, job: Job, event: SlotEvent, outcome: Outcome | None = None) -> None:
        job.slot = slot_after(job.slot, event, outcome)
        job.node.stale = True
        job.node.failed |= job.is_absent or outcome not in {None, Outcome.ACCEPTED}
        self._recount(job)

    def _recount(self, job: Job) -> None:
        now_counts = job.slot.counted
        if now_counts is job.counts:
            return
        row = self._rows[job.step]
        row.groups[job.counts] -= job.groups
        row.groups[now_counts] += job.groups
        if now_counts is Counted.ACCEPTED:
            row.rows += job.groups * ROWS_PER_GROUP
            row.bad += len(job.plan.bad)
        elif job.slot.counted in {Counted.REJECTED, Counted.NOTHING}:
            row.held[job.node.number] -= job.groups
        job.counts = now_counts
        self._changed = True

    # The trainer

    def _learn(self) -> None:
        row = self._rows[self.version]
        if not self._learning and row.groups[Counted.ACCEPTED] >= DEMAND:
            self._learning = True
            self._learned_rows += row.rows
            self._learned_bad += row.bad
            self._later(LEARNING, self._learned)

    def _learned(self) -> None:
        self._learning = False
        self._changed = True
        self._rows.pop(self.version)
        self.version += 1

    # Money

    def _penalty(self, units: int) -> int:
        return TERMS.penalty_per_unit * units

    def _result(self) -> Result:
        cheats, others = ([node for node in self.nodes if node.cheats is kind] for kind in (True, False))
        shown = cheats or others
        slots = sum(node.leased for node in shown)
        return Result(
            slots=slots / len(shown),
            pay=sum(node.pay for node in shown) / len(shown),
            lost=sum(node.lost for node in shown) / len(shown),
            per_slot=_per_slot(shown),
            honest_per_slot=_per_slot(others),
            steps_an_hour=3600 * self.version / self.now if self.now else 0.0,
            bad_rows=self._learned_bad / self._learned_rows if self._learned_rows else 0.0,
            bad_row_costs=self._bad_cost / self._learned_bad if self._learned_bad else None,
            honest_lost=sum(node.lost + node.unpaid for node in others),
            honest_rests=sum(node.rests for node in others) / max(1, len(others)),
        )


def _per_slot(nodes: Sequence[Node]) -> float:
    slots = sum(node.leased for node in nodes)
    return sum(node.pay - node.lost for node in nodes) / slots if slots else 0.0


# Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The result of one share of attacking nodes, and of the same pool without them."""

    strategy: str
    share: int
    result: Result
    without: Result

    @property
    def gains(self) -> float:
        """Returns the extra gain per slot over an honest node, as a share of the honest gain."""
        honest = self.result.honest_per_slot or self.without.honest_per_slot
        return self.result.per_slot / honest - 1

    @property
    def stopped(self) -> float:
        """Returns the share of steps lost against the same pool without these nodes; never below zero."""
        return max(0.0, 1 - self.result.steps_an_hour / self.without.steps_an_hour)


def simulate(
    rules: Rules, *, strategies: Sequence[str], shares: Sequence[int], steps: int, seed: int, proven: bool = False
) -> list[Line]:
    """Simulates every strategy with every share of the nodes, in per cent."""
    lines = []
    for share in shares:
        cheats = NODES * share // 100
        without = Run(rules, "honest", cheats=cheats, steps=steps, seed=seed, present=False, proven=proven).play()
        for strategy in strategies:
            result = Run(rules, strategy, cheats=cheats, steps=steps, seed=seed, proven=proven).play()
            lines.append(Line(strategy=strategy, share=share, result=result, without=without))
    return sorted(lines, key=lambda line: list(strategies).index(line.strategy))


def table_of(rules: Rules, lines: Sequence[Line], *, steps: int) -> Table:
    """Returns one table for a set of rules."""
    table = Table(title=f"{rules.name}: {steps} steps, {NODES} nodes; money in MUST, for each node of the strategy")
    columns = ("strategy", "share", "slots", "paid", "slashed", "gain of a slot", "steps/h", "stopped", "bad rows")
    for column in (*columns, "cost of one", "honest lost", "honest rests"):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    for line in lines:
        found = line.result
        cost = found.bad_row_costs
        table.add_row(
            line.strategy,
            f"{line.share} %",
            f"{found.slots:.0f}",
            f"{found.pay / UNIT:.3f}",
            f"{found.lost / UNIT:.3f}",
            f"{line.gains:+.1%}",
            f"{found.steps_an_hour:.0f}",
            f"{line.stopped:.1%}",
            f"{found.bad_rows:.3%}",
            "-" if cost is None else f"{cost / UNIT:.4f}",
            f"{found.honest_lost / UNIT:.3f}",
            f"{found.honest_rests:.2f}",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulates all strategies and prints a table for each set of rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--share", default="1,10,30", help="per cent of the nodes, several with commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    options = parser.parse_args(arguments)
    shares = [int(share) for share in options.share.split(",")]
    strategies = options.strategies.split(",")
    if options.steps < 1 or not all(1 <= share <= 30 for share in shares) or set(strategies) - set(STRATEGIES):
        parser.error(f"--steps is at least 1, a share is 1 to 30, and strategies are {', '.join(STRATEGIES)}")
    for rules in (BEFORE, NOW):
        lines = simulate(rules, strategies=strategies, shares=shares, steps=options.steps, seed=options.seed)
        Console(width=150).print(table_of(rules, lines, steps=options.steps))


if __name__ == "__main__":
    end_in_order()
    main()
