"""Delays new submissions until it is the turn of a validator on this Redis to judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from protocol.identifiers import Address
from validator.assignment.liveness import awake_of, rank_here
from validator.assignment.turns import delay_of
from validator.chain.connection import PoolChain
from validator.domain.items import ItemKind
from validator.domain.submissions import SubmittedWork
from validator.queue.store import NewItem
from validator.store.members import Members
from validator.store.validators import KnownValidators


class WorkOrder:
    """Computes delays from the place of this Redis' validators in the order of validators for each submission.

    Args:
        chain: Chain client of the validator's pool.
        known: Store of the validators' last activity on the ledger.
        members: Validator processes on this Redis.
        takeover: Time that a validator leaves to each validator before it in the order for a piece of work.
        awake_within: Time for which a validator counts as live after its last activity on the ledger.
    """

    def __init__(
        self,
        chain: PoolChain,
        *,
        known: KnownValidators,
        members: Members,
        takeover: timedelta,
        awake_within: timedelta,
    ) -> None:
        self._chain = chain
        self._known = known
        self._members = members
        self._takeover = takeover
        self._awake_within = awake_within

    async def heard_of(self, heard: Mapping[Address, int]) -> None:
        """Records the last activity of validators on the ledger.

        Args:
            heard: Block time of the last activity in Unix seconds, by validator.

        Raises:
            StoreUnavailable: Redis is down.
        """
        await self._known.heard_of(heard)

    async def queued(
        self, works: Sequence[SubmittedWork], *, deadline_s: int, left: timedelta, now: datetime
    ) -> list[NewItem]:
        """Returns new queue items, each delayed until the turn of the first validator on this Redis.

        Args:
            works: New submissions.
            deadline_s: Deadline of their verdicts, in Unix seconds.
            left: Time until that deadline.
            now: The chain's present time.

        Raises:
            ChainUnavailable: The chain does not answer.
            StoreUnavailable: Redis is down.
        """
        if not works:
            return []
        here: frozenset[Address] = await self._members.here()
        awake: frozenset[Address] = frozenset()
        if self._takeover > timedelta():
            heard, validators = await self._known.last_heard(), await self._chain.validators()
            awake = awake_of(validators, heard, now=now, within=self._awake_within)
        return [
            NewItem(
                work=work,
                kind=ItemKind.FIRST,
                deadline_s=deadline_s,
                delay=delay_of(rank_here(work.key, here=here, awake=awake), takeover=self._takeover, left=left),
            )
            for work in works
        ]
