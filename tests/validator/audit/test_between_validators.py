"""Two validators contradict each other and a third decides, each a complete service with its own Redis."""

from __future__ import annotations

import pytest

from ledger.client.work import WorkStatus
from ledger.events.types import WorkDisputed
from protocol.verdicts import Outcome, ReasonCode
from tests.kit.scripted_examiner import concluded
from tests.kit.validators import PoolWithValidators, ValidatorUnderTest
from tests.kit.world import POOL
from validator.loops.juries import UNDRAWN_PAUSE

FORGED = concluded(Outcome.FORGED, ReasonCode.SAMPLING_REPLAY)


async def look(validator: ValidatorUnderTest) -> int:
    """Reads other validators' verdicts and examines the resulting items; returns the number of verdicts on the
    ledger.
    """
    await validator.loops.audit.verdicts()
    return await validator.judge()


@pytest.mark.parametrize("first", [Outcome.ACCEPTED, Outcome.FORGED])
async def test_running_services_overturn_a_wrong_verdict(pool: PoolWithValidators, first: Outcome) -> None:
    wrong, right, third = [
        pool.validator(name, redis=number, looks_at_accepted=1, looks_at_rejected=1)
        for number, name in enumerate(("validator", "second", "third"), start=1)
    ]
    truth = Outcome.FORGED if first is Outcome.ACCEPTED else Outcome.ACCEPTED
    answers = {Outcome.ACCEPTED: concluded(), Outcome.FORGED: FORGED}
    wrong.examiner.otherwise = answers[first]
    right.examiner.otherwise = third.examiner.otherwise = answers[truth]
    key = await pool.submit()
    assert await wrong.judge() == 1

    assert await look(wrong) == 0  # no validator examines its own verdict again
    assert await look(right) == 0  # a second look is no verdict: it leads to a dispute
    work = await pool.work(key)
    assert (work.status, work.disputer) == (WorkStatus.DISPUTED, right.key.address)
    (disputed,) = await (await pool.ledger()).history(WorkDisputed, pool_id=POOL)
    kept = [each.name for each in (pool.directory / "objects").rglob("*")]
    assert disputed.evidence_hash[2:] in kept, "the evidence is the second validator's own audit file"

    for party in (wrong, right):
        assert await look(party) == 0
    # This chain mines on demand: the validator waits for a while, then makes the block whose hash orders the dispute.
    assert await look(third) == 0
    assert (await third.dependencies.queue.lengths()).parked == 0
    for _ in range(4):
        await pool.turn(UNDRAWN_PAUSE)
        await third.loops.juries.round()
    assert await look(third) == 1
    work = await pool.work(key)
    assert (work.status, work.outcome) == (WorkStatus.FINAL, truth)
    audit = await pool.audit(third, key)
    assert audit.second_look
    assert audit.draw is not None
    assert audit.draw.share == 1
    paid = await (await pool.ledger()).work.accrued(POOL, work.provider)
    assert paid == (work.reward if truth is Outcome.ACCEPTED else 0)
    assert [len(each.examiner.asked) for each in (wrong, right, third)] == [1, 1, 1]
