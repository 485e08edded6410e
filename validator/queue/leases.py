"""Tracks the queue items that this process has leased, and renews their leases."""

from __future__ import annotations

from protocol.runtime.logs import get_logger
from validator.domain.items import Item, ItemId
from validator.queue.store import WorkQueue

_log = get_logger(__name__)


class HeldItems:
    """The queue items that this process has leased; one round trip renews all leases.

    Args:
        queue: The work queue.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._held: dict[ItemId, Item] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, item: Item) -> None:
        """Adds an item that this process has just leased."""
        self._held[item.id] = item

    def remove(self, item: Item) -> None:
        """Removes an item whose lease has ended, unless this process has leased the same item again since."""
        held = self._held.get(item.id)
        if held is not None and held.token == item.token:
            del self._held[item.id]

    async def renew(self) -> None:
        """Renews all leases, and removes the items whose leases were lost.

        The queue refuses all writes with the token of a lost lease.

        Raises:
            StoreUnavailable: Redis is down.
        """
        for name in await self._queue.keep({name: item.token for name, item in self._held.items()}):
            if self._held.pop(name, None) is not None:
                _log.warning("lease-lost", item=name)

    async def give_back(self) -> None:
        """Returns all leased items to the queue; called when the service stops or stays unhealthy.

        Raises:
            StoreUnavailable: Redis is down.
        """
        for item in list(self._held.values()):
            self.remove(item)
            await self._queue.give_back(item)
