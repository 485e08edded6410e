"""Why forging does not pay: the stake inequality of a pool with its own numbers.

A node that forges everything is caught on an audited unit (probability q, the audit floor) and gains the price on the
others. Its expectation per unit is `(1 - q)·price - q·penalty`, which is at most zero when
`penalty ≥ price·(1 - q)/q`. The stake must cover the penalty of all work that is open at a time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ledger.amounts import format_amount
from ledger.client.pools import Escrow, Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Economics:
    """A pool's numbers for one typical node; money in the token's smallest unit."""

    price_per_unit: int
    penalty_per_unit: int
    least_penalty_per_unit: int
    audit_floor_bps: int
    units: int
    pays: int
    """What an accepted submission of `units` pays."""
    costs_if_forged: int
    """What a forged one costs."""
    gain_from_forging: int
    """The expectation per submission of a node that forges everything; never above zero."""
    stake_for_open_work: int
    """What `open_work` submissions bind while they wait for their verdicts."""
    open_work: int
    submissions_covered: int
    """How many more submissions the free escrow can pay."""

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
            "the same, forged and caught, costs": f"{format_amount(self.costs_if_forged)} MUST",
            "forging everything gains on average": (
                f"{format_amount(self.gain_from_forging)} MUST per submission, at the audit floor"
            ),
            f"stake for {self.open_work} open submissions": f"{format_amount(self.stake_for_open_work)} MUST",
            "the escrow covers": f"{self.submissions_covered:,} more submissions",
        }


def explain_economics(terms: Terms, escrow: Escrow, *, units: int, open_work: int) -> Economics:
    """Works out a pool's economics for submissions of `units` with `open_work` of them open at a time."""
    pays, costs = terms.price_per_unit * units, terms.penalty_per_unit * units
    q = terms.audit_floor_bps
    return Economics(
        price_per_unit=terms.price_per_unit,
        penalty_per_unit=terms.penalty_per_unit,
        least_penalty_per_unit=terms.least_penalty,
        audit_floor_bps=q,
        units=units,
        pays=pays,
        costs_if_forged=costs,
        gain_from_forging=-(-((10_000 - q) * pays - q * costs) // 10_000),
        stake_for_open_work=costs * open_work,
        open_work=open_work,
        submissions_covered=escrow.free // pays if pays else 0,
    )
