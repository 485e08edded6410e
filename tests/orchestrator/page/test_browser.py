"""The web pages in Chromium: sizes, themes, keyboard, accessibility, hostile texts, and the number of requests."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from ledger.amounts import UNIT
from ledger.events.types import WorkFinal
from orchestrator.domain.slots import SlotEvent
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from tests.kit.browser import in_browser
from tests.kit.http_server import served
from tests.kit.memory_ledger import PROVIDER
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.runs import MakeRun, make_run

__all__ = ["make_run"]

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_node]

DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """A run with two nodes, accepted, rejected and forged work, and payments on two days."""

    run: RunUnderTest
    nodes: tuple[Key, Key]
    accepted: Digest
    rejected: Digest
    forged: Digest


async def seeded(run: RunUnderTest) -> Seeded:
    await run.sync.round()
    await run.publish(0)
    nodes = (await run.member(), await run.member())
    works = []
    for number, (key, outcome) in enumerate(
        [
            (nodes[0], Outcome.ACCEPTED),
            (nodes[0], Outcome.REJECTED),
            (nodes[1], Outcome.FORGED),
            (nodes[0], Outcome.ACCEPTED),
        ]
    ):
        grant = await run.lease(key, groups=1)
        claim = run.signed(key, grant, file=number + 1)
        assert (await run.hand_in(key, claim, reward=0.25 * number, length=10)).status_code == 200
        await run.relayer.round()
        works.append(grant.lease.lease.key.hash)
        run.chain.happen(works[-1], key.address, SlotEvent.JUDGED, outcome)
    now = int(run.pool.clock.now().timestamp())
    for days, work, node, outcome, paid, slashed in (
        (2, works[0], nodes[0], Outcome.ACCEPTED, 1_234 * UNIT + UNIT // 2, 0),
        (1, works[0], nodes[0], Outcome.ACCEPTED, UNIT // 4, 0),
        (0, works[2], nodes[1], Outcome.FORGED, 0, 7 * UNIT),
    ):
        run.chain.head += 1
        run.chain.times[run.chain.head] = now - days * DAY_S
        run.chain.emit(WorkFinal, key=work, node=node.address, outcome=outcome, paid=paid, slashed=slashed)
    await run.sync.round()
    await run.pool.dependencies.public.write()
    return Seeded(run=run, nodes=nodes, accepted=works[3], rejected=works[1], forged=works[2])


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
