"""The pool's overview: counts, their cost in Redis commands, and the caller's scope."""

from __future__ import annotations

import httpx
import pytest

from orchestrator.store.database import Database
from protocol.clients import OrchestratorClient
from protocol.identity.signing import unix_ms
from tests.kit.memory_ledger import POOL, PoolUnderTest
from tests.kit.orchestrator import READER, TOKEN


def client(pool: PoolUnderTest, token: str) -> OrchestratorClient:
    return OrchestratorClient("http://127.0.0.1:1", token=token, transport=httpx.ASGITransport(app=pool.app))


@pytest.mark.parametrize(
    ("token", "name", "scope"), [(TOKEN, "boss", "admin"), (READER, "looker", "read")], ids=["admin", "read"]
)
async def test_the_overview_shows_the_pools_counts_and_the_tokens_scope(
    pool: PoolUnderTest, token: str, name: str, scope: str
) -> None:
    await pool.member()
    await pool.run(replicas=1)
    async with client(pool, token) as owner:
        view = await owner.overview()
    assert (view.pool_id, view.service, view.run) == (POOL, pool.dependencies.key.address, None)
    assert (view.nodes_known, view.nodes_expected, view.tasks_open, view.removals_waiting) == (1, 1, 1, 0)
    assert view.time_ms == unix_ms(pool.clock.now())
    assert (view.caller.name, view.caller.scope) == (name, scope)


async def test_the_overview_needs_the_same_redis_commands_at_any_pool_size(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = Database.ask

    async def counting(self: Database, *command: str) -> object:
        asked.append(command[0])
        return await ask(self, *command)

    monkeypatch.setattr(Database, "ask", counting)
    costs = []
    for nodes in (1, 9):
        for _ in range(nodes):
            await pool.member()
        asked.clear()
        await pool.owner("GET", "/v1/pool")
        costs.append(list(asked))
    assert costs[0] == costs[1]


async def test_node_listings_contain_a_gauge_only_on_request(pool: PoolUnderTest) -> None:
    fast, silent = await pool.member(), await pool.member()
    await pool.beat(fast, metrics={"task.tokens-per-second": 41.5, "cpu": 0.5})
    async with client(pool, READER) as owner:
        shown = {node.address: node.metrics async for node in owner.nodes(metric="task.tokens-per-second")}
        plain = [node.metrics async for node in owner.nodes()]
    assert shown == {fast.address: {"task.tokens-per-second": 41.5}, silent.address: {}}
    assert plain == [{}, {}]
