"""From a submission on the ledger to a verdict there, whatever breaks in between."""

from __future__ import annotations

from ledger.client.work import WorkStatus
from protocol.verdicts import Outcome
from tests.validator.conftest import PoolWithValidators


async def test_a_submission_becomes_a_verdict_whose_evidence_anybody_can_read(pool: PoolWithValidators) -> None:
    validator = pool.validator()
    key = await pool.submit(b"rollouts")
    assert await validator.judge() == 1
    work = await pool.work(key)
    assert (work.status, work.outcome, work.judge) == (
        WorkStatus.PROVISIONAL,
        Outcome.ACCEPTED,
        validator.key.address,
    )
    assert validator.examiner.contents == [b"rollouts"]
    audit = await pool.audit(validator, key)
    assert (audit.key, audit.node, audit.sha256, audit.reason) == (key, pool.node.address, work.sha256, 0)
    assert audit.draw is not None
    assert (audit.draw.share, audit.draw.why) == (1.0, "a new node: 0 of 8 clean verdicts")
