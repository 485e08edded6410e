"""Queue items that this process has leased."""

from __future__ import annotations

import structlog

from validator.domain.items import Item, ItemId
from validator.queue.store import WorkQueue

_log = structlog.get_logger(__name__)


class HeldItems:
    """The leased items of this process; renews all leases in one round trip.

    Args:
        queue: The queue of the items.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._held: dict[ItemId, Item] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, item: Item) -> None:
        """Adds a leased item."""
        self._held[item.id] = item

    def remove(self, item: Item) -> None:
        """Removes an item whose lease ended."""
        held = self._held.get(item.id)
        if held is not None and held.token == item.token:
            del self._held[item.id]

    async def renew(self) -> None:
        """Renews all leases. The items of lost leases are removed; the queue refuses further writes under them.

        Raises:
            StoreUnavailable: Redis is down.
        """
        for name in await self._queue.keep({name: item.token for name, item in self._held.items()}):
            if self._held.pop(name, None) is not None:
                _log.warning("lease-lost", item=name)

    async def give_back(self) -> None:
        """Returns all items to the queue, when the service stops."""
        for item in list(self._held.values()):
            self.remove(item)
            await self._queue.give_back(item)
