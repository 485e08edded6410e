"""The server of `/metrics` in programs without an HTTP service, and the gauges that it serves."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ledger.metrics import ChainMetrics
from protocol.errors import Unavailable
from protocol.http.serving.metrics_server import MetricsServer
from protocol.identifiers import address
from protocol.runtime.clock import ManualClock, SystemClock
from worker.metrics import WorkerCollector
from worker.situation import Phase, Situation

KEY = address("0x" + "11" * 20)


async def test_metrics_are_served_on_one_address_and_a_taken_port_is_refused_by_name() -> None:
    registry, clock = CollectorRegistry(), SystemClock()
    ChainMetrics(registry, clock=clock)
    async with MetricsServer(registry, host="127.0.0.1", port=0, clock=clock) as server, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{server.port}"
        found = await client.get(f"{url}/metrics")
        assert "muster_chain_head_age_seconds" in found.text
        assert found.headers["content-type"].startswith("text/plain")
        for path in ("/", "/docs", "/openapi.json"):
            assert (await client.get(url + path)).status_code == 404
        with pytest.raises(Unavailable, match=rf"can't listen on 127.0.0.1:{server.port}"):
            async with MetricsServer(registry, host="127.0.0.1", port=server.port, clock=clock):
                pass
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/metrics")


async def test_the_chains_age_grows_while_it_is_not_read_and_replaced_keys_disappear() -> None:
    clock, registry = ManualClock(), CollectorRegistry()
    metrics = ChainMetrics(registry, clock=clock)

    def age() -> float | None:
        return registry.get_sample_value("muster_chain_head_age_seconds")

    clock.jump(timedelta(seconds=40))
    assert age() == 40  # since the start: nothing was read

    async def now() -> datetime:
        return clock.now() - timedelta(seconds=2)

    async def balance(_: object) -> int:
        return 15 * 10**17

    await metrics.read(cast("Any", SimpleNamespace(now=now, balance=balance)), {"validator": KEY})
    assert age() == 2
    assert registry.get_sample_value("muster_gas_coin", {"role": "validator", "address": KEY}) == 1.5
    clock.jump(timedelta(seconds=60))
    assert age() == 62
    metrics.update(clock.now() + timedelta(seconds=5), {})
    assert age() == 0
    assert "role=" not in generate_latest(registry).decode()


def test_a_workers_series_count_silence_from_the_start_and_escape_the_tasks_names() -> None:
    clock, registry = ManualClock(), CollectorRegistry()
    situation = Situation(phase=Phase.MEMBER)
    started_ms = round(clock.now().timestamp() * 1000)
    queue = SimpleNamespace(counts=lambda: {"spooled": 2, "parked": 1}, oldest_ms=lambda: started_ms - 5000)
    bridge = SimpleNamespace(metrics={'a"}\n': 0.5})
    registry.register(
        WorkerCollector(
            situation=situation,
            queue=cast("Any", queue),
            bridge=cast("Any", bridge),
            runtime="process",
            clock=clock,
        )
    )
    value = registry.get_sample_value
    clock.jump(timedelta(seconds=30))
    assert value("muster_worker_silent_seconds") == 30
    situation.last_answer_ms, situation.clock_skew_s = started_ms + 10_000, 5.0
    assert value("muster_worker_silent_seconds") == 15
    assert value("muster_worker_phase", {"phase": "member"}) == 1
    assert value("muster_worker_phase", {"phase": "banned"}) == 0
    assert value("muster_worker_files", {"stage": "spooled"}) == 2
    assert value("muster_worker_queue_oldest_seconds") == 35
    assert r'muster_worker_task{name="a\"}\n"} 0.5' in generate_latest(registry).decode()  # no line of its own
