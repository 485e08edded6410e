"""A devnet's run has begun when its honest nodes have delivered work, whatever the attacker does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI

from cli.devnet.directory import DevnetDirectory
from cli.devnet.settings import ServicePlaces
from cli.devnet.supervisor import ProcessFailed
from cli.devnet.tasks import await_first_rollouts
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.runtime.clock import ManualClock
from tests.kit.http_server import served

FAST, SLOW, CHEAT = (Key.from_hex("0x" + f"{number:064x}").address for number in (1, 2, 3))


def item(node: Address) -> dict[str, object]:
    name = "0x" + "ab" * 32
    return {
        "key": name,
        "node": node,
        "provider": None,
        "step": 0,
        "index": 0,
        "version": 0,
        "digest": name,
        "groups": 4,
        "units": 10,
        "sha256": name,
        "submitted_block": 1,
        "submitted_at_ms": 1,
        "status": "submitted",
        "outcome": None,
    }


def view(node: Address, report: Mapping[str, object]) -> dict[str, object]:
    assignment = {"id": "a" * 32, "task_id": "b" * 32, "task_name": "rollouts", "node": node, "generation": 1}
    return {
        "address": node,
        "state": "healthy",
        "since_ms": 1,
        "reason": "it spoke",
        "member": True,
        "assignment": {**assignment, "assigned_at_ms": 1, **report},
    }


@contextmanager
def orchestrator(
    worked: set[Address], folder: Path, reports: Mapping[Address, Mapping[str, object]] | None = None
) -> Iterator[ServicePlaces]:
    """Lists a file of each node in `worked`, which may grow, and knows only nodes that have reported."""
    app = FastAPI()
    app.state.stopping = asyncio.Event()

    @app.get("/v1/run/rollouts")
    def rollouts() -> dict[str, object]:
        return {"items": [item(node) for node in worked], "next_cursor": None}

    @app.get("/v1/nodes")
    def nodes() -> dict[str, object]:
        return {"nodes": [view(node, report) for node, report in (reports or {}).items()], "next_cursor": None}

    (folder / "owner-token").write_text("token")
    with served(app) as url:
        port = int(url.rpartition(":")[2])
        yield ServicePlaces(
            rpc="",
            chain_id=1,
            redis_url_file=folder,
            discovery_port=1,
            discovery_address=FAST,
            orchestrator_port=port,
            origin_port=1,
            relay_ports=(),
        )


class LeapingClock(ManualClock):
    """A clock that runs thirty times as fast as awaited; it calls a function once 150 s have passed."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = happens

    async def sleep(self, duration: timedelta) -> None:
        """Advances the clock."""
        await self.turn(duration * 30)
        if self.monotonic() >= 150:
            self._happens()


async def test_waiting_for_first_rollouts_ends_when_every_honest_node_has_delivered(tmp_path: Path) -> None:
    worked, clock = {CHEAT, FAST}, LeapingClock(lambda: worked.add(SLOW))
    with orchestrator(worked, tmp_path) as places:
        await await_first_rollouts(DevnetDirectory(tmp_path), places, nodes=[FAST, SLOW], on_event=print, clock=clock)
    assert 150 <= clock.monotonic() < 170


async def test_the_timeout_for_a_slow_node_restarts_with_each_arrival(tmp_path: Path) -> None:
    worked, clock = {CHEAT}, LeapingClock(lambda: worked.add(FAST))
    words = "1 honest node without submitted work: the pool does not know them"
    with orchestrator(worked, tmp_path) as places, pytest.raises(ProcessFailed, match=words):
        await await_first_rollouts(DevnetDirectory(tmp_path), places, nodes=[FAST, SLOW], on_event=print, clock=clock)
    assert 450 <= clock.monotonic() < 470, "five minutes after the first came"


BROKEN = "ended with exit code 1\nbwrap: execvp /x/.venv/bin/python: No such file\x1b[2J"


async def test_a_failed_task_ends_the_wait_and_shows_its_last_log_lines(tmp_path: Path) -> None:
    reports: dict[Address, dict[str, object]] = {SLOW: {"state": "restarting", "exit_code": 1, "detail": BROKEN}}
    told: list[str] = []
    clock = LeapingClock(lambda: reports[SLOW].update(state="failed"))
    with orchestrator({FAST}, tmp_path, reports) as places, pytest.raises(ProcessFailed, match="No such file") as ended:
        await await_first_rollouts(
            DevnetDirectory(tmp_path), places, nodes=[FAST, SLOW], on_event=told.append, clock=clock
        )
    assert 150 <= clock.monotonic() < 170, "in the same round"
    assert ended.value.detail.startswith(f"{SLOW} has given up its task: rollouts (failed): ended with exit code 1")
    (first,) = told
    assert first.startswith(f"{SLOW}: rollouts (restarting): ended with exit code 1\nbwrap: execvp")
    assert "\x1b" not in first + ended.value.detail
