"""Parses and formats amounts of MUST. Everywhere else money is an integer in the smallest unit, 10⁻¹⁸ MUST."""

from __future__ import annotations

import re

from protocol.errors import InvalidInput

DECIMALS = 18
UNIT: int = 10**DECIMALS
_AMOUNT = re.compile(r"([0-9]{1,30})(?:\.([0-9]{1,18}))?")


def parse_amount(text: str) -> int:
    """Parses an amount of MUST, for example `12.5`, into the smallest unit.

    Raises:
        InvalidInput: The text is not a plain non-negative decimal number with at most 18 decimals.
    """
    match = _AMOUNT.fullmatch(text.strip().replace("_", ""))
    if match is None:
        raise InvalidInput(
            f"{text[:40]!r} is not an amount of MUST", hint="write a plain number with at most 18 decimals, like 12.5"
        )
    whole, fraction = match.groups()
    return int(whole) * UNIT + int((fraction or "").ljust(DECIMALS, "0"))


def plain_amount(amount: int) -> str:
    """Formats an amount in the smallest unit as plain decimal MUST, without thousands separators, for programs."""
    return format_amount(amount).replace(",", "")


def format_amount(amount: int) -> str:
    """Formats an amount in the smallest unit as MUST: exact, no trailing zeros, commas between thousands."""
    sign = "-" if amount < 0 else ""
    whole, fraction = divmod(abs(amount), UNIT)
    decimals = f"{fraction:0{DECIMALS}d}".rstrip("0")
    return f"{sign}{whole:,}" + (f".{decimals}" if decimals else "")
