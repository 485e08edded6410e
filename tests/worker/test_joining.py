"""A dishonest discovery service can't stop a node from joining through another one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from protocol.errors import Unavailable
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.invites import Invite
from protocol.runtime.clock import ManualClock
from protocol.wire.base import MAX_INT64
from protocol.wire.invites import SignedInvite
from tests.kit.event_loop import at_rest, one_thread
from tests.worker.test_heartbeat import ScriptedChain
from worker.chain.ledger_chain import LedgerChain
from worker.chain.pool_record import PoolRecord
from worker.membership.joining import Joiner
from worker.membership.registration import Registrar
from worker.situation import Situation

URL = "https://orchestrator.example"

__all__ = ["one_thread"]  # a fixture
pytestmark = pytest.mark.usefixtures("one_thread")


class Newcomer(ScriptedChain):
    """A ledger on which the node is not a member yet, with a pool's payment record."""

    def __init__(self, orchestrator: Address, record: PoolRecord | Unavailable) -> None:
        super().__init__(orchestrator)
        self.at = replace(self.at, member=False)
        self.record = record
        self.joined = False

    async def pool_record(self) -> PoolRecord:
        if isinstance(self.record, Unavailable):
            raise self.record
        return self.record

    async def join(self, invite: SignedInvite) -> None:
        self.joined = True


class LyingService:
    """The methods of a discovery client that joining uses, with dishonest answers."""

    location = SimpleNamespace(url="https://discovery.example")

    def __init__(self, *, expires_at_ms: int = 0, last_seen_ms: int = 0) -> None:
        self.record = SimpleNamespace(expires_at_ms=expires_at_ms, last_seen_ms=last_seen_ms)
        self.registered = 0

    async def register(self, _: object) -> Any:
        self.registered += 1
        return self.record

    async def acknowledge(self, _: object) -> None:
        return


def registrar_of(services: Any, clock: ManualClock, situation: Situation) -> Registrar:
    describe: Any = lambda: None  # noqa: E731 - the description is not used
    return Registrar(services, describe=describe, clock=clock, situation=situation, longest_pause=timedelta(seconds=30))


async def turned(clock: ManualClock, seconds: float) -> None:
    for _ in range(int(seconds * 4)):
        await clock.turn(timedelta(seconds=0.25))
        await at_rest()


async def test_forged_invites_do_not_delay_the_valid_one(clock: ManualClock) -> None:
    pool, node, forger, situation = Key.generate(), Key.generate(), Key.generate(), Situation()
    chain, registrar, service = ScriptedChain(pool.address), registrar_of((), clock, situation), LyingService()
    expiry = int(clock.now().timestamp()) + 300
    for nonce, key in enumerate([*[forger] * 60, pool]):
        invite = Invite(pool_id=1, domain_id=1, node=node.address, nonce=nonce, expiry=expiry, url=URL)
        signature = invite.sign(key, chain.invites_domain)
        left: Any = (service, SignedInvite.of(invite, domain=chain.invites_domain, signature=signature))
        registrar._invites.put_nowait(left)
    joiner = Joiner(
        node=node.address,
        pool_id=1,
        chain=cast("LedgerChain", chain),
        registrar=registrar,
        clock=clock,
        situation=situation,
        allow_plain_http=False,
        longest_pause=timedelta(seconds=30),
    )
    joining = asyncio.create_task(joiner.join())
    await turned(clock, 60)
    assert joining.done()
    assert joining.result().orchestrator == pool.address


@pytest.mark.parametrize(("expires", "seen"), [(MAX_INT64, 0), (0, MAX_INT64), (MAX_INT64, MAX_INT64)])
async def test_registration_succeeds_with_a_service_that_states_impossible_times(
    clock: ManualClock, expires: int, seen: int
) -> None:
    service = LyingService(expires_at_ms=expires, last_seen_ms=seen)
    registrar = registrar_of((service,), clock, Situation())
    keeping = asyncio.create_task(registrar._keep_registered(registrar._services[0]))
    await at_rest()
    await turned(clock, 1)
    assert not keeping.done()
    assert service.registered == 1
    keeping.cancel()


@pytest.mark.parametrize(
    ("record", "level", "words"),
    [
        (PoolRecord(accepted=20), "info", "100% were accepted"),
        (PoolRecord(accepted=10, expired=10), "warning", "50% expired without a verdict"),
        (Unavailable("the chain is down"), "info", "could not be read"),
    ],
)
async def test_a_joining_node_logs_whether_the_pool_pays(
    clock: ManualClock, record: PoolRecord | Unavailable, level: str, words: str
) -> None:
    pool, node = Key.generate(), Key.generate()
    chain = Newcomer(pool.address, record)
    expiry = int(clock.now().timestamp()) + 300
    invite = Invite(pool_id=1, domain_id=1, node=node.address, nonce=1, expiry=expiry, url=URL)
    signed = SignedInvite.of(invite, domain=chain.invites_domain, signature=invite.sign(pool, chain.invites_domain))
    joiner = Joiner(
        node=node.address,
        pool_id=1,
        chain=cast("LedgerChain", chain),
        registrar=registrar_of((), clock, Situation()),
        clock=clock,
        situation=Situation(),
        allow_plain_http=False,
        longest_pause=timedelta(seconds=30),
    )
    with capture_logs() as lines:
        await joiner._accept(signed)
    assert chain.joined
    [line] = [line for line in lines if line["event"] == "joining"]
    assert line["log_level"] == level
    assert words in line["record"]
