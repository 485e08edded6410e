"""A node without gas joins through the relayer; if that fails, it joins by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import httpx
import pytest

from protocol.identity.keys import Key
from protocol.identity.signing import sign_response
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Invite, Join
from protocol.runtime.clock import ManualClock
from protocol.wire.invites import SignedInvite
from protocol.wire.relayed import JoinReceipt, JoinRequest, ReceiptState
from worker.membership.relayed_join import RELAYER_TIMEOUT, RelayedJoin

DOMAIN = SigningDomain(1, Key.generate().address)
POOL, NODE = Key.generate(), Key.generate()


@dataclass
class Orchestrator:
    """Answers `POST /v1/joins` with a scripted, signed answer."""

    clock: ManualClock
    states: list[ReceiptState]
    signer: Key = POOL
    asked: list[JoinRequest] = field(default_factory=list)

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(JoinRequest.model_validate_json(request.content))
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        body = JoinReceipt(state=state, reason="as the test says").model_dump_json().encode()
        asker, nonce = NODE.address, request.headers["X-Muster-Nonce"]
        headers = sign_response(self.signer, address=asker, nonce=nonce, status=200, body=body)
        return httpx.Response(200, content=body, headers=headers)


class HastyClock(ManualClock):
    """A clock that advances at once whenever a caller sleeps."""

    async def sleep(self, duration: timedelta) -> None:
        self.waited = getattr(self, "waited", timedelta()) + duration
        await self.turn(duration)


def invite(clock: ManualClock) -> SignedInvite:
    expiry = int(clock.now().timestamp()) + 300
    made = Invite(pool_id=1, domain_id=1, node=NODE.address, nonce=1, expiry=expiry, url="http://127.0.0.1:1")
    return SignedInvite.of(made, domain=DOMAIN, signature=made.sign(POOL, DOMAIN))


@pytest.mark.parametrize(
    ("states", "member_after", "signer", "carried"),
    [
        ([ReceiptState.CARRIED], 1, POOL, True),
        ([ReceiptState.QUEUED, ReceiptState.QUEUED, ReceiptState.CARRIED], 3, POOL, True),
        ([ReceiptState.CARRIED], 3, POOL, True),
        ([ReceiptState.REFUSED], 99, POOL, False),
        ([ReceiptState.CARRIED], 999, POOL, False),
        ([ReceiptState.CARRIED], 1, Key.generate(), False),
    ],
    ids=[
        "at once",
        "after a while",
        "the ledger is late",
        "refused",
        "claimed without a membership",
        "answered by another key",
    ],
)
async def test_the_ledger_decides_whether_the_join_was_relayed(
    states: list[ReceiptState], member_after: int, signer: Key, *, carried: bool
) -> None:
    clock = HastyClock()
    orchestrator = Orchestrator(clock, list(states), signer)
    looks = 0

    async def is_member() -> bool:
        nonlocal looks
        looks += 1
        return looks >= member_after

    relay = RelayedJoin(NODE, clock=clock, transport=orchestrator.transport())
    began = clock.monotonic()
    assert await relay.join(invite(clock), orchestrator=POOL.address, is_member=is_member) is carried
    assert clock.monotonic() - began <= (RELAYER_TIMEOUT + timedelta(seconds=2)).total_seconds()
    joining = orchestrator.asked[0]
    raw = bytes.fromhex(joining.signature[2:])
    assert Join(invite_hash=joining.invite.invite.hash).signer(raw, DOMAIN) == NODE.address


async def test_an_unreachable_orchestrator_causes_only_a_log_line() -> None:
    def down(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody there")

    async def is_member() -> bool:
        return False

    clock = HastyClock()
    relay = RelayedJoin(NODE, clock=clock, transport=httpx.MockTransport(down))
    assert await relay.join(invite(clock), orchestrator=POOL.address, is_member=is_member) is False
