"""The scheduler writes a task's state only if the task did not change or end meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.store.scripts import WriteTaskState
from tests.kit.memory_ledger import PoolUnderTest


async def write_verdict(
    pool: PoolUnderTest, task: str, *, generation: int = 1, state: str = "failed", lease: str = ""
) -> Any:
    return await pool.dependencies.database.run(
        WriteTaskState(lease=lease, task=task, generation=generation, state=state, reason="why", now_ms=1, over=True)
    )


async def view(pool: PoolUnderTest, task: str) -> tuple[str, str]:
    told = await pool.owner("GET", f"/v1/tasks/{task}")
    return told["state"], told["reason"]


async def test_a_task_verdict_is_written_and_published_once(pool: PoolUnderTest) -> None:
    task = await pool.run()
    assert await write_verdict(pool, task) == 1
    assert await view(pool, task) == ("failed", "why")
    assert await write_verdict(pool, task, state="completed") == 0, "the task has ended"
    assert await view(pool, task) == ("failed", "why")
    told: Any = await pool.dependencies.redis.xrange(pool.dependencies.database.key("events"))
    assert [event[b"kind"] for _, event in told].count(b"task.failed") == 1


@pytest.mark.parametrize(
    ("given", "answer"), [({"generation": 2}, 0), ({"lease": "another#1"}, -1)], ids=["changed since", "lease lost"]
)
async def test_an_outdated_task_verdict_changes_nothing(
    pool: PoolUnderTest, given: dict[str, Any], answer: int
) -> None:
    task = await pool.run()
    before = await view(pool, task)
    assert await write_verdict(pool, task, **given) == answer
    assert await view(pool, task) == before


async def test_a_task_stopped_by_its_owner_in_the_meantime_does_not_fail(pool: PoolUnderTest) -> None:
    task = await pool.run()
    await pool.dependencies.redis.hset(pool.dependencies.database.key("task", task), "desired", "stopped")
    before = await view(pool, task)
    assert await write_verdict(pool, task) == 0
    assert await view(pool, task) == before
