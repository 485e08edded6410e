"""An operator's commands, against a running validator."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from protocol.verdicts import Outcome
from tests.kit.command_line import run_muster
from tests.kit.terminal import machine_time, serving
from tests.kit.validators import PoolWithValidators
from tests.kit.world import POOL
from validator.examination.interface import NotJudged


async def test_an_operator_lists_parked_work_and_decides_it(
    pool: PoolWithValidators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    validator, clock = pool.validator(), pool.run.pool.clock
    validator.examiner.otherwise = NotJudged(
        code="no-calibration", why="no limits for it", retryable=False, hint="`muster validator calibrate`"
    )
    keys = [await pool.submit() for _ in range(3)]
    await validator.judge()

    async def muster(*words: str, expect: int = 0) -> str:
        arguments = ("validator", *words, "--config", str(tmp_path / "muster.toml"))
        async with machine_time(clock):
            status = await asyncio.to_thread(run_muster, monkeypatch, *arguments)
        written = capsys.readouterr()
        assert status == expect, written.err + written.out
        return written.err + written.out

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        (tmp_path / "muster.toml").write_text(
            f"[validator]\nport = {listener.getsockname()[1]}\npool_id = {POOL}\n"
            'orchestrator = "https://unused.example"\ndeployment = "unused.json"\n'
        )
        monkeypatch.setenv("MUSTER_VALIDATOR_KEY", validator.key.account().key.hex())
        async with serving(validator.app, listener):
            shown = await muster("status")
            assert "TAKES NO WORK" not in shown
            validator.examiner.broken = NotJudged(
                code="no-sandbox", why="no sandbox starts here", retryable=True, hint="install bubblewrap"
            )
            await pool.turn(timedelta(seconds=6))
            assert not await validator.dependencies.health.recheck()
            await validator.read()
            sick = await muster("status")
            for words in ("TAKES NO WORK", "no sandbox starts here (no-sandbox)", "→ install bubblewrap", "unwell"):
                assert words in sick
            validator.examiner.broken = None
            await pool.turn(timedelta(seconds=20))
            await validator.read()
            assert "TAKES NO WORK" not in await muster("status")
            for words in ("3 parked, waiting for you", "no limits for it (no-calibration)", keys[0][:14]):
                assert words in shown
            assert "is too short" in await muster("retry", keys[0][:4], expect=1)
            assert "begins with" in await muster("retry", "0x" + "00" * 8, expect=1)
            assert "either one work key or --all" in await muster("retry", keys[0], "--all", expect=1)
            await muster("resolve", "--yes", keys[0][:14], "rejected", "--because", "an engine that is not allowed")
            await muster("retry", keys[1])
            validator.examiner.otherwise = type(validator.examiner)().otherwise
            await muster("retry", "--all", "--code", "no-calibration")
            assert await validator.judge() == 3
            assert "nothing is parked" in await muster("parked")
    outcomes = [(await pool.work(key)).outcome for key in keys]
    assert outcomes == [Outcome.REJECTED, Outcome.ACCEPTED, Outcome.ACCEPTED]
