"""The web pages in Chromium: sizes, themes, keyboard, accessibility, hostile texts, and the number of requests."""

from __future__ import annotations

import json

import pytest

from tests.kit.browser import in_browser
from tests.kit.http_server import served
from tests.kit.memory_ledger import PROVIDER
from tests.kit.orchestrator import READER, TOKEN
from tests.kit.page_world import MARKUP, seeded
from tests.kit.runs import MakeRun, make_run

__all__ = ["make_run"]

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_node]


async def test_the_public_page(make_run: MakeRun) -> None:
    await seeded(make_run())
    app = make_run().pool.app  # another instance with its own event loop
    published = await make_run().pool.dependencies.public.read()
    texts = [
        "1,234.75 MUST",
        "7 MUST",
        PROVIDER.address[:6],
        "muster worker init http://127.0.0.1:8002 --rpc RPC_URL --dry-run",
        "The pool accepts nodes and work.",
        "0.01 MUST",
    ]
    with served(app) as url:
        assert in_browser("public.test.mjs", {"url": url, "texts": texts, "summary": json.loads(published.body)}) == 7


async def test_the_owners_page(make_run: MakeRun) -> None:
    world = await seeded(make_run())
    pool = world.run.pool
    await pool.dependencies.nodes.learn(world.nodes[1].address, {"labels": json.dumps({"zone": MARKUP})})
    await pool.beat(world.nodes[0], worker_version="0.1.0", metrics={"tokens-per-second": 5.0})
    answers = [{"prompt": f"Write {MARKUP}", "answer": f"An answer\nof two lines {MARKUP}", "correct": True}]
    await pool.owner("PUT", "/v1/run/answers", {"version": 0, "answers": answers})
    sample = {"key": world.accepted, "group": 0, "version": 0, "tokens": 7, "reward": 0.5, "prompt": f"Say {MARKUP}"}
    for step in range(3):
        samples = [{**sample, "answer": f"A rollout\nof step {step} {MARKUP}"}]
        curves = {
            "reward": step / 3,
            "loss": -0.1 * step,
            "entropy": 0.5,
            "tokens_per_second": 9.0,
            "sampler_kl": 1e-6 * step,
        }
        await pool.owner("PUT", "/v1/run/trained", {"step": step, "at_ms": step, "samples": samples, **curves})
    task = await pool.run(name="hello", environment={"HOSTILE": MARKUP})
    values = {"token": TOKEN, "reader": READER, "task": task, "forged": world.forged, "node": world.nodes[1].address}
    with served(make_run().pool.app) as url:
        assert in_browser("cockpit.test.mjs", {"url": url, **values}) == 8
    tasks = (await pool.owner("GET", "/v1/tasks"))["tasks"]
    posted = next(each for each in tasks if each["spec"]["name"] == "posted")
    assert posted["spec"]["command"] == ["python", "-c", "print('a b')"]
    assert posted["spec"]["environment"] == {"A": "b=c"}
    assert (posted["spec"]["replicas"], posted["spec"]["priority"], posted["desired_state"]) == (2, 7, "stopped")


async def test_the_contributors_page(make_run: MakeRun) -> None:
    world = await seeded(make_run())
    app = make_run().pool.app
    contributors = world.run.pool.dependencies.contributors
    links = [(await contributors.login(key.address)).url for key in (*world.nodes, PROVIDER)]
    codes = [link.partition("#login=")[2] for link in links]
    tokens = [(await contributors.begin(code)).token for code in codes[1:]]
    await contributors.sessions.end(tokens[1], PROVIDER.address)
    texts = ["1,234.75", "Unbonding", "20 MUST", "2025-12-30", "7", "Dispute…", "differ from the replay"]
    values = {"texts": texts, "code": codes[0], "token": tokens[0], "ended": tokens[1], "rejected": world.rejected}
    with served(app) as url:
        assert in_browser("me.test.mjs", {"url": url, **values}) == 9
