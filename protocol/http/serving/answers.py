"""Limits the bytes of answers that are buffered for slow clients, in total and per caller."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable

from protocol.http.rates import CallerAddresses, counted_as

MOST_BYTES = 128 << 20
"""Maximum number of buffered bytes of all answers."""

MOST_OF_ONE = 16 << 20
"""Maximum number of buffered bytes of one caller (an IPv4 address or IPv6 /64). A single answer may be larger."""

STALLED_S = 30.0
"""Seconds that a client has to read a buffered answer; each `LEAST_RATE` bytes add a second."""

LEAST_RATE = 16 * 1024
"""Average bytes per second that a client must read after the first `STALLED_S` seconds."""


class AnswerBudget:
    """Counts answer bytes that transports buffer because clients do not read them.

    If a caller exceeds its budget, the server closes the one of its connections that has waited longest. If all answers
    exceed the total budget, the server closes a connection of the caller with the most buffered bytes. Clients that
    read their answers are not affected.

    Args:
        callers: Trusted proxies, to which only the total budget applies.
        most: Total budget in bytes.
        most_of_one: Budget of one caller in bytes.
        refused: Function that is called with the name of a limit each time that limit is reached.
    """

    def __init__(
        self,
        *,
        callers: CallerAddresses,
        most: int = MOST_BYTES,
        most_of_one: int = MOST_OF_ONE,
        refused: Callable[[str], None],
    ) -> None:
        self._trusts = callers.trusts
        self._most = most
        self._most_of_one = most_of_one
        self._refused = refused
        self._by_caller: dict[str, OrderedDict[asyncio.Transport, int]] = {}
        self._callers: dict[asyncio.Transport, str] = {}
        self._held: Counter[str] = Counter()
        self._total = 0

    def hold(self, connection: asyncio.Transport, address: str) -> float:
        """Counts the bytes that a transport buffers, until `release` is called.

        Closes connections if a budget is exceeded.

        Args:
            connection: Transport that sends the answer.
            address: Address of the caller.

        Returns:
            Number of seconds within which the client must read the bytes.
        """
        self.release(connection)
        trusted = self._trusts(address)
        caller = address if trusted else counted_as(address)
        size = connection.get_write_buffer_size()
        self._by_caller.setdefault(caller, OrderedDict())[connection] = size
        self._callers[connection] = caller
        self._held[caller] += size
        self._total += size
        while not trusted and self._held[caller] > self._most_of_one and len(self._by_caller[caller]) > 1:
            self._cut_oldest(caller, limit="answers-per-address")
        while self._total > self._most:
            self._cut_oldest(max(self._held, key=self._held.__getitem__), limit="answers")
        return STALLED_S + size / LEAST_RATE

    def release(self, connection: asyncio.Transport) -> None:
        """Releases the bytes that are counted for a transport, if any."""
        caller = self._callers.pop(connection, None)
        if caller is None:
            return
        waiting = self._by_caller[caller]
        size = waiting.pop(connection)
        self._total -= size
        self._held[caller] -= size
        if not waiting:
            del self._by_caller[caller], self._held[caller]

    def _cut_oldest(self, caller: str, *, limit: str) -> None:
        self._refused(limit)
        connection = next(iter(self._by_caller[caller]))
        self.release(connection)
        connection.abort()

    def __len__(self) -> int:
        return self._total
