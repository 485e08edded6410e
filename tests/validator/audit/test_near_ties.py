"""Near-tie budgets over a node's newest files, on a real Redis."""

from __future__ import annotations

from dataclasses import replace

from redis.asyncio import Redis

from protocol.identifiers import ZERO_DIGEST, Address, Digest, address, digest
from protocol.redis.connection import RedisKeys
from protocol.verdicts import Outcome, ReasonCode
from rollouts.calibration.near_ties import MOST_FILES, NearTieCount
from tests.kit.scripted_examiner import concluded
from validator.domain.submissions import SubmittedWork
from validator.examination.interface import Conclusion
from validator.store.near_ties import NearTieBudgets

KEYS = RedisKeys("validator-1")
ME, OTHER, NODE = (address("0x" + each * 20) for each in ("11", "22", "33"))
STEERED = NearTieCount(tokens=3_000, deviations=3 * 0.0025 * 3_000 * 0.075, rate=0.0025, size=0.075)
HONEST = replace(STEERED, deviations=STEERED.deviations / 3)


def work(number: int, *, node: Address = NODE) -> SubmittedWork:
    key: Digest = digest(number.to_bytes(32, "big"))
    return SubmittedWork(
        key=key, pool_id=1, node=node, run=ZERO_DIGEST, step=1, index=0, version=1, checkpoint=ZERO_DIGEST,
        beacon_block=1, salt=ZERO_DIGEST, groups=1, max_units=100, sha256=key, units=10, block=2,
    )  # fmt: skip


def found(ties: NearTieCount | None, *, engine: str = "torch") -> Conclusion:
    return concluded(near_ties=ties, engine=engine, dtype="bfloat16")


async def rejected_at(budgets: NearTieBudgets, ties: NearTieCount, *, files: int, first: int = 0) -> list[int]:
    """Adds a number of consecutive files to a node's budget; returns the numbers of the rejected ones."""
    outcomes = [(await budgets.applied(work(first + number), found(ties))).outcome for number in range(files)]
    return [number for number, outcome in enumerate(outcomes) if outcome is Outcome.REJECTED]


async def test_files_with_steered_near_ties_are_rejected_and_honest_ones_are_not(redis: Redis) -> None:
    budgets = NearTieBudgets(redis, keys=KEYS, validator=ME)
    assert await rejected_at(budgets, HONEST, files=2 * MOST_FILES) == []
    steering = NearTieBudgets(redis, keys=KEYS, validator=OTHER)
    rejected = await rejected_at(steering, STEERED, files=40)
    assert 3 <= len(rejected) <= 20
    assert rejected[0] > 0


async def test_the_budget_rejection_states_its_reason_and_is_not_forgery(redis: Redis) -> None:
    budgets = NearTieBudgets(redis, keys=KEYS, validator=ME)
    for number in range(20):
        conclusion = await budgets.applied(work(number), found(STEERED))
        if conclusion.outcome is Outcome.REJECTED:
            break
    assert conclusion.reason is ReasonCode.SAMPLING_BUDGET
    assert not conclusion.reason.may_be_forgery
    assert "per 10,000 tokens" in conclusion.words
    again = await budgets.applied(work(number), found(STEERED))
    assert again == conclusion, "looking up a verdict twice gives the same result"
    following = await budgets.applied(work(number + 1), found(HONEST))
    assert following.outcome is Outcome.ACCEPTED, "a charged file is not charged again"


async def test_the_same_work_counts_once_towards_the_budget(redis: Redis) -> None:
    budgets = NearTieBudgets(redis, keys=KEYS, validator=ME)
    for _ in range(50):
        assert (await budgets.applied(work(1), found(STEERED))).outcome is Outcome.ACCEPTED


async def test_budgets_are_separate_per_node_arithmetic_and_validator(redis: Redis) -> None:
    budgets, other = (NearTieBudgets(redis, keys=KEYS, validator=each) for each in (ME, OTHER))
    alone = await rejected_at(NearTieBudgets(redis, keys=RedisKeys("else"), validator=ME), STEERED, files=20)
    count = alone[0]
    for number in range(count):
        for node in (NODE, OTHER):
            assert (await budgets.applied(work(number, node=node), found(STEERED))).outcome is Outcome.ACCEPTED
        assert (await budgets.applied(work(number), found(STEERED, engine="vllm"))).outcome is Outcome.ACCEPTED
        assert (await other.applied(work(number), found(STEERED))).outcome is Outcome.ACCEPTED


async def test_rejected_or_exact_work_does_not_count_towards_the_budget(redis: Redis) -> None:
    budgets = NearTieBudgets(redis, keys=KEYS, validator=ME)
    forged = replace(found(STEERED), outcome=Outcome.FORGED, reason=ReasonCode.SAMPLING_REPLAY)
    for number in range(40):
        assert await budgets.applied(work(number), forged) == forged
        exact = found(None)
        assert await budgets.applied(work(number), exact) == exact
    assert await redis.keys("*near-ties*") == []
