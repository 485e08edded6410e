"""Computes and prints audit shares and costs of attacks for `muster pool economics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from cli.output.printing import say, show_fields, show_table
from cli.output.tables import Column, Columns
from ledger.amounts import format_amount
from ledger.client.pools import Terms
from ledger.economics import (
    Collusion,
    DeliveryRules,
    Economics,
    Poisoning,
    Stalling,
    Sybils,
    VerdictFees,
    collusion,
    fees,
    poisoning,
    stalling,
    sybils,
)
from validator.audit.deterrence import AuditStage, RowForgery, row_forgery, stages
from validator.audit.draw import BASIS_POINTS, rows_drawn
from validator.audit.rate import RatePolicy
from validator.audit.second_looks import LookPolicy

COLLUSION = Columns.of(
    "corrupt",
    "of",
    Column("launders_by_dispute", least=8),
    Column("launders_as_first_judge", least=8),
    Column("slashes_honest_work", least=8),
    "gain",
)
STALLING = Columns.of(
    Column("way", least=16), "nodes", "stake_bound", Column("pay_missed", drop=1), Column("run_goes_on_at", least=8)
)
AUDITED = Columns.of("clean_verdicts", "share")
FORGERIES = Columns.of("forged_rows", "caught", "gains_on_average")

_MILLIONTH = 10**12
"""A millionth of a MUST, in the token's smallest unit."""
_COUNTS = frozenset({"validators", "corrupt", "nodes", "honest_files", "look_bps"})
"""Names of integer fields that are not amounts of money; JSON has them as numbers, not as strings."""


def audit_stages(economics: Economics) -> tuple[AuditStage, ...]:
    """Returns the share of a node's rows that a validator recomputes, by number of clean verdicts.

    The validator has the default policy.
    """
    return stages(RatePolicy(), floor=economics.audit_floor_bps / BASIS_POINTS)


def forgeries(economics: Economics, *, rows: int) -> tuple[RowForgery, ...]:
    """Returns the consequences of forging one row, a tenth, half or all rows of a file.

    Validators recompute the share of rows that the audit floor sets.
    """
    chosen = sorted({1, max(1, rows // 10), max(1, rows // 2), rows})
    share = economics.audit_floor_bps / BASIS_POINTS
    pays, costs = economics.pays, economics.costs_if_forged
    return tuple(row_forgery(rows=rows, forged=each, share=share, pays=pays, costs=costs) for each in chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacks:
    """Costs of attacks in a pool, and costs and earnings of its verdicts."""

    poisoning: Poisoning
    collusion: tuple[Collusion, ...]
    """One entry per number of corrupt validators, from 1 on; empty in a pool without validators."""
    stalling: tuple[Stalling, ...]
    sybils: Sybils
    fees: VerdictFees

    def raw(self) -> dict[str, object]:
        """Returns values for JSON, with amounts of money as decimal strings."""
        return {
            "poisoning": _raw(self.poisoning),
            "collusion": [_raw(each) for each in self.collusion],
            "stalling": [_raw(each) for each in self.stalling],
            "sybils": _raw(self.sybils),
            "fees": {**_raw(self.fees), "pays": self.fees.pays},
        }


def attacks(
    terms: Terms,
    economics: Economics,
    rules: DeliveryRules,
    *,
    rows: int,
    validators: int,
    most_corrupt: int,
    look_cost: int,
) -> Attacks:
    """Computes the costs of attacks, for validators with default policies.

    Args:
        terms: Terms of the pool.
        economics: Economic parameters of the pool.
        rules: Delivery rules of the orchestrator.
        rows: Rows of a typical file.
        validators: Number of validators of the pool.
        most_corrupt: Maximum number of corrupt validators to show.
        look_cost: Cost to a validator of a verdict or a second look, in the token's smallest unit.

    Raises:
        InvalidInput: `most_corrupt` is larger than the number of validators.
    """
    share = economics.audit_floor_bps / BASIS_POINTS
    corrupt = range(1, most_corrupt + 1) if validators else ()
    return Attacks(
        poisoning=poisoning(economics, rows=rows, drawn=rows_drawn(share, rows)),
        collusion=tuple(
            collusion(
                economics,
                validators=validators,
                corrupt=k,
                looked_at=looked_at(terms, honest=validators - k, corrupt=k),
            )
            for k in corrupt
        ),
        stalling=stalling(terms, economics, rules),
        sybils=sybils(terms, economics, honest_files=audit_stages(economics)[-1].clean),
        fees=fees(terms, economics, cost=look_cost),
    )


def looked_at(terms: Terms, *, honest: int, corrupt: int) -> float:
    """Returns the probability that an honest validator re-examines work that a corrupt one accepted.

    The ledger draws verdicts for which it pays one second look, but a second corrupt validator can take that look. Each
    honest validator also chooses verdicts for unpaid second looks, with its own secret.
    """
    if honest == 0:
        return 0.0
    paid = terms.look_bps / BASIS_POINTS if corrupt == 1 else 0.0
    return 1 - (1 - paid) * (1 - LookPolicy().accepted) ** honest


def show_attacks(found: Attacks) -> None:
    """Prints the cost of each attack."""
    say("")
    say("cost of attacks, for nodes whose rows are audited at the audit floor:")
    poison, more = found.poisoning, found.sybils
    per_row = poison.per_learned_row // _MILLIONTH * _MILLIONTH
    show_fields(
        {
            "one bad row is caught": f"{_percent(poison.caught)} of the time, and then costs {_must(poison.if_caught)}",
            "each bad row that is learned": f"costs {_must(per_row)} on average",
            "one more key": (
                f"binds {_must(more.binds)}, and reaches the floor after {more.honest_files} honest files "
                f"(paid {_must(more.work_before)})"
            ),
        }
    )
    say("")
    say("validators that collude (probabilities; the gain is per forged file, with the more profitable of two ways):")
    show_table(
        COLLUSION,
        [
            (
                each.corrupt,
                each.validators,
                _percent(each.launders_by_dispute),
                _percent(each.launders_first),
                _percent(each.frames),
                f"{_rounded(each.gain)} MUST",
            )
            for each in found.collusion
        ],
        empty="the pool has no validators",
    )
    say("cost of stalling the run for an hour:")
    show_table(
        STALLING,
        [
            (each.way, each.nodes, _must(each.stake_bound), _must(each.pay_missed), _percent(each.slowed_to))
            for each in found.stalling
        ],
    )
    paid = found.fees
    say("verdicts:")
    show_fields(
        {
            "a verdict or a paid look earns": _must(paid.verdict_fee),
            "second looks are paid for": f"{paid.look_bps / 100:g} % of first verdicts",
            "verdicts of a submission cost": (
                f"{_must(paid.per_submission)} on average ({_percent(paid.of_reward)} of its reward), "
                f"at most {_must(paid.most_per_submission)}"
            ),
            "a look costs its validator": _must(paid.cost),
            "honest looking": (
                f"earns {_must(paid.earns)} a look" if paid.pays else f"does not pay: {_must(paid.earns)} a look"
            ),
        }
    )


def show_audits(found: Sequence[AuditStage], forged: Sequence[RowForgery], policy: RatePolicy | None = None) -> None:
    """Prints the audited shares of rows, and the gains from forging rows."""
    policy = policy or RatePolicy()
    say("")
    say("share of rows that a validator recomputes, for a node without failures (the validator rescores every row):")
    show_table(AUDITED, [(stage.clean, _percent(stage.share)) for stage in found], empty="")
    say(
        f"after any failure: all rows until the node has {policy.trial_after_failure} clean verdicts; validators may "
        "require more"
    )
    say("")
    say(f"forging some rows of each file of {forged[0].rows} rows, at the audit floor:")
    rows = [(each.forged, _percent(each.caught), f"{_rounded(each.gain)} MUST per submission") for each in forged]
    show_table(FORGERIES, rows)


def _raw(value: object) -> dict[str, object]:
    fields: dict[str, object] = asdict(value)  # type: ignore[call-overload]
    return {name: str(each) if type(each) is int and name not in _COUNTS else each for name, each in fields.items()}


def _must(amount: int) -> str:
    return f"{format_amount(amount)} MUST"


def _rounded(amount: int) -> str:
    """Formats an amount, rounded up to a millionth of a MUST.

    Rounding up never understates a forger's gain.
    """
    return format_amount(-(-amount // _MILLIONTH) * _MILLIONTH)


def _percent(share: float) -> str:
    return f"{share:.2%}".replace(".00%", "%")
