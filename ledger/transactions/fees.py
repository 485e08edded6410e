"""EIP-1559 fees of a transaction, and of its replacement if it is not mined in time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fees:
    """Fees per gas, in wei.

    Args:
        most: Maximum of base fee and tip together (`maxFeePerGas`).
        tip: Maximum tip for the block producer (`maxPriorityFeePerGas`).
    """

    most: int
    tip: int


BUMP_NUMERATOR, BUMP_DENOMINATOR = 9, 8
"""A replacement offers 12.5 % more. Nodes require 10 % more, but anvil and geth round this limit differently."""


def offer(*, base_fee: int, tip: int, limit: int) -> Fees:
    """Returns fees that suffice until the base fee has doubled (six full blocks); `most` never exceeds `limit`."""
    most = min(2 * base_fee + tip, limit)
    return Fees(most=most, tip=min(tip, most))


def bumped(former: Fees, *, market: Fees, limit: int) -> Fees | None:
    """Returns fees that replace `former` and are at least the market's; None if they would exceed `limit`."""
    most = max(_raised(former.most), market.most)
    tip = max(_raised(former.tip), market.tip)
    if most > limit:
        if limit < _raised(former.most):
            return None
        most = limit
    return Fees(most=most, tip=min(tip, most))


def _raised(wei: int) -> int:
    return max(wei + 1, -(-wei * BUMP_NUMERATOR // BUMP_DENOMINATOR))
