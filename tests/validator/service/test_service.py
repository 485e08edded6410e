"""The whole service with its background loops in this process: it starts, judges without help, and stops."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from ledger.client.work import WorkStatus
from tests.kit.validators import PoolWithValidators
from validator.examination.interface import Examination, IsCopy

GIVEN = 'muster_validator_verdicts_total{outcome="accepted",reason="passed"} 1.0'
PATIENCE_S = 60
"""Time limit of waits, much longer than needed, so that no test fails on a busy machine."""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 - the condition can only be polled, as from outside the service
        await asyncio.sleep(0.05)


async def test_a_running_service_judges_by_itself_and_releases_started_work_when_stopped(
    pool: PoolWithValidators,
) -> None:
    validator = pool.validator(live=True, poll_s=0.05)
    begun, hold = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(PATIENCE_S), validator.app.router.lifespan_context(validator.app):
        key = await pool.submit()
        transport = httpx.ASGITransport(app=validator.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://validator") as http:

            async def is_counted() -> bool:
                return GIVEN in (await http.get("/metrics")).text

            await until(is_counted)
            ready: Any = (await http.get("/readyz")).json()
        assert (await pool.work(key)).status is WorkStatus.PROVISIONAL
        assert ready == {"ready": True, "checks": {"redis": "ok", "health": "ok", "loops": "ok"}}

        async def stall(_examination: Examination, _is_copy: IsCopy) -> None:
            begun.set()
            await hold.wait()

        validator.examiner.before = stall
        left = await pool.submit()
        await begun.wait()
    assert not validator.examiner.opened
    heir = pool.validator(live=True)
    assert await heir.judge() == 1, "at once: no lease has to end first"
    assert (await pool.work(left)).status is WorkStatus.PROVISIONAL


def test_the_service_does_not_load_torch() -> None:
    script = "import sys, validator.service; print('torch' in sys.modules)"  # torch takes 0.3 GB
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
