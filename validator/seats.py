"""Who held a role of the pool at a block that is long past, as the ledger's history tells it."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.client import Ledger
from ledger.client.pools import Role
from ledger.events import RoleSet
from protocol.identifiers import Address


class Seats:
    """The holders of one role; read again only when the ledger names another than the last known.

    Args:
        ledger: To read.
        pool_id: The pool.
        role: Which.
    """

    def __init__(self, ledger: Ledger, *, pool_id: int, role: Role) -> None:
        self._ledger = ledger
        self._pool_id = pool_id
        self._role = role
        self._rotations: Sequence[RoleSet] = ()

    async def at(self, block: int, time: int) -> tuple[Address, ...]:
        """Everybody who could act in the role in a block, the last to be appointed first.

        Within the block of a rotation both sides of it count: the contract saw one of them.

        Args:
            block: Its number.
            time: Its Unix time in seconds; a former key counts until the time that its rotation names.

        Raises:
            ChainUnavailable: The chain can't be asked.
        """
        rotations = await self._all()
        before = [each for each in rotations if each.log.block_number < block]
        within = [each for each in rotations if each.log.block_number == block]
        found: list[Address] = []
        for each in reversed((*before[-1:], *within)):
            found.append(each.key)
            if each.previous is not None and time < each.previous_until.timestamp():
                found.append(each.previous)
        return tuple(dict.fromkeys(found))

    def forget(self) -> None:
        """Forgets everything: the chain was reorganised."""
        self._rotations = ()

    async def _all(self) -> Sequence[RoleSet]:
        seat = await self._ledger.pools.seat(self._pool_id, self._role)
        last = self._rotations[-1] if self._rotations else None
        if last is None or (last.key, last.previous_until) != (seat.holder, seat.previous_until):
            every = await self._ledger.history(RoleSet, pool_id=self._pool_id)
            self._rotations = [event for event in every if event.role == self._role]
        return self._rotations
