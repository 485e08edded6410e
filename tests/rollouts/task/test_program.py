"""`python -m rollouts` as in its container; where it cannot work, one line with the reason and exit status 1."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from rollouts.task.program import main
from tests.kit.own_time import OwnTime
from tests.kit.rollout_task import Surroundings, until

_PATIENCE_S = 90


async def test_the_process_delivers_files_and_exits_with_0_on_sigterm(
    around: Surroundings,
) -> None:
    around.publish(0)
    command = (sys.executable, "-m", "rollouts", "--device", "cpu", "--threads", "1")
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **around.environment})
    try:
        await until(lambda: bool(around.queue.items()), patience_s=_PATIENCE_S)
        around.publish(1, new_tokens=240)
        around.orchestrator.slots = 100
        await until(lambda: len(around.orchestrator.granted) > 1)
        took = OwnTime(process.pid)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_PATIENCE_S):
            assert await took.until_ended() < 1
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_outside_a_container_the_missing_variable_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MUSTER_DATA_DIR", raising=False)
    assert main([]) == 1
    said = "".join(capsys.readouterr())
    assert "MUSTER_DATA_DIR is not set" in said
    assert "Traceback" not in said


def test_an_unknown_engine_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--engine", "abacus"])
    assert ended.value.code == 2
    assert "torch" in capsys.readouterr().err
