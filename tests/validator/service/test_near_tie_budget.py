"""Near-ties of a node's files are counted during judging, and lead to a rejection on the ledger."""

from __future__ import annotations

from protocol.verdicts import Outcome, ReasonCode
from rollouts.calibration.near_ties import NearTieCount
from tests.kit.scripted_examiner import concluded
from tests.kit.validators import PoolWithValidators

STEERED = NearTieCount(tokens=3_000, deviations=3.5 * 0.0025 * 3_000 * 0.075, rate=0.0025, size=0.075)


async def test_files_that_pass_alone_are_rejected_once_the_nodes_near_tie_budget_is_used_up(
    pool: PoolWithValidators,
) -> None:
    validator = pool.validator()
    validator.examiner.otherwise = concluded(near_ties=STEERED, engine="torch", dtype="bfloat16")
    outcomes, reasons = [], []
    for _ in range(4):
        key = await pool.submit()
        await validator.judge()
        work = await pool.work(key)
        outcomes.append(work.outcome)
        reasons.append(work.reason)
    assert outcomes[0] is Outcome.ACCEPTED
    assert Outcome.REJECTED in outcomes
    assert reasons[outcomes.index(Outcome.REJECTED)] == ReasonCode.SAMPLING_BUDGET
    assert Outcome.FORGED not in outcomes
