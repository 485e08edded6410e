"""Invites: only one that the pool signed, for this node and this ledger, is redeemed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import InvalidInput
from protocol.identifiers import address
from protocol.invites import Invite
from protocol.keys import Key
from protocol.typed_data import SigningDomain
from protocol.wire.invites import SignedInvite
from tests.worker.test_heart import MEMBER
from worker.chain import Standing
from worker.membership import Membership, check_invite, load_membership, save_membership
from worker.state import StateDirectory

NODE, ORCHESTRATOR = Key.generate(), Key.generate()
DOMAIN = SigningDomain(31337, address("0x" + "ab" * 20))
NOW = time.time()


def invited(**changes: Any) -> SignedInvite:
    """An invite that is right but for the changes, each of which is signed too."""
    fields: dict[str, Any] = {
        "pool_id": 1,
        "domain_id": 1,
        "node": NODE.address,
        "nonce": 5,
        "expiry": int(NOW) + 100,
        "url": "https://orchestrator.example",
    }
    domain = changes.pop("domain", DOMAIN)
    invite = Invite(**{**fields, **changes})
    return SignedInvite.of(invite, domain=domain, signature=invite.sign(ORCHESTRATOR, domain))


def signer(invite: SignedInvite) -> str:
    return check_invite(invite, node=NODE.address, pool_id=1, domain=DOMAIN, now_s=NOW, allow_plain_http=False)


def test_a_good_invite_names_its_signer() -> None:
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
def test_an_invite_for_somebody_or_something_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        signer(invited(**change))


@pytest.mark.parametrize(
    "change", [{"url": "https://evil.example"}, {"nonce": "6"}, {"domain_id": 2}, {"expiry": 2**40}]
)
def test_an_altered_invite_has_another_signer(change: dict[str, Any]) -> None:
    assert signer(invited().model_copy(update=change)) != ORCHESTRATOR.address


def test_a_membership_is_remembered_for_its_pool_only(state: StateDirectory) -> None:
    membership = Membership(pool_id=1, url="https://x.example", orchestrator=ORCHESTRATOR.address)
    save_membership(state, membership)
    assert load_membership(state, 1) == membership
    assert load_membership(state, 2) is None
    (state.root / "membership.json").write_text("{torn")
    assert load_membership(state, 1) is None


READY = replace(MEMBER, member=False, free_stake=10, needed_stake=10)


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (READY, None),
        (MEMBER, None),
        (replace(READY, provider=None), "no provider"),
        (replace(READY, banned=True), "banned"),
        (replace(READY, active=False), "not open"),
        (replace(READY, min_capacity=2), "capacity"),
        (replace(READY, free_stake=9), "stake"),
    ],
)
def test_what_keeps_a_node_out_is_said_with_what_to_do(standing: Standing, words: str | None) -> None:
    obstacle = standing.obstacle()
    if words is None:
        assert obstacle is None
    else:
        assert obstacle is not None
        assert words in obstacle[0]
        assert obstacle[1]
