"""Terms, escrow and delivery rules of a pool with typical values."""

from __future__ import annotations

from datetime import timedelta

from ledger.amounts import UNIT
from ledger.client.pools import Escrow, Terms
from ledger.economics import (
    DeliveryRules,
    Economics,
    explain_economics,
)

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
        max_nodes=100,
        min_capacity=1,
        verdict_fee=UNIT // 1_000,
    )
)


ESCROW = Escrow(balance=10 * UNIT, reserved=UNIT)


RULES = DeliveryRules(
    found_after=timedelta(seconds=5),
    lease=timedelta(seconds=600),
    typical=timedelta(seconds=150),
    least=5,
    pause=timedelta(seconds=600),
    providers_per_step=3,
)


def economics(units: int = 384, max_units: int | None = None) -> Economics:
    return explain_economics(TERMS, ESCROW, units=units, max_units=max_units, open_work=8)
