"""Invites: a worker redeems only one that the pool signed for this node and ledger."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledger.amounts import UNIT
from protocol.clients.discovery import DiscoveryClient
from protocol.errors import InvalidInput, Unavailable
from protocol.identifiers import Address, address
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.invites import LONGEST_INVITE, Invite
from protocol.runtime.clock import ManualClock
from protocol.wire.invites import SignedInvite
from tests.worker.test_heartbeat import MEMBER
from worker.chain.ledger_chain import LedgerChain, NodeStatus
from worker.membership.joining import OrchestratorLocation, check_invite, load_membership, save_membership
from worker.membership.relocation import MOST_INVITES, Relocation
from worker.state import StateDirectory

NODE, ORCHESTRATOR = Key.generate(), Key.generate()
DOMAIN = SigningDomain(31337, address("0x" + "ab" * 20))
NOW = time.time()


def invited(**changes: Any) -> SignedInvite:
    """Returns a valid invite with the given changes, which the signature covers."""
    fields: dict[str, Any] = {
        "pool_id": 1,
        "domain_id": 1,
        "node": NODE.address,
        "nonce": 5,
        "expiry": int(NOW) + 100,
        "url": "https://orchestrator.example",
    }
    domain, key = changes.pop("domain", DOMAIN), changes.pop("key", ORCHESTRATOR)
    invite = Invite(**{**fields, **changes})
    return SignedInvite.of(invite, domain=domain, signature=invite.sign(key, domain))


def signer(invite: SignedInvite) -> str:
    return check_invite(invite, node=NODE.address, pool_id=1, domain=DOMAIN, now_s=NOW, allow_plain_http=False)


def test_a_valid_invite_names_its_signer() -> None:
    assert signer(invited()) == ORCHESTRATOR.address


@pytest.mark.parametrize(
    "change",
    [
        {"node": ORCHESTRATOR.address},
        {"pool_id": 2},
        {"expiry": int(NOW) - 1},
        {"domain": SigningDomain(1, DOMAIN.contract)},
        {"domain": SigningDomain(31337, NODE.address)},
        {"url": "http://orchestrator.example"},
        {"url": "https://user:pass@orchestrator.example"},
    ],
)
def test_an_invite_for_another_node_or_purpose_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        signer(invited(**change))


@pytest.mark.parametrize(
    "change", [{"url": "https://evil.example"}, {"nonce": "6"}, {"domain_id": 2}, {"expiry": 2**40}]
)
def test_an_altered_invite_has_another_signer(change: dict[str, Any]) -> None:
    assert signer(invited().model_copy(update=change)) != ORCHESTRATOR.address


def test_a_membership_is_remembered_only_for_its_pool(state: StateDirectory) -> None:
    membership = OrchestratorLocation(pool_id=1, url="https://x.example", orchestrator=ORCHESTRATOR.address)
    save_membership(state, membership)
    assert load_membership(state, 1) == membership
    assert load_membership(state, 2) is None
    (state.root / "membership.json").write_text("{torn")
    assert load_membership(state, 1) is None


READY = replace(MEMBER, member=False, free_stake=10 * UNIT, needed_stake=10 * UNIT)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (READY, None),
        (MEMBER, None),
        (replace(READY, provider=None), "no provider"),
        (replace(READY, banned=True), "banned"),
        (replace(READY, active=False), "not active"),
        (replace(READY, min_capacity=2), "capacity"),
        (replace(READY, free_stake=9 * UNIT), "9 MUST of free stake, but joining locks 10 MUST"),
    ],
)
def test_obstacles_to_joining_are_reported_with_advice(status: NodeStatus, words: str | None) -> None:
    obstacle = status.obstacle()
    if words is None:
        assert obstacle is None
    else:
        assert obstacle is not None
        assert words in obstacle[0]
        assert obstacle[1]


# Another URL

SOON, OLD_URL, NEW_URL = int(NOW) + 50, "https://old.example", "https://new.example"
HERE = OrchestratorLocation(pool_id=1, url=OLD_URL, orchestrator=ORCHESTRATOR.address, expiry=SOON)


class Mailbox:
    """The methods of a discovery client that finding a new URL uses."""

    location = SimpleNamespace(url="https://discovery.example")

    def __init__(self, *invites: SignedInvite, down: bool = False) -> None:
        self.waiting, self.down = invites, down

    async def invites(self, *, wait: timedelta) -> tuple[SignedInvite, ...]:
        assert not wait
        if self.down:
            raise Unavailable("discovery is down")
        return self.waiting


class RoleChain:
    """A ledger that knows the current orchestrator of the pool."""

    invites_domain = DOMAIN

    def __init__(self, *, down: bool = False) -> None:
        self.down, self.asked = down, 0

    async def is_orchestrator(self, who: Address) -> bool:
        return True  # a replaced key is also valid until its stated end

    async def orchestrator(self) -> Address:
        self.asked += 1
        if self.down:
            raise Unavailable("the chain is down")
        return ORCHESTRATOR.address


def relocation(*services: Mailbox, chain: RoleChain | None = None) -> Relocation:
    return Relocation(
        node=NODE.address,
        chain=cast("LedgerChain", chain or RoleChain()),
        services=cast("list[DiscoveryClient]", services),
        clock=ManualClock(datetime.fromtimestamp(NOW, UTC)),
        allow_plain_http=False,
    )


async def test_a_newer_invite_names_the_new_url() -> None:
    newest = invited(url=NEW_URL, expiry=SOON + 20)
    services = (
        Mailbox(down=True),
        Mailbox(invited(url="https://older.example", expiry=SOON + 10), newest),
        Mailbox(invited(url="https://forged.example", expiry=SOON + 40, key=NODE)),
    )
    moved = await relocation(*services).find(HERE)
    assert moved == replace(HERE, url=NEW_URL, expiry=SOON + 20)
    assert await relocation(*services).find(moved) is None


@pytest.mark.parametrize(
    "change",
    [
        {"expiry": SOON},
        {"expiry": SOON - 1},
        {"expiry": int(NOW + LONGEST_INVITE.total_seconds()) + 1},
        {"url": OLD_URL},
        {"key": NODE},
        {"node": ORCHESTRATOR.address},
        {"pool_id": 2},
        {"domain": SigningDomain(1, DOMAIN.contract)},
        {"url": "http://new.example"},
    ],
    ids=[
        "as old",
        "older",
        "too far ahead",
        "same url",
        "replaced key",
        "another node",
        "another pool",
        "another chain",
        "plain http",
    ],
)
async def test_an_invite_that_is_not_newer_or_not_valid_is_ignored(change: dict[str, Any]) -> None:
    mailbox = Mailbox(invited(**{"url": NEW_URL, "expiry": SOON + 20, **change}))
    assert await relocation(mailbox).find(HERE) is None


async def test_the_newest_valid_invite_decides_even_if_it_names_the_current_url() -> None:
    mailbox = Mailbox(invited(url=NEW_URL, expiry=SOON + 10), invited(url=OLD_URL, expiry=SOON + 20))
    assert await relocation(mailbox).find(HERE) is None


async def test_many_invites_cause_one_chain_read_and_an_unreachable_chain_changes_nothing() -> None:
    chain = RoleChain()
    forged = [invited(url=NEW_URL, expiry=SOON + 100 + n, nonce=n, key=Key.generate()) for n in range(MOST_INVITES + 9)]
    assert await relocation(Mailbox(*forged), chain=chain).find(HERE) is None
    assert chain.asked == 1
    good = Mailbox(invited(url=NEW_URL, expiry=SOON + 20))
    assert await relocation(good, chain=RoleChain(down=True)).find(HERE) is None
