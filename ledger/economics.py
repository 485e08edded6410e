"""Why attacks do not pay: the stake inequality, and what poisoning, laundering, stalling and Sybils cost in one pool.

A node that forges everything is caught on an audited unit (probability q, the audit floor) and gains the price on the
others. Its expectation per unit is `(1 - q)·price - q·penalty`, which is at most zero when
`penalty ≥ price·(1 - q)/q`. The reward is for the units of the file; the penalty is for all units of the lease, so
claiming few units does not make forging cheap. The stake must cover the penalty of all work that is open at a time.

Money is in the token's smallest unit. What costs an attacker something is rounded down and what gains it something is
rounded up, so no figure makes the pool look safer than it is.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import timedelta
from fractions import Fraction

from ledger.amounts import format_amount
from ledger.client.pools import MAX_FEES, Escrow, Terms
from ledger.client.work import LOST_DISPUTE_BPS
from protocol.errors import InvalidInput

CONFIRMED_FROM = 4
"""The number of validators from which on one alone can't overturn a verdict (`WorkLedger.CONFIRMED_FROM`)."""

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Economics:
    """A pool's numbers for one typical node; money in the token's smallest unit."""

    price_per_unit: int
    penalty_per_unit: int
    least_penalty_per_unit: int
    audit_floor_bps: int
    units: int
    """Of a typical file."""
    max_units: int
    """Of its lease."""
    pays: int
    """What an accepted file pays."""
    costs_if_forged: int
    """What a forged one costs: the penalty for all units of the lease."""
    lost_dispute_costs: int
    """What a dispute of a rejection costs if the work stays rejected, as `WorkLedger` takes it; a won one is free."""
    gain_from_forging: int
    """The expectation per submission of a node that forges everything; never above zero."""
    stake_for_open_work: int
    """The penalties that `open_work` submissions lock while they wait for their verdicts."""
    open_work: int
    reserved: int
    """What one submission reserves of the escrow: its reward and `MAX_FEES` fees."""
    submissions_covered: int
    """How many more submissions the free escrow can cover."""

    def raw(self) -> dict[str, object]:
        """For machines: integers as decimal strings."""
        return {name: str(value) for name, value in asdict(self).items()}

    def lines(self) -> dict[str, object]:
        """For people."""
        audit = self.audit_floor_bps / 100
        return {
            "one work unit pays": f"{format_amount(self.price_per_unit)} MUST",
            "one forged unit costs": f"{format_amount(self.penalty_per_unit)} MUST",
            "least that deters": (
                f"{format_amount(self.least_penalty_per_unit)} MUST = price·(1 - q)/q at audit floor q = {audit:g} %"
            ),
            f"a submission of {self.units} units pays": f"{format_amount(self.pays)} MUST",
            "the same, forged and caught, costs": (
                f"{format_amount(self.costs_if_forged)} MUST, for all {self.max_units} units of its lease"
            ),
            "disputing its rejection costs": (
                f"nothing if the dispute is won, {format_amount(self.lost_dispute_costs)} MUST if it is lost "
                f"({LOST_DISPUTE_BPS / 100:g} % of that penalty)"
            ),
            "forging everything gains on average": (
                f"{format_amount(self.gain_from_forging)} MUST per submission, at the audit floor"
            ),
            f"stake for {self.open_work} open submissions": f"{format_amount(self.stake_for_open_work)} MUST",
            "a submission reserves": f"{format_amount(self.reserved)} MUST: its reward and {MAX_FEES} verdict fees",
            "the escrow covers": f"{self.submissions_covered:,} more submissions",
        }


def explain_economics(
    terms: Terms, escrow: Escrow, *, units: int, open_work: int, max_units: int | None = None
) -> Economics:
    """Works out a pool's economics for typical submissions.

    Args:
        terms: The pool's.
        escrow: The pool's.
        units: Of a typical file.
        open_work: How many of a node's submissions are open at a time.
        max_units: Of its lease; as many as are in the file if left out.

    Raises:
        InvalidInput: The lease has fewer units than the file.
    """
    leased = units if max_units is None else max_units
    if leased < units:
        raise InvalidInput(
            f"a lease of {leased} units can't hold a file of {units}", hint="--max-units is at least --units"
        )
    pays, costs = terms.price_per_unit * units, terms.penalty_per_unit * leased
    q = terms.audit_floor_bps
    reserved = pays + terms.reserved_fees
    return Economics(
        price_per_unit=terms.price_per_unit,
        penalty_per_unit=terms.penalty_per_unit,
        least_penalty_per_unit=terms.least_penalty,
        audit_floor_bps=q,
        units=units,
        max_units=leased,
        pays=pays,
        costs_if_forged=costs,
        lost_dispute_costs=costs * LOST_DISPUTE_BPS // 10_000,
        gain_from_forging=math.ceil(Fraction((10_000 - q) * pays - q * costs, 10_000)),
        stake_for_open_work=costs * open_work,
        open_work=open_work,
        reserved=reserved,
        submissions_covered=escrow.free // reserved if reserved else 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisoning:
    """What one bad row in an otherwise honest file costs a node that is audited at the floor.

    Args:
        caught: The probability that the row is drawn.
        if_caught: The penalty and the reward that is not paid.
        per_learned_row: The expected cost for each bad row that is learned: `caught / (1 - caught) · if_caught`.
    """

    caught: float
    if_caught: int
    per_learned_row: int


def poisoning(economics: Economics, *, rows: int, drawn: int) -> Poisoning:
    """Works out what it costs to poison one row.

    Args:
        economics: The pool's.
        rows: Of a file, at least 1.
        drawn: How many of them are computed again at the audit floor, 1 to `rows`.
    """
    if_caught = economics.costs_if_forged + economics.pays
    missed = rows - drawn
    per_learned = if_caught * drawn // missed if missed else 0
    return Poisoning(caught=drawn / rows, if_caught=if_caught, per_learned_row=per_learned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """The probabilities with which k corrupt validators of n decide over one file, by the rules of `WorkLedger`.

    A corrupt validator gives the first verdict or leaves it to an honest one, as it likes: the ledger orders the
    validators of a dispute, not those of a first verdict. The honest ones are at work, and take their turns.

    Args:
        launders_by_dispute: A forged file is accepted after an honest validator called it forged and the node disputed.
        launders_first: A forged file stays accepted after a corrupt validator accepted it and an honest one disputed.
        frames_first: An honest file is slashed after a corrupt validator called it forged and the node disputed.
        frames_by_dispute: An honest file is slashed after an honest validator accepted it and a corrupt one disputed.
    """

    launders_by_dispute: Fraction
    launders_first: Fraction
    frames_first: Fraction
    frames_by_dispute: Fraction

    @property
    def launders(self) -> Fraction:
        """A forged file is paid although an honest validator looks at it: the better of the two ways."""
        return max(self.launders_by_dispute, self.launders_first)

    @property
    def frames(self) -> Fraction:
        """An honest file costs its penalty although its node disputes: the better of the two ways."""
        return max(self.frames_first, self.frames_by_dispute)


def chances(*, validators: int, corrupt: int) -> Chances:
    """Works out what `corrupt` of `validators` can decide together.

    Args:
        validators: How many the pool has, at least 1.
        corrupt: How many of them, 0 to `validators`.

    Raises:
        InvalidInput: There are more corrupt validators than validators.
    """
    if not 0 <= corrupt <= validators or validators < 1:
        raise InvalidInput(f"{corrupt} of {validators} validators", hint="--corrupt is at most the pool's validators")
    honest, others, confirmed = validators - corrupt, validators - 1, validators >= CONFIRMED_FROM
    zero, one = Fraction(), Fraction(1)
    if corrupt == 0:
        return Chances(launders_by_dispute=zero, launders_first=zero, frames_first=zero, frames_by_dispute=zero)
    return Chances(
        # The honest judge can't decide; where nobody else can, its verdict stands without the penalty and without pay.
        launders_by_dispute=(
            _decided(eligible=others, corrupt=corrupt, agree=False, confirmed=confirmed) if honest else one
        ),
        # The corrupt judge and the honest disputer can't decide; where nobody else can, the work stays accepted.
        launders_first=(
            _decided(eligible=others - 1, corrupt=corrupt - 1, agree=True, confirmed=confirmed)
            if honest and others > 1
            else one
        ),
        frames_first=_decided(eligible=others, corrupt=corrupt - 1, agree=True, confirmed=confirmed),
        # The honest judge and the corrupt disputer can't decide.
        frames_by_dispute=(
            _decided(eligible=others - 1, corrupt=corrupt - 1, agree=False, confirmed=confirmed) if honest else zero
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collusion:
    """What k of n validators can do that act together.

    Args:
        validators: n, all that may judge.
        corrupt: k of them.
        launders_by_dispute: As in `Chances`.
        launders_first: The probability that a forged file is accepted when a corrupt validator judges it first, with
            second looks by the honest ones at a share of the work.
        frames: The probability that honest work is slashed although its node disputes.
        gain: What laundering gains per forged file on average, by the better of the two ways.
    """

    validators: int
    corrupt: int
    launders_by_dispute: float
    launders_first: float
    frames: float
    gain: int


def collusion(economics: Economics, *, validators: int, corrupt: int, looked_at: float) -> Collusion:
    """Works out what it pays `corrupt` of `validators` to act together.

    Args:
        economics: The pool's.
        validators: How many the pool has, at least 1.
        corrupt: How many of them, 0 to `validators`.
        looked_at: The probability that an honest validator looks at work again that was accepted.

    Raises:
        InvalidInput: There are more corrupt validators than validators.
    """
    found = chances(validators=validators, corrupt=corrupt)
    looks = Fraction(looked_at).limit_denominator(10**6) if corrupt < validators else Fraction()
    first = (1 - looks) + looks * found.launders_first if corrupt else Fraction()
    best = max(found.launders_by_dispute, first)
    return Collusion(
        validators=validators,
        corrupt=corrupt,
        launders_by_dispute=float(found.launders_by_dispute),
        launders_first=float(first),
        frames=float(found.frames),
        gain=math.ceil(best * economics.pays - (1 - best) * economics.costs_if_forged) if corrupt else 0,
    )


def _decided(*, eligible: int, corrupt: int, agree: bool, confirmed: bool) -> Fraction:
    """The probability that corrupt validators decide a dispute as they like.

    The validators that may decide are ordered at random. The first alone decides where no second one is needed, and
    where it agrees with the first verdict; one that contradicts it needs the next one to agree.

    Args:
        eligible: How many may decide.
        corrupt: How many of them are corrupt.
        agree: Whether the first verdict is what the corrupt ones want.
        confirmed: Whether a verdict that contradicts the first needs a second one.
    """
    if eligible <= 0 or corrupt <= 0:
        return Fraction()
    first = Fraction(corrupt, eligible)
    if not confirmed:
        return first
    following = Fraction(corrupt if agree else corrupt - 1, eligible - 1) if eligible > 1 else Fraction()
    return first + (1 - first) * following if agree else first * following


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRules:
    """The orchestrator's rules that decide how long a node can hold a step up.

    Args:
        found_after: How long a submission without its file goes unnoticed.
        lease: How long a slot is leased.
        typical: How long a typical node takes for a slot.
        least: Leases before a node is judged by what it delivers.
        rest: How long a node rests whose delivered share is too low.
        providers_per_step: How many providers it takes to hold all slots of a step.
    """

    found_after: timedelta
    lease: timedelta
    typical: timedelta
    least: int
    rest: timedelta
    providers_per_step: int

    def __post_init__(self) -> None:
        """Refuses times that are not above zero, and counts below one."""
        times = (self.found_after, self.lease, self.typical, self.rest)
        if min(times) <= timedelta() or min(self.least, self.providers_per_step) < 1:
            raise InvalidInput("times and counts of the delivery rules must be above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalling:
    """What it takes to hold a run up for one hour.

    Args:
        way: How.
        nodes: How many nodes must take part, each of a provider of its own.
        stake_bound: What their memberships and the penalties of their open work bind; it comes back.
        pay_missed: What they would have been paid for the slots that they did not deliver.
        slowed_to: The share of its usual speed at which the run goes on.
    """

    way: str
    nodes: int
    stake_bound: int
    pay_missed: int
    slowed_to: float


def stalling(terms: Terms, economics: Economics, rules: DeliveryRules) -> tuple[Stalling, ...]:
    """Works out what ghosts, nodes that let leases expire, and slow nodes cost, for an hour of a run.

    A node that does not deliver is stopped by its record: `least` leases at once, then one after each rest. A slow
    node delivers, so nothing stops it; it slows the run down to the length of a lease.
    """
    leases = rules.least + HOUR // rules.rest
    per_node = terms.stake_per_capacity * max(1, terms.min_capacity)

    def undelivered(way: str, held: timedelta, *, locks: int) -> Stalling:
        nodes = math.ceil(HOUR / (leases * held))
        open_work = leases * locks
        return Stalling(
            way=way,
            nodes=nodes,
            stake_bound=nodes * (per_node + open_work),
            pay_missed=nodes * leases * economics.pays,
            slowed_to=0.0,
        )

    slow = rules.providers_per_step
    return (
        undelivered("ghost: submits, never uploads", rules.found_after, locks=economics.costs_if_forged),
        undelivered("absent: leases, delivers nothing", rules.lease, locks=0),
        Stalling(
            way="slow: delivers at the end of each lease",
            nodes=slow,
            stake_bound=slow * (per_node + economics.costs_if_forged),
            pay_missed=0,
            slowed_to=min(1.0, rules.typical / rules.lease),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sybils:
    """What one more key costs.

    Args:
        binds: The stake of its membership and the penalties of its open work; it comes back after unbonding.
        honest_files: How many files it must deliver without fault before it is audited at the floor.
        work_before: What these files would cost at their price, which they are paid.
    """

    binds: int
    honest_files: int
    work_before: int


def sybils(terms: Terms, economics: Economics, *, honest_files: int) -> Sybils:
    """Works out what one more key of an attacker costs.

    Args:
        terms: The pool's.
        economics: The pool's.
        honest_files: From how many clean verdicts on a node is audited at the floor.
    """
    return Sybils(
        binds=terms.stake_per_capacity * max(1, terms.min_capacity) + economics.stake_for_open_work,
        honest_files=honest_files,
        work_before=honest_files * economics.pays,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictFees:
    """What verdicts cost a pool and earn a validator.

    Args:
        verdict_fee: For a verdict or a paid second look that the final outcome bears out.
        look_bps: The share of first verdicts for which a second look is paid.
        per_submission: What a submission costs in fees on average, without disputes.
        most_per_submission: What it reserves.
        cost: What one verdict or look costs a validator, as its owner says.
        earns: What one verdict or look earns after that; below zero it does not pay.
        of_reward: Average fees of a submission as a share of its reward; 0 if it pays nothing.
    """

    verdict_fee: int
    look_bps: int
    per_submission: int
    most_per_submission: int
    cost: int
    earns: int
    of_reward: float

    @property
    def pays(self) -> bool:
        """Whether honest looking pays."""
        return self.earns > 0


def fees(terms: Terms, economics: Economics, *, cost: int) -> VerdictFees:
    """Works out what verdicts cost the pool and earn a validator.

    Args:
        terms: The pool's.
        economics: The pool's.
        cost: What one verdict or look costs a validator: computing and gas.
    """
    average = math.ceil(terms.verdict_fee * (1 + Fraction(terms.look_bps, 10_000)))
    return VerdictFees(
        verdict_fee=terms.verdict_fee,
        look_bps=terms.look_bps,
        per_submission=average,
        most_per_submission=terms.reserved_fees,
        cost=cost,
        earns=terms.verdict_fee - cost,
        of_reward=average / economics.pays if economics.pays else 0.0,
    )
