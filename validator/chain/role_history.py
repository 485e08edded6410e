"""History of a pool role on the ledger: the keys that held it in any past block."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.client import Ledger
from ledger.client.pools import Role
from ledger.events.types import RoleSet
from protocol.identifiers import Address
from validator.chain.reorgs import ReorgAwareCache, ReorgTracker


class RoleHistory:
    """The past and present holders of one role of a pool.

    The history is cached, and read again when the role's present holder has changed.

    Args:
        ledger: Ledger client.
        pool_id: Id of the pool.
        role: The role.
        reorgs: Tracker that detects reorganisations.
    """

    def __init__(self, ledger: Ledger, *, pool_id: int, role: Role, reorgs: ReorgTracker) -> None:
        self._ledger = ledger
        self._pool_id = pool_id
        self._role = role
        self._reorgs = reorgs
        self._rotations: ReorgAwareCache[Role, Sequence[RoleSet]] = ReorgAwareCache(reorgs)

    async def at(self, block: int, time: int) -> tuple[Address, ...]:
        """Returns all keys that could act in the role in a block, newest appointment first.

        Args:
            block: Number of the block.
            time: Unix time of the block in seconds. After a rotation (the appointment of another key), the former key
                can act until the time that the rotation names.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        return holders(await self.rotations(), block, time)

    async def rotations(self) -> Sequence[RoleSet]:
        """Returns all rotations of the role, in the order of the chain.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        mark, current = self._reorgs.mark(), await self._ledger.pools.role_holder(self._pool_id, self._role)
        known = self._rotations.get(self._role)
        if known and (known[-1].key, known[-1].previous_until) == (current.holder, current.previous_until):
            return known
        every = await self._ledger.history(RoleSet, pool_id=self._pool_id)
        found = [event for event in every if event.role == self._role]
        if found:
            self._rotations.put(self._role, found, block=found[-1].log.block_number, mark=mark)
        return found


def holders(rotations: Sequence[RoleSet], block: int, time: int) -> tuple[Address, ...]:
    """Returns all keys that could act in a role in a block, newest appointment first. No I/O.

    In the block of a rotation both keys count, because a transaction in that block may precede or follow the rotation.

    Args:
        rotations: All rotations of the role, in the order of the chain.
        block: Number of the block.
        time: Unix time of the block in seconds.
    """
    before = [each for each in rotations if each.log.block_number < block]
    within = [each for each in rotations if each.log.block_number == block]
    found: list[Address] = []
    for each in reversed((*before[-1:], *within)):
        found.append(each.key)
        if each.previous is not None and time < each.previous_until.timestamp():
            found.append(each.previous)
    return tuple(dict.fromkeys(found))
