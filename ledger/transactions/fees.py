"""What a transaction offers to be mined (EIP-1559), and how much more it offers when it is not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fees:
    """An offer per gas, in wei.

    Args:
        most: The most that is paid in all (`maxFeePerGas`).
        tip: What of it goes to whoever mines (`maxPriorityFeePerGas`).
    """

    most: int
    tip: int


BUMP_NUMERATOR, BUMP_DENOMINATOR = 9, 8
"""A replacement offers 12.5 % more; nodes refuse less than 10 %, and anvil and Geth round differently."""


def offer(*, base_fee: int, tip: int, limit: int) -> Fees:
    """An offer that stays good while the base fee doubles (six full blocks), and never exceeds `limit`."""
    most = min(2 * base_fee + tip, limit)
    return Fees(most=most, tip=min(tip, most))


def bumped(former: Fees, *, market: Fees, limit: int) -> Fees | None:
    """An offer that replaces `former` and is no worse than the market's; None if `limit` forbids it."""
    most = max(_more(former.most), market.most)
    tip = max(_more(former.tip), market.tip)
    if most > limit:
        if limit < _more(former.most):
            return None
        most = limit
    return Fees(most=most, tip=min(tip, most))


def _more(wei: int) -> int:
    return max(wei + 1, -(-wei * BUMP_NUMERATOR // BUMP_DENOMINATOR))
