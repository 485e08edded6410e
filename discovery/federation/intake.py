"""Checks the statements that a peer passes on, and stores those that are newer than the held ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from pydantic import ValidationError

from discovery.directory import NodeDirectory
from protocol.errors import InvalidInput, MusterError, Unauthenticated
from protocol.http.replay_guard import CLOCK_WINDOW
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.wire.base import parse_answer
from protocol.wire.federation import NodeStatement, NodeStatementPage
from protocol.wire.nodes import Registration

STATEMENT_BYTES = 500
"""Approximate size of a statement without its body."""
PAGE_BYTES = 64 * 1024
"""Size as which a smaller page counts, because an empty page costs a request, too."""


class PeerLied(MusterError):
    """A peer's answer can't come from a service that checks what it stores."""

    code = "peer-lied"


@dataclass(frozen=True, slots=True)
class Taken:
    """Result of one page."""

    checked: int = 0
    """Number of statements whose signatures were checked."""
    stored: int = 0
    """Number of registrations that were stored."""
    refused: int = 0
    """Number of registrations that were refused by the limits of federation."""
    bytes: int = 0
    """Approximate size of the page."""


class StatementIntake:
    """Stores the statements of one peer.

    A statement is stored if its node signed it for this service or a peer of it, it would not have expired, it is newer
    than the one that is held, and the ledger's rules for registrations allow it.

    Args:
        directory: The service behind the API.
        audiences: Addresses of this service and of peers that the settings pin. A statement for another service is
            skipped: it may be from another ledger, which the signed text does not name.
        source: URL of the peer, to whose limit the statements count.
        life: Time until a registration expires.
        clock: Source of time.
    """

    def __init__(
        self,
        directory: NodeDirectory,
        *,
        audiences: Collection[Address],
        source: str,
        life: timedelta,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._source = source
        self._audiences = frozenset(audiences)
        self._life_ms = round(life.total_seconds() * 1000)
        self._clock = clock

    async def take(self, page: NodeStatementPage, *, peer: Address, after: Address | None) -> Taken:
        """Stores what is new in a page.

        Args:
            page: The peer's answer.
            peer: Address of the peer, for which its own nodes sign.
            after: Cursor of the page; None for the first page.

        Raises:
            PeerLied: The page is out of order, or a node did not sign its statement. Nothing of the page is stored.
        """
        _check_order(page, after)
        new = await self._new([each for each in page.statements if self._is_valid_now(each, peer)])
        for each in new:
            try:
                each.check()
            except (Unauthenticated, InvalidInput) as error:
                raise PeerLied(
                    f"it passed on a statement that {each.node} did not sign: {error.detail}",
                    hint="an honest service checks signatures: remove the peer, or ask its operator",
                ) from error
        registrations = await self._registrations(new)
        on_ledger = await self._directory.facts.known([each.node for each in new])
        removals = [each for each in new if each.body is None]
        merged = await self._directory.records.merge(registrations, removals, on_ledger=on_ledger, source=self._source)
        size = sum(len((each.body or "").encode()) + STATEMENT_BYTES for each in page.statements)
        return Taken(checked=len(new), stored=merged.stored, refused=merged.refused, bytes=max(size, PAGE_BYTES))

    def _is_valid_now(self, statement: NodeStatement, peer: Address) -> bool:
        now_ms = unix_ms(self._clock.now())
        latest_ms = now_ms + round(CLOCK_WINDOW.total_seconds() * 1000)  # the node's clock may be ahead by as much
        return (
            statement.audience in self._audiences | {peer}
            and now_ms - self._life_ms < statement.timestamp_ms <= latest_ms
        )

    async def _new(self, statements: Sequence[NodeStatement]) -> list[NodeStatement]:
        """Returns those that may be newer than the held ones, so that no signature is checked twice."""
        if not statements:
            return []
        held = await self._directory.records.held([each.node for each in statements])
        return [
            each
            for each, (at_ms, signature) in zip(statements, held, strict=True)
            if each.timestamp_ms > at_ms or (each.timestamp_ms == at_ms and each.signature != signature)
        ]

    async def _registrations(self, statements: Sequence[NodeStatement]) -> list[tuple[NodeStatement, Registration]]:
        """Returns the registrations for pools that are on the ledger, with their parsed bodies.

        Unlike a node's own registration, none is taken for a pool that may be new: a peer could invent any number.
        """
        found = [(each, body) for each in statements if (body := _parsed(each)) is not None]
        pools = {body.pool_id for _, body in found}
        known = {pool for pool in sorted(pools) if await self._directory.facts.has_pool(pool)}
        return [(each, body) for each, body in found if body.pool_id in known]


def _check_order(page: NodeStatementPage, after: Address | None) -> None:
    """Checks that addresses rise and that the cursor moves forward, so that a round ends."""
    nodes: list[str] = [each.node for each in page.statements]
    places = [*([] if after is None else [after]), *nodes]
    rising = all(one < other for one, other in pairwise(places))
    cursor = page.next_cursor
    if not rising or (cursor is not None and (cursor < max(places, default="") or cursor == after)):
        raise PeerLied(
            "its page of statements is not in the order of addresses, or its cursor does not move forward",
            hint="the peer may have an incompatible release: ask its operator",
        )


def _parsed(statement: NodeStatement) -> Registration | None:
    """Returns the body of a registration; None for a removal, or if this release can't read the body."""
    if statement.body is None:
        return None
    try:
        return parse_answer(Registration, statement.body.encode())
    except ValidationError:
        return None
