"""Limits the bytes of request bodies in memory, in total and per caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from protocol.errors import MusterError, RateLimited, Unavailable

MOST_BYTES = 128 << 20
"""Maximum number of bytes of all request bodies in memory."""

MOST_OF_ONE = 8 << 20
"""Maximum number of bytes of one caller's request bodies in memory (an IPv4 address or IPv6 /64)."""

UNCOUNTED = 4096
"""Number of bytes at the start of each body that are not counted. So small requests such as heartbeats pass even while
large bodies use up the budget.
"""

RETRY_AFTER = timedelta(seconds=5)
"""Pause before a client should repeat a request whose body did not fit."""


class BodyBudget:
    """Counts the bytes of request bodies that have arrived and are still in memory.

    Args:
        most: Budget in bytes of all bodies. Callers with few bytes may exceed it by a quarter. Otherwise a few
            addresses could block all others.
        most_of_one: Budget in bytes of one caller.
        refused: Function that is called with the name of a limit each time that limit is reached.
    """

    def __init__(
        self, *, most: int = MOST_BYTES, most_of_one: int = MOST_OF_ONE, refused: Callable[[str], None]
    ) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._refused = refused
        self._held: Counter[str] = Counter()
        self._total = 0

    def change(self, caller: str, size: int) -> MusterError | None:
        """Adds bytes of a caller's bodies, or releases them if `size` is negative.

        Returns an error if added bytes do not fit; they are then not counted.
        """
        if size > 0:
            is_small = self._held[caller] + size <= self._most_of_one // 32
            reserve = self._most // 4 if is_small else 0
            if self._total + size > self._most + reserve:
                self._refused("bodies")
                return Unavailable(
                    f"the request bodies in the server's memory have {self._most} bytes already, the maximum",
                    hint=f"send the request again in {RETRY_AFTER.total_seconds():.0f} s",
                )
            if self._held[caller] + size > self._most_of_one:
                self._refused("bodies-per-address")
                return RateLimited(
                    f"the request bodies of {caller} in the server's memory would exceed {self._most_of_one} bytes",
                    retry_after=RETRY_AFTER,
                    hint="send fewer requests at a time",
                )
        self._total += size
        self._held[caller] += size
        if self._held[caller] <= 0:
            del self._held[caller]
        return None

    def __len__(self) -> int:
        return self._total


class BodyAccount:
    """Bytes that one request's body uses of the budget, until the request ends.

    Args:
        budget: Budget of the server.
        caller: IPv4 address of the client, or its IPv6 /64.
    """

    __slots__ = ("_budget", "_caller", "_closed", "_held", "refusal")

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget = budget
        self._caller = caller
        self._closed = False
        self._held = 0
        self.refusal: MusterError | None = None
        """Error for a body that did not fit, else None. The remaining bytes of such a body are dropped."""

    def take(self, size: int) -> bool:
        """Counts bytes that have arrived; returns whether they fit.

        If they do not fit, `refusal` gives the reason. After `close`, the method counts nothing and returns False.
        """
        if self._closed:
            return False
        self.refusal = self._budget.change(self._caller, size)
        if self.refusal is None:
            self._held += size
        return self.refusal is None

    def close(self) -> None:
        """Releases all counted bytes and stops counting."""
        self._closed = True
        self._budget.change(self._caller, -self._held)
        self._held = 0
