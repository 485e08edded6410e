"""Nodes receive the URLs of registered relays, and of those named by trainer or settings."""

from __future__ import annotations

from protocol.identity.keys import Key
from protocol.wire.runs import MOST_RELAYS
from tests.kit.runs import MakeRun

NAMED = "https://named.example"


async def test_a_checkpoint_names_configured_relays_first_and_each_live_relay_once(make_run: MakeRun) -> None:
    run = make_run(run_relays=(NAMED,))
    node, first, second = await run.member(), Key.generate(), Key.generate()
    for key in (first, second):
        await run.pool.owner("PUT", f"/v1/relays/{key.address}")
    await run.pool.send(first, "/v1/relays", {"url": NAMED}, method="PUT")
    await run.pool.send(second, "/v1/relays", {"url": "https://live.example"}, method="PUT")
    await run.publish(0)
    checkpoint = (await run.step(node)).checkpoint
    assert checkpoint is not None
    assert checkpoint.relays == (NAMED, "https://live.example")


async def test_a_checkpoint_never_names_more_relays_than_allowed(make_run: MakeRun) -> None:
    run = make_run(run_relays=tuple(f"https://named{number}.example" for number in range(MOST_RELAYS)))
    node, key = await run.member(), Key.generate()
    await run.pool.owner("PUT", f"/v1/relays/{key.address}")
    await run.pool.send(key, "/v1/relays", {"url": "https://live.example"}, method="PUT")
    await run.publish(0)
    checkpoint = (await run.step(node)).checkpoint
    assert checkpoint is not None
    assert len(checkpoint.relays) == MOST_RELAYS
    assert "https://live.example" not in checkpoint.relays
