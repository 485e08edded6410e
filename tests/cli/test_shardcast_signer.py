"""Relays and followers learn from the ledger that the publisher's key was rotated."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from inspect import signature

from structlog.testing import capture_logs

from cli.pool.ledger import create
from cli.shardcast.signer import (
    NEEDED_FOR,
    NEEDS_SEEN_WITHIN,
    ROTATION_SEEN_WITHIN,
    Source,
    signers_at,
)
from ledger.client.pools import RoleHolder
from protocol.errors import Unavailable
from protocol.identifiers import ZERO_ADDRESS, Address
from protocol.identity.keys import Key
from protocol.runtime.budgets import Needs
from protocol.runtime.clock import ManualClock
from shardcast.manifest.signers import Signers

FIRST, SECOND = (Key.generate().address for _ in range(2))
UNTIL = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_publisher_role_on_the_ledger_gives_the_accepted_signers_and_their_end() -> None:
    never = datetime.fromtimestamp(0, UTC)
    assert signers_at(RoleHolder(FIRST, ZERO_ADDRESS, never)) == Signers(publisher=FIRST)
    rotated = signers_at(RoleHolder(SECOND, FIRST, UNTIL))
    assert rotated == Signers(publisher=SECOND, former=FIRST, former_until=UNTIL)
    assert rotated.accepted_at(UNTIL - timedelta(seconds=1)) == (SECOND, FIRST)
    assert rotated.accepted_at(UNTIL) == (SECOND,)


async def test_a_rotation_is_reported_once_and_an_unreachable_chain_does_not_end_the_watch() -> None:
    clock, told = ManualClock(), list[Signers]()
    before, after = Signers(publisher=FIRST), Signers(publisher=SECOND, former=FIRST, former_until=UNTIL)
    answers: list[Signers | None] = [before, None, after, after]

    async def now() -> Signers:
        answer = answers.pop(0)
        if answer is None:
            raise Unavailable("the chain is down")
        return answer

    watching = asyncio.create_task(Source(before, None, now).watch(told.append, clock=clock))
    for expected in ([], [], [after], [after]):
        await clock.turn(ROTATION_SEEN_WITHIN)
        assert told == expected
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert answers == []


async def test_a_configured_publisher_address_is_used_without_a_ledger() -> None:
    given: Address = FIRST
    await Source(Signers(publisher=given), None).watch(lambda _: None, clock=ManualClock())


async def test_while_the_ledger_cannot_be_read_no_version_is_reported_as_unneeded() -> None:
    clock, told, asked = ManualClock(), list[Needs | None](), list[Collection[int]]()
    answers: list[Needs | None] = [Needs(at=1.0, leases=timedelta(hours=1), work=frozenset({3})), None, None]
    expected = [*answers]

    async def needs(held: Collection[int]) -> Needs:
        asked.append(held)
        answer = answers.pop(0)
        if answer is None:
            raise Unavailable("the chain is down")
        return answer

    source = Source(Signers(publisher=FIRST), None, None, needs)
    watching = asyncio.create_task(source.watch_needs(lambda: [4, 3], told.append, clock=clock))
    with capture_logs() as logs:
        await clock.turn(2 * NEEDS_SEEN_WITHIN)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert told == expected
    assert asked == [[4, 3]] * 3
    assert [line["event"] for line in logs] == ["needs-not-read"]  # once


async def test_without_a_ledger_versions_are_kept_for_the_periods_of_default_terms() -> None:
    clock, told = ManualClock(), list[Needs | None]()
    watching = asyncio.create_task(Source(Signers(publisher=FIRST), None).watch_needs(list, told.append, clock=clock))
    await clock.turn(NEEDS_SEEN_WITHIN)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    defaults = {name: option.default for name, option in signature(create).parameters.items()}
    periods = ("judge_period", "challenge_period", "dispute_period", "notice_period")
    assert timedelta(seconds=sum(defaults[period] for period in periods)) == NEEDED_FOR
    began = clock.now() - NEEDS_SEEN_WITHIN
    assert told == [Needs(at=at.timestamp(), leases=NEEDED_FOR) for at in (began, clock.now())]
