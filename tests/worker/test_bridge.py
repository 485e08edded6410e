"""The bridge over a real unix socket: tokens, limits, paths out of the volume, added files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.http.serving.unix_server import UnixServer, short_path
from protocol.identifiers import Address, Digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease
from protocol.runtime.clock import ManualClock
from worker.delivery.queue.store import QueueStore
from worker.slots.bridge.app import BridgeDependencies, create_bridge
from worker.slots.gateway_sessions import GatewaySessions
from worker.slots.task_slots import TaskSlots
from worker.state import StateDirectory
from worker.tasks.saved_state import RunningTask

TASK = RunningTask(assignment_id="a" * 32, task_id="b" * 32, task_name="task", generation=3, token="right")


async def never_asked(lease: Lease, beacon: Digest) -> str:
    raise AssertionError("there is no lease")


def idle_slots(home: Path, node: Address) -> TaskSlots:
    """Returns the slots of a task whose worker has no orchestrator."""
    state = StateDirectory(home)
    domain = SigningDomain(1, node)
    return TaskSlots(
        assignment_id=TASK.assignment_id,
        node=node,
        pool_id=7,
        domain=domain,
        state=state,
        service=lambda: None,
        fault_of=never_asked,
        clock=ManualClock(),
    )


@dataclass
class Bridged:
    """A bridge, and a task's client for it."""

    volume: Path
    queue: QueueStore
    client: httpx.AsyncClient
    metrics: dict[str, float] = field(default_factory=dict)
    woken: list[None] = field(default_factory=list)


@pytest.fixture
async def bridged(tmp_path: Path, node: Address) -> AsyncIterator[Bridged]:
    volume = tmp_path / "data"
    volume.mkdir()
    (volume / "out.bin").write_bytes(b"x" * 1000)
    (volume / "link").symlink_to("/etc/passwd")
    (tmp_path / "outside").write_text("the host's")
    queue = QueueStore(tmp_path / "queue.sqlite", tmp_path / "spool")
    deep = tmp_path / ("d" * 100) / "bridge.sock"  # longer than the kernel allows for a socket
    with short_path(tmp_path) as _:
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "s"))
    client = httpx.AsyncClient(
        transport=transport, base_url="http://bridge", headers={"Authorization": f"Bearer {TASK.token}"}
    )
    bridged = Bridged(volume, queue, client)
    slots = idle_slots(tmp_path, node)
    dependencies = BridgeDependencies(
        task=TASK,
        node=node,
        pool_id=7,
        volume=volume,
        queue=queue,
        on_metrics=bridged.metrics.update,
        on_file=lambda: bridged.woken.append(None),
        clock=ManualClock(),
        most_file_bytes=5000,
        most_spooled_bytes=6000,
        slots=slots,
        sessions=GatewaySessions(key=Key.generate(), step=slots.step, lease_of=slots.lease_of, clock=ManualClock()),
    )
    server = UnixServer(create_bridge(dependencies), deep, mode=0o666)
    await server.start()
    (tmp_path / "s").symlink_to(deep)
    yield bridged
    await client.aclose()
    await server.stop()
    assert not deep.exists()


async def test_a_task_can_read_its_identity(bridged: Bridged, node: Address) -> None:
    answer = await bridged.client.get("/v1/identity")
    assert answer.json() == {
        "node": node,
        "pool_id": 7,
        "task_id": "b" * 32,
        "task_name": "task",
        "assignment_id": "a" * 32,
        "generation": 3,
        "group": None,
    }


@pytest.mark.parametrize("token", ["", "Bearer wrong", "right", "Bearer right2", "Basic right", "Bearer rïght"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/identity"), ("POST", "/v1/metrics"), ("POST", "/v1/files")])
async def test_requests_without_the_bridge_token_are_refused(
    bridged: Bridged, token: str, method: str, path: str
) -> None:
    body = {"metrics": {"a": 1}} if path == "/v1/metrics" else {"path": "out.bin"}
    answer = await bridged.client.request(
        method, path, json=body if method == "POST" else None, headers=[(b"Authorization", token.encode())]
    )
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthenticated"
    assert bridged.metrics == {}
    assert bridged.queue.items() == []


async def test_gauges_are_stored_and_bounded(bridged: Bridged) -> None:
    assert (await bridged.client.post("/v1/metrics", json={"metrics": {"reward": 0.5}})).status_code == 204
    assert bridged.metrics == {"reward": 0.5}
    bad: list[Any] = [
        {},
        {"metrics": {f"m{number}": 1 for number in range(33)}},
        {"metrics": {"UPPER": 1}},
        {"metrics": {"a": "NaN"}},
        {"metrics": {"a": 1}, "node": "0x0"},
        {"metrics": {"n" * 49: 1}},
    ]
    for body in bad:
        assert (await bridged.client.post("/v1/metrics", json=body)).status_code == 422
    huge = await bridged.client.post("/v1/metrics", content=b"x" * 70_000)
    assert huge.status_code == 413
    assert bridged.metrics == {"reward": 0.5}


async def test_a_file_is_accepted_once_and_its_delivery_stage_can_be_queried(bridged: Bridged) -> None:
    first = await bridged.client.post("/v1/files", json={"path": "out.bin", "metadata": {"step": "3"}})
    assert first.status_code == 202
    again = await bridged.client.post("/v1/files", json={"path": "out.bin"})
    assert again.json() == {"id": first.json()["id"], "new": False}
    (item,) = bridged.queue.items()
    assert item.metadata == {"step": "3", "task_id": "b" * 32, "assignment_id": "a" * 32}
    followed = await bridged.client.get(f"/v1/files/{item.id}")
    assert followed.json()["stage"] == "spooled"
    assert (await bridged.client.get(f"/v1/files/{'0' * 32}")).status_code == 404
    assert bridged.woken


@pytest.mark.parametrize("given_up", ["", "its lease ended"])
async def test_a_task_can_read_how_the_delivery_of_its_file_ended(bridged: Bridged, given_up: str) -> None:
    await bridged.client.post("/v1/files", json={"path": "out.bin"})
    (item,) = bridged.queue.items()
    bridged.queue.finish(item, now_ms=1, given_up=given_up)
    ended = await bridged.client.get(f"/v1/files/{item.id}")
    assert ended.json() == {"id": item.id, "stage": "deleted", "attempts": 0, "error": given_up, "parked": False}
    assert (await bridged.client.get(f"/v1/files/{'f' * 32}")).status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("../outside", 400),
        ("/etc/passwd", 400),
        ("link", 400),
        ("a/../../outside", 400),
        (".", 400),
        ("gone", 404),
        ("nul\0", 400),
        ("", 422),
        ("x" * 2000, 422),
    ],
)
async def test_a_path_out_of_the_volume_is_refused_with_a_problem(bridged: Bridged, path: str, status: int) -> None:
    answer = await bridged.client.post("/v1/files", json={"path": path})
    assert answer.status_code == status
    assert {"code", "detail", "hint", "retryable"} <= answer.json().keys()
    assert bridged.queue.items() == []


async def test_a_file_too_large_or_without_space_is_refused_and_not_copied(bridged: Bridged) -> None:
    (bridged.volume / "big").write_bytes(b"x" * 5001)
    assert (await bridged.client.post("/v1/files", json={"path": "big"})).status_code == 413
    (bridged.volume / "fits").write_bytes(b"x" * 5000)
    assert (await bridged.client.post("/v1/files", json={"path": "fits"})).status_code == 202
    (bridged.volume / "more").write_bytes(b"x" * 1001)
    full = await bridged.client.post("/v1/files", json={"path": "more"})
    assert full.status_code == 413
    assert full.json()["code"] == "queue-full"
    assert len(bridged.queue.items()) == 1


async def test_a_task_cannot_forge_the_metadata_of_its_files(bridged: Bridged) -> None:
    """A task must not be able to set the metadata that the worker itself adds."""
    body = {"path": "out.bin", "metadata": {"task_id": "forged"}}
    answer = await bridged.client.post("/v1/files", json=body)
    assert answer.status_code in {202, 422}
    assert all(item.metadata["task_id"] == "b" * 32 for item in bridged.queue.items())


async def test_the_request_rate_of_a_task_is_limited(bridged: Bridged) -> None:
    statuses = [(await bridged.client.get("/v1/identity")).status_code for _ in range(600)]
    assert statuses[:300] == [200] * 300
    assert 429 in statuses
