"""What the audit policy adds to a pool's economics: shares by a node's age, and what forging some rows comes to."""

from __future__ import annotations

from collections.abc import Sequence

from cli.output import say, show_table
from ledger.amounts import format_amount
from ledger.economics import Economics
from validator.audit.deterrence import RowForgery, Stage, row_forgery, stages
from validator.audit.draw import BASIS_POINTS
from validator.audit.rate import RatePolicy

_MILLIONTH = 10**12


def audit_stages(economics: Economics) -> tuple[Stage, ...]:
    """How much of a node's files is computed again, by a validator with the policy that it has by default."""
    return stages(RatePolicy(), floor=economics.audit_floor_bps / BASIS_POINTS)


def forgeries(economics: Economics, *, rows: int) -> tuple[RowForgery, ...]:
    """What it comes to to forge one row, a tenth of them, half of them, or all, at the audit floor."""
    chosen = sorted({1, max(1, rows // 10), max(1, rows // 2), rows})
    share = economics.audit_floor_bps / BASIS_POINTS
    pays, costs = economics.pays, economics.costs_if_forged
    return tuple(row_forgery(rows=rows, forged=each, share=share, pays=pays, costs=costs) for each in chosen)


def show_audits(found: Sequence[Stage], forged: Sequence[RowForgery], policy: RatePolicy | None = None) -> None:
    """Prints both."""
    policy = policy or RatePolicy()
    say("")
    say("rows computed again, of a node without failures (every row is scored again, whatever its age):")
    show_table(
        ("clean_verdicts", "share"), [(stage.clean, _percent(stage.share)) for stage in found], as_json=False, empty=""
    )
    say(f"after any failure: all rows for {policy.trial_after_failure} clean verdicts; validators may ask for more")
    say("")
    say(f"forging some rows of each file of {forged[0].rows}, at the floor:")
    rows = [(each.forged, _percent(each.caught), f"{_rounded(each.gain)} MUST per submission") for each in forged]
    show_table(("forged_rows", "caught", "gains on average"), rows, as_json=False, empty="")


def _rounded(amount: int) -> str:
    """To a millionth, in favour of the forger."""
    return format_amount(-(-amount // _MILLIONTH) * _MILLIONTH)


def _percent(share: float) -> str:
    return f"{share:.2%}".replace(".00%", "%")
