"""Amounts: parsing and formatting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.amounts import UNIT, format_amount, parse_amount
from protocol.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", 0), ("1", UNIT), ("12.5", 12 * UNIT + UNIT // 2), ("0.000000000000000001", 1), ("1_000", 1000 * UNIT)],
)
def test_amounts_are_parsed_exactly(text: str, amount: int) -> None:
    assert parse_amount(text) == amount


@pytest.mark.parametrize("text", ["", "-1", "1e18", "1,5", "0x10", "1.", ".5", "1.0000000000000000001", "٣", "nan"])
def test_invalid_amounts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_amount(text)


@given(st.integers(min_value=0, max_value=10**40))
def test_a_formatted_amount_parses_to_the_same_value(amount: int) -> None:
    assert parse_amount(format_amount(amount).replace(",", "")) == amount
