"""Checks of past draws, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identifiers import Digest, address
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditFile
from tests.validator.audit.evidence import audit_of, hash_of
from validator.audit.draw import RowDraw, draw_rows, row_seed
from validator.audit.recompute import AuditComparison, Comparison, PastEpoch, PastVerdict, compare
from validator.domain.submissions import SubmittedWork

ME = address("0x" + "11" * 20)
BLOCK = Digest("0x" + "b1" * 32)
SECRET = b"\x05" * 32
WORK = SubmittedWork(
    key=Digest("0x" + "01" * 32),
    pool_id=1,
    node=address("0x" + "22" * 20),
    run=Digest("0x" + "02" * 32),
    step=3,
    index=4,
    version=5,
    checkpoint=Digest("0x" + "03" * 32),
    beacon_block=60,
    salt=Digest("0x" + "06" * 32),
    groups=5,
    max_units=1000,
    sha256=Digest("0x" + "04" * 32),
    units=100,
    block=70,
)
RIGHT = draw_rows(RowDraw(seed=row_seed(SECRET, WORK.key, BLOCK), share=0.3), 10)
WRONG = tuple(row for row in range(10) if row not in RIGHT)[:3]


def compared(
    audit: AuditFile,
    *,
    secret: bytes | None = SECRET,
    block_hash: Digest | None = BLOCK,
    floor: float = 0.1,
    **verdict: Any,
) -> Comparison:
    """Compares a verdict that matches its evidence except in the given fields."""
    past = PastVerdict(
        work=WORK,
        validator=ME,
        outcome=audit.outcome,
        reason=audit.reason,
        audit_hash=hash_of(audit),
        decisive=False,
    )
    epoch = PastEpoch(epoch=6, secret=secret)
    return compare(replace(past, **verdict), audit, epoch=epoch, block_hash=block_hash, floor=floor)


def drawn(rows: tuple[int, ...], *, epoch: int | None = 6, block: int | None = 71, share: float = 0.3) -> AuditFile:
    return audit_of(WORK, ME, audited=rows, share=share, epoch=epoch, block=block)


def test_the_drawn_rows_agree_and_additional_rows_do_too() -> None:
    found = compared(drawn(RIGHT))
    assert (found.finding, found.share, found.drawn, found.rows) == (AuditComparison.AGREES, 0.3, 3, 10)
    assert compared(drawn(tuple(sorted(RIGHT + WRONG)))).finding is AuditComparison.AGREES
    assert compared(drawn(tuple(range(10)), epoch=None, block=None, share=1.0)).finding is AuditComparison.AGREES


@pytest.mark.parametrize(
    "why",
    [
        "epoch 6 ended before the file was downloaded, so all rows are recomputed",
        "the file was not in the store at the first attempt, so all rows are recomputed",
        "another node of its provider forged work on 2026-11-21 12:00 UTC: 0 of 64 clean verdicts since",
    ],
)
def test_a_full_audit_must_cover_every_row_whatever_its_reason(why: str) -> None:
    def told(rows: tuple[int, ...]) -> AuditFile:
        audit = drawn(rows, epoch=None, block=None, share=1.0)
        assert audit.draw is not None
        return audit.model_copy(update={"draw": audit.draw.model_copy(update={"why": why})})

    found = compared(told(tuple(range(10))))
    assert (found.finding, found.why) == (AuditComparison.AGREES, f"every row was computed again: {why}")
    assert compared(told(tuple(range(9)))).finding is AuditComparison.DIFFERS


@pytest.mark.parametrize(
    ("audit", "why"),
    [
        (drawn(WRONG), "were not computed again"),
        (drawn(RIGHT[:2]), f"rows {RIGHT[2]} were drawn"),
        (drawn(RIGHT, share=0.09), "below the pool's floor of 10.00%"),
        (drawn(RIGHT, epoch=5), "had to be drawn with epoch 6 and block 71"),
        (drawn(RIGHT, block=72), "had to be drawn with epoch 6 and block 71"),
        (drawn(RIGHT, epoch=None, block=None), "all rows had to be computed again"),
        (drawn(RIGHT, share=1.0), "all rows had to be computed again"),
        (audit_of(WORK, ME, audited=()), "no row was computed again"),
        (audit_of(WORK, ME, audited=range(9), rows=9), "rows are missing"),
        (audit_of(replace(WORK, key=Digest("0x" + "0f" * 32)), ME, audited=range(10)), "another work than the ledger"),
        (audit_of(WORK, WORK.node, audited=range(10)), "another validator than the ledger"),
        (audit_of(replace(WORK, units=50), ME, audited=range(10)), "another units than the ledger"),
        (drawn(RIGHT).model_copy(update={"rows": drawn(WRONG).rows}), "contradicts itself"),
        (drawn(RIGHT).model_copy(update={"rows": drawn(RIGHT).rows[::-1]}), "every row once and in order"),
    ],
)
def test_a_violation_of_the_draw_is_reported_with_the_reason(audit: AuditFile, why: str) -> None:
    found = compared(audit)
    assert found.finding is AuditComparison.DIFFERS
    assert why in found.why


def test_evidence_for_another_verdict_is_refused() -> None:
    assert "another outcome" in compared(drawn(RIGHT), outcome=Outcome.FORGED).why
    assert "another reason" in compared(drawn(RIGHT), reason=801).why
    assert "dispute must be decided on all rows" in compared(drawn(RIGHT), decisive=True).why


def test_a_rejected_file_needs_no_recomputed_rows() -> None:
    early = audit_of(WORK, ME, audited=(), outcome=Outcome.FORGED, reason=ReasonCode.SEED_PROMPTS)
    late = audit_of(WORK, ME, audited=(1,), outcome=Outcome.FORGED, reason=ReasonCode.SAMPLING_REPLAY)
    hand = audit_of(WORK, ME, audited=(), reason=ReasonCode.RESOLVED_BY_HAND)
    for audit in (early, late, hand):
        assert compared(audit).finding is AuditComparison.AGREES


def test_missing_secrets_or_block_hashes_lead_to_no_accusation() -> None:
    assert compared(drawn(WRONG), secret=None).finding is AuditComparison.UNKNOWN
    assert compared(drawn(WRONG), block_hash=None).finding is AuditComparison.UNKNOWN


@given(
    audited=st.sets(st.integers(0, 9), min_size=1).map(lambda rows: tuple(sorted(rows))),
    share=st.integers(1, 10_000).map(lambda each: each / 10_000),
)
def test_an_acceptance_agrees_only_if_every_drawn_row_was_recomputed(audited: tuple[int, ...], share: float) -> None:
    found = compared(drawn(audited, share=share))
    must = set(draw_rows(RowDraw(seed=row_seed(SECRET, WORK.key, BLOCK), share=share), 10))
    agrees = len(audited) == 10 or (0.1 <= share < 1 and must <= set(audited))
    assert (found.finding is AuditComparison.AGREES) is agrees
