"""Expected gain of forging some rows, which is never positive under terms that the ledger accepts."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from validator.audit.deterrence import row_forgery, stages
from validator.audit.draw import rows_drawn
from validator.audit.rate import RatePolicy


@given(
    rows=st.integers(1, 300),
    forged=st.integers(1, 300),
    floor=st.integers(1, 10_000),
    price=st.integers(1, 10**12),
    units=st.integers(1, 10_000),
)
def test_forging_rows_never_gains_at_the_ledgers_minimum_penalty(
    rows: int, forged: int, floor: int, price: int, units: int
) -> None:
    penalty = -(-price * (10_000 - floor) // floor)
    found = row_forgery(
        rows=rows, forged=min(forged, rows), share=floor / 10_000, pays=price * units, costs=penalty * units
    )
    assert found.gain <= 0


@given(rows=st.integers(1, 8), forged=st.integers(1, 8), share=st.integers(1, 10_000).map(lambda each: each / 10_000))
def test_the_detection_probability_equals_that_of_enumerating_all_draws(rows: int, forged: int, share: float) -> None:
    forged = min(forged, rows)
    every = list(combinations(range(rows), rows_drawn(share, rows)))
    hit = Fraction(sum(any(row < forged for row in drawn) for drawn in every), len(every))
    found = row_forgery(rows=rows, forged=forged, share=share, pays=1000, costs=9000)
    assert abs(found.caught - float(hit)) < 1e-12
    expected = (1 - hit) * 1000 * Fraction(forged, rows) - hit * 9000
    assert 0 <= found.gain - expected < 1


@given(floor=st.floats(1e-4, 1), trial=st.integers(1, 20), halved_after=st.integers(1, 20))
def test_a_nodes_audit_share_begins_at_all_rows_and_falls_to_the_floor(
    floor: float, trial: int, halved_after: int
) -> None:
    way = stages(RatePolicy(trial=trial, halved_after=halved_after), floor=floor)
    assert (way[0].clean, way[0].share) == (0, 1)
    assert way[-1].share == floor
    assert [each.share for each in way] == sorted((each.share for each in way), reverse=True)
