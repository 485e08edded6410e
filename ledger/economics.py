"""Economics of a pool: the stake inequality, and the cost of poisoning, laundering, stalling and Sybil attacks.

A node that forges everything is caught on each audited unit (probability q, the audit floor) and gains the price on
each other unit. Its expected gain per unit is `(1 - q)·price - q·penalty`, which is at most zero when
`penalty ≥ price·(1 - q)/q`. The reward is for the units of the file; the penalty is for all units of the lease, so a
node can't make forging cheap by claiming few units. The stake must cover the penalties of all open work.

Money is in the token's smallest unit. Costs of an attacker are rounded down and gains of an attacker are rounded up, so
that no figure makes the pool look safer than it is.
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
"""In pools with at least this many validators, two must agree to overturn a verdict (`WorkLedger.CONFIRMED_FROM`)."""

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Economics:
    """Figures of a pool for one typical node; money in the token's smallest unit."""

    price_per_unit: int
    penalty_per_unit: int
    least_penalty_per_unit: int
    audit_floor_bps: int
    units: int
    """Units of a typical file."""
    max_units: int
    """Maximum units that the lease of a typical file allows."""
    pays: int
    """Reward of an accepted file."""
    costs_if_forged: int
    """Penalty of a forged file, for all units of the lease."""
    lost_dispute_costs: int
    """Cost of a lost dispute of a rejection, as `WorkLedger` charges it; a won dispute is free."""
    gain_from_forging: int
    """Expected gain per submission of a node that forges everything; never above zero."""
    stake_for_open_work: int
    """Stake that `open_work` submissions lock for their penalties."""
    open_work: int
    reserved: int
    """Escrow that one submission reserves: its reward and `MAX_FEES` fees."""
    submissions_covered: int
    """Number of further submissions that the free escrow covers."""

    def raw(self) -> dict[str, object]:
        """Returns the figures for JSON output: integers as decimal strings."""
        return {name: str(value) for name, value in asdict(self).items()}

    def lines(self) -> dict[str, object]:
        """Returns the figures as labelled text."""
        audit = self.audit_floor_bps / 100
        return {
            "one work unit pays": f"{format_amount(self.price_per_unit)} MUST",
            "one forged unit costs": f"{format_amount(self.penalty_per_unit)} MUST",
            "the least penalty that deters": (
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
    """Computes a pool's economics for typical submissions.

    Args:
        terms: The pool's terms.
        escrow: The pool's escrow.
        units: Units of a typical file.
        open_work: Number of submissions of a node that are open at a time.
        max_units: Maximum units that the file's lease allows; by default the units of the file.

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
    """Cost of one bad row in an otherwise honest file, at the audit floor.

    Args:
        caught: Probability that the audit draws the row.
        if_caught: The penalty plus the lost reward.
        per_learned_row: Expected cost per bad row that reaches training: `caught / (1 - caught) · if_caught`.
    """

    caught: float
    if_caught: int
    per_learned_row: int


def poisoning(economics: Economics, *, rows: int, drawn: int) -> Poisoning:
    """Computes the cost of poisoning one row.

    Args:
        economics: The pool's economics.
        rows: Rows of a file, at least 1.
        drawn: Rows that a validator recomputes at the audit floor, 1 to `rows`.
    """
    if_caught = economics.costs_if_forged + economics.pays
    missed = rows - drawn
    per_learned = if_caught * drawn // missed if missed else 0
    return Poisoning(caught=drawn / rows, if_caught=if_caught, per_learned_row=per_learned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """Probabilities that k corrupt of n validators decide the outcome of one file, by the rules of `WorkLedger`.

    A corrupt validator chooses whether to give the first verdict: the ledger determines the order of validators only
    in a dispute. Honest validators are assumed to be online and to take their turns.

    Args:
        launders_by_dispute: A forged file is accepted, although an honest validator called it forged, because the node
            disputed the verdict.
        launders_first: A forged file that a corrupt validator accepted stays accepted although an honest validator
            disputes the verdict.
        frames_first: The node of an honest file that a corrupt validator judged forged is slashed although the node
            disputes the verdict.
        frames_by_dispute: The node of an honest file that an honest validator accepted is slashed after a corrupt
            validator disputes the verdict.
    """

    launders_by_dispute: Fraction
    launders_first: Fraction
    frames_first: Fraction
    frames_by_dispute: Fraction

    @property
    def frames(self) -> Fraction:
        """Probability that colluding validators get an honest file slashed, by a first verdict or by a dispute."""
        return max(self.frames_first, self.frames_by_dispute)


def chances(*, validators: int, corrupt: int) -> Chances:
    """Computes the probabilities that colluding validators decide an outcome.

    Args:
        validators: Validators of the pool, at least 1.
        corrupt: How many of them collude, 0 to `validators`.

    Raises:
        InvalidInput: There are more corrupt validators than validators.
    """
    if not 0 <= corrupt <= validators or validators < 1:
        raise InvalidInput(
            f"{corrupt} of {validators} validators can't be corrupt",
            hint="--corrupt is at most the number of the pool's validators",
        )
    honest, others, confirmed = validators - corrupt, validators - 1, validators >= CONFIRMED_FROM
    zero, one = Fraction(), Fraction(1)
    if corrupt == 0:
        return Chances(launders_by_dispute=zero, launders_first=zero, frames_first=zero, frames_by_dispute=zero)
    return Chances(
        # The honest judge can't decide the dispute. If no other validator can, the judge's verdict becomes a rejection:
        # the node is neither slashed nor paid.
        launders_by_dispute=(
            _decided(eligible=others, corrupt=corrupt, agree=False, confirmed=confirmed) if honest else one
        ),
        # The corrupt judge and the honest disputer can't decide. If no other validator can, the work stays accepted.
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
    """Success probability and gain of k colluding validators of n.

    Args:
        validators: n, the number of validators of the pool.
        corrupt: k, the number of colluding validators.
        launders_by_dispute: As in `Chances`.
        launders_first: Probability that a forged file is accepted when a corrupt validator judges it first and honest
            validators take a second look at a share of the accepted work.
        frames: Probability that the node of an honest file is slashed, as in `Chances`.
        gain: Average gain per forged file from laundering, in the better of the two ways.
    """

    validators: int
    corrupt: int
    launders_by_dispute: float
    launders_first: float
    frames: float
    gain: int


def collusion(economics: Economics, *, validators: int, corrupt: int, looked_at: float) -> Collusion:
    """Computes the success probabilities and the gain if `corrupt` of the pool's `validators` collude.

    Args:
        economics: The pool's economics.
        validators: Validators of the pool, at least 1.
        corrupt: How many of them collude, 0 to `validators`.
        looked_at: Probability that an honest validator takes a second look at accepted work.

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
    """Returns the probability that corrupt validators decide a dispute in their favour.

    The eligible validators are in random order. The first validator in this order decides alone if it agrees with
    the first verdict, or if `confirmed` is False. Otherwise the second validator in this order decides.

    Args:
        eligible: Validators that may decide.
        corrupt: How many of them are corrupt.
        agree: Whether the first verdict is the one that the corrupt validators want.
        confirmed: Whether a verdict that contradicts the first one needs a second validator.
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
    """The orchestrator's rules that limit how long a node can delay a step.

    Args:
        found_after: Time until a submission without an uploaded file is detected.
        lease: Duration of a lease.
        typical: Time that a typical node takes for a slot.
        least: Leases that a node gets before its delivery rate counts.
        pause: Pause between leases of a node whose delivery rate is too low.
        providers_per_step: Number of providers needed to hold all slots of a step.
    """

    found_after: timedelta
    lease: timedelta
    typical: timedelta
    least: int
    pause: timedelta
    providers_per_step: int

    def __post_init__(self) -> None:
        """Checks that all times are above zero and all counts are at least one."""
        times = (self.found_after, self.lease, self.typical, self.pause)
        if min(times) <= timedelta() or min(self.least, self.providers_per_step) < 1:
            raise InvalidInput("times and counts of the delivery rules must be above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalling:
    """Cost of delaying a run for one hour.

    Args:
        way: Description of the attack.
        nodes: Nodes needed for the attack, each of its own provider.
        stake_bound: Stake locked by these nodes' memberships and the penalties of their open work; it is not lost.
        pay_missed: Rewards that these nodes miss for the slots that they did not deliver.
        slowed_to: Speed of the run during the attack, as a share of its normal speed.
    """

    way: str
    nodes: int
    stake_bound: int
    pay_missed: int
    slowed_to: float


def stalling(terms: Terms, economics: Economics, rules: DeliveryRules) -> tuple[Stalling, ...]:
    """Computes the cost of delaying a run for an hour: by ghosts, by expired leases, and by slow nodes.

    A ghost submits work and never uploads the file. A node that does not deliver is throttled: it gets
    `rules.least` leases at once, then one after each pause of `rules.pause`. A slow node delivers and is not throttled;
    each of its slots takes the whole time of its lease.
    """
    leases = rules.least + HOUR // rules.pause
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
    """Cost of one more Sybil key.

    Args:
        binds: Stake locked by the node's membership and the penalties of its open work; it can be unbonded later.
        honest_files: Honest files that the node must deliver before its audit rate falls to the floor.
        work_before: Price of those files, which the pool pays for.
    """

    binds: int
    honest_files: int
    work_before: int


def sybils(terms: Terms, economics: Economics, *, honest_files: int) -> Sybils:
    """Computes the cost of one more Sybil key.

    Args:
        terms: The pool's terms.
        economics: The pool's economics.
        honest_files: Clean verdicts after which a node is audited at the floor.
    """
    return Sybils(
        binds=terms.stake_per_capacity * max(1, terms.min_capacity) + economics.stake_for_open_work,
        honest_files=honest_files,
        work_before=honest_files * economics.pays,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictFees:
    """Verdict fees: cost for the pool and profit of a validator.

    Args:
        verdict_fee: Fee for a verdict or paid second look that agrees with the final outcome.
        look_bps: Share of first verdicts for which a second look is paid, in basis points.
        per_submission: Average fees per submission, without disputes.
        most_per_submission: Fees that a submission reserves.
        cost: Cost of one verdict or second look for the validator, given by the caller.
        earns: Profit of one verdict or second look: fee minus cost.
        of_reward: Average fees of a submission as a share of its reward; 0 if the reward is zero.
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
        """True if a verdict earns more than it costs."""
        return self.earns > 0


def fees(terms: Terms, economics: Economics, *, cost: int) -> VerdictFees:
    """Computes the cost of verdicts for the pool and the profit of a validator.

    Args:
        terms: The pool's terms.
        economics: The pool's economics.
        cost: Compute and gas cost of one verdict or second look for a validator.
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
