"""The orchestrator moves: a worker finds it over real HTTP, past dead URLs, strangers and lying discovery services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from ledger.devchain import free_port
from protocol.clients.discovery import DiscoveryClient
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.signing import read_stamp, sign_response
from protocol.invites import Invite
from protocol.runtime.clock import ManualClock
from protocol.wire.invites import SignedInvite
from tests.kit.http_server import served
from tests.worker.test_heartbeat import ScriptedChain, Side
from worker.chain.ledger_chain import LedgerChain
from worker.heartbeat import FIRST_CHECK_PAUSE, HeartbeatLoop, HeartbeatStop
from worker.logs.push import LogPusher
from worker.membership.joining import OrchestratorLocation
from worker.membership.relocation import Relocation
from worker.runtime.process import ProcessRuntime
from worker.session.orchestrator_client import OrchestratorSession
from worker.situation import Situation
from worker.state import StateDirectory
from worker.tasks.reconciler import Reconciler

POOL = 1


class Discovery:
    """A discovery service on a real port, with a key of its own and scripted invites."""

    def __init__(self, stack: ExitStack) -> None:
        self.key, self.app, self.invites, self.asked = Key.generate(), FastAPI(), list[SignedInvite](), 0
        self.app.state.stopping = asyncio.Event()
        self.app.get("/v1/nodes/{node}/invites")(self.listed)
        self.url = f"{stack.enter_context(served(self.app))}#{self.key.address}"

    async def listed(self, request: Request) -> Response:
        self.asked += 1
        stamp = read_stamp(request.headers)
        body = httpx.Response(200, json={"invites": [each.model_dump(mode="json") for each in self.invites]}).content
        headers = sign_response(self.key, address=stamp.address, nonce=stamp.nonce, status=200, body=body)
        return Response(body, 200, headers)


class World:
    """A member whose orchestrator was at `old`, two discovery services, and the orchestrator at `new`."""

    def __init__(self, stack: ExitStack, clock: ManualClock, state: StateDirectory, node: Address) -> None:
        self.stack, self.clock, self.state, self.process_node = stack, clock, state, node
        self.node, self.side = Key.generate(), Side(clock)
        self.chain = ScriptedChain(self.side.key.address)
        self.new = self.serve(self.side.app)
        self.honest, self.liar = Discovery(stack), Discovery(stack)
        self.old = f"http://127.0.0.1:{free_port()}"  # no process listens there
        self.situation = Situation()
        self.found: OrchestratorLocation | None = None
        self.searches = 0

    def serve(self, app: FastAPI) -> str:
        app.state.stopping = asyncio.Event()
        return self.stack.enter_context(served(app))

    def invite(self, url: str, *, expires_in: float = 300, key: Key | None = None, **changes: Any) -> SignedInvite:
        expiry = int(self.clock.now().timestamp() + expires_in)
        fields = {"pool_id": POOL, "domain_id": 1, "node": self.node.address, "nonce": 1, "expiry": expiry, "url": url}
        invite, domain = Invite(**{**fields, **changes}), self.chain.invites_domain
        return SignedInvite.of(invite, domain=domain, signature=invite.sign(key or self.side.key, domain))

    async def beat_for(self, seconds: float) -> HeartbeatStop | None:
        """Sends heartbeats to `old` until the loop ends, or for so many seconds; returns why the loop ended."""
        clock, expiry = self.clock, int(self.clock.now().timestamp() + 100)
        membership = OrchestratorLocation(pool_id=POOL, url=self.old, orchestrator=self.side.key.address, expiry=expiry)
        services = [DiscoveryClient(each.url, key=self.node, clock=clock) for each in (self.liar, self.honest)]
        relocation = Relocation(
            node=self.node.address,
            chain=cast("LedgerChain", self.chain),
            services=services,
            clock=clock,
            allow_plain_http=False,
        )

        async def has_moved() -> bool:
            self.searches += 1
            self.found = await relocation.find(membership)
            self.situation.search = relocation.outcome
            return self.found is not None

        async def no_bridge(_: object) -> None:
            return

        session = OrchestratorSession(membership, key=self.node, clock=clock)
        stopping = asyncio.Event()
        runtime = ProcessRuntime(self.process_node, directory=self.state.processes)
        loop = HeartbeatLoop(
            orchestrator=session,
            known_key=self.side.key.address,
            pool_id=POOL,
            chain=cast("LedgerChain", self.chain),
            reconciler=Reconciler(
                runtime=runtime,
                state=self.state,
                node=self.process_node,
                pool_id=POOL,
                gpus=(),
                clock=clock,
                on_task=no_bridge,
            ),
            pusher=LogPusher(lambda _: None, clock=clock),
            gauges=dict,
            situation=self.situation,
            clock=clock,
            stopping=stopping,
            longest_pause=timedelta(seconds=2),
            has_moved=has_moved,
        )
        beating = asyncio.create_task(loop.run())
        try:
            for _ in range(int(seconds / 0.1)):
                if beating.done():
                    return await beating
                await clock.turn(timedelta(seconds=0.1))
                await asyncio.sleep(0.004)  # for the sockets
            return None
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            for each in (session, *services):
                await each.aclose()


@pytest.fixture
def moved(clock: ManualClock, state: StateDirectory, node: Address) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack, clock, state, node)


def lies(world: World) -> list[SignedInvite]:
    """Returns invites with which a discovery service tries to lead a worker astray."""
    evil, far = "http://127.0.0.1:1", 6 * 86_400
    return [
        world.invite(evil, expires_in=far, key=world.liar.key),
        world.invite(evil, expires_in=far).model_copy(update={"url": "http://127.0.0.1:2"}),
        world.invite(evil, expires_in=far, node=Key.generate().address),
        world.invite(evil, expires_in=far, pool_id=POOL + 1),
        world.invite(evil, expires_in=50),  # a former invite with the orchestrator's signature, replayed
        world.invite(evil, expires_in=8 * 86_400),  # would outlast every later invite
    ]


def refusing(status: int, **headers: str) -> Callable[[], Response]:
    return lambda: Response("gone", status, {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    "stranger",
    [None, refusing(404), refusing(429, retry_after="99999999"), refusing(308, location="http://127.0.0.1:1/")],
    ids=["dead", "404", "429 for three years", "redirect"],
)
async def test_a_worker_follows_a_moved_orchestrator_past_lies(
    moved: World, stranger: Callable[[], Response] | None
) -> None:
    if stranger is not None:
        app = FastAPI()
        app.post("/v1/heartbeat")(stranger)
        moved.old = moved.serve(app)
    moved.liar.invites = lies(moved)
    moved.honest.invites = [moved.invite(moved.new)]
    assert await moved.beat_for(40) is HeartbeatStop.MOVED
    assert moved.found is not None
    assert moved.found.url == moved.new
    assert moved.searches == 1
    assert f"2 of 2 discovery services answered: a newer invite names {moved.new}" in moved.situation.search


async def test_lies_alone_never_move_a_worker_and_searches_are_rare(moved: World) -> None:
    moved.liar.invites = lies(moved)
    moved.honest.invites = [moved.invite("http://127.0.0.1:3", domain_id=1, key=moved.node)]
    assert await moved.beat_for(40) is None
    assert moved.found is None
    assert 1 <= moved.searches <= 2 + 40 / (FIRST_CHECK_PAUSE.total_seconds() / 2)
    assert moved.liar.asked == moved.honest.asked == moved.searches
    assert "not valid, or not signed by the pool's orchestrator" in moved.situation.search

    # The former key of the orchestrator signed them, but the ledger names another one by now.
    moved.honest.invites = [moved.invite(moved.new)]
    moved.chain.key = Key.generate().address
    assert await moved.beat_for(20) is not HeartbeatStop.MOVED


async def test_while_the_old_address_answers_nobody_is_asked(moved: World) -> None:
    moved.old, elsewhere = moved.new, moved.serve(Side(moved.clock).app)
    moved.honest.invites = [moved.invite(elsewhere)]
    assert await moved.beat_for(30) is None
    assert len(moved.side.beats) >= 2
    assert (moved.searches, moved.honest.asked, moved.situation.search) == (0, 0, "")
