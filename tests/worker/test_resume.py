"""`muster worker status` and `resume` after leasing stopped because work was not paid."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cli.worker import daemon as cli
from protocol.http.serving.unix_server import UnixServer
from protocol.identifiers import ZERO_ADDRESS
from worker.control import create_control
from worker.delivery.queue.store import QueueStore
from worker.situation import Phase, WorkerStatus
from worker.state import StateDirectory

WHY = "3 delivered pieces of work in a row were not paid: step 3, index 0 expired without a verdict"


class Daemon:
    """The part of a daemon that its control socket serves."""

    def __init__(self) -> None:
        self.stopped = WHY

    def status(self) -> WorkerStatus:
        return WorkerStatus(
            node=ZERO_ADDRESS,
            pool_id=1,
            version="test",
            phase=Phase.MEMBER,
            detail="",
            node_state="healthy",
            orchestrator="https://pool.example",
            last_answer_ms=1_767_225_600_000,
            interval_s=10,
            silent_because="",
            clock_skew_s=0,
            discovery={"https://a": "registered", "https://b": "down"},
            notices=["one\x1b[2J\ttwo"],
            warnings=[],
            stopped=self.stopped,
            draining=False,
            runtime="process",
            runtime_error="",
            task="",
            task_id="",
            assignment=None,
            metrics={},
            queue={},
            parked=[],
        )

    def resume(self) -> None:
        self.stopped = ""


@pytest.fixture
async def daemon(state: StateDirectory) -> AsyncIterator[Daemon]:
    """Runs a daemon that has stopped leasing, with a real control socket."""
    found = Daemon()
    queue = QueueStore(state.queue, state.spool)

    async def leave() -> None:
        raise AssertionError("not in these tests")

    control = create_control(
        status=found.status,
        logs=lambda: None,
        queue=queue,
        drain=lambda on: None,
        leave=leave,
        resume=found.resume,
    )
    server = UnixServer(control, state.control_socket, mode=0o600)
    await server.start()
    yield found
    await server.stop()
    queue.close()


async def test_status_shows_why_leasing_has_stopped_and_resume_starts_it_again(
    daemon: Daemon, state: StateDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.to_thread(cli.status, None, state.root, False)
    shown = capsys.readouterr().out
    lines = [line.split("\t") for line in shown.splitlines()]
    assert {len(line) for line in lines} == {2}
    assert ["discovery", "https://b: down"] in lines
    assert ["last_answer", "2026-01-01T00:00:00Z"] in lines
    assert ["interval", "PT10S"] in lines
    assert "\x1b" not in shown
    assert f"no leasing: {WHY}" in shown
    assert "muster worker resume" in shown
    await asyncio.to_thread(cli.resume, None, state.root)
    assert "leasing again" in capsys.readouterr().out
    assert daemon.stopped == ""
    await asyncio.to_thread(cli.resume, None, state.root)
    assert "leasing had not stopped" in capsys.readouterr().out
    await asyncio.to_thread(cli.status, None, state.root, False)
    assert "stopped" not in capsys.readouterr().out
