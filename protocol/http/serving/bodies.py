"""Limits on the bytes of request bodies in memory, in total and per caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from protocol.errors import MusterError, RateLimited, Unavailable

MOST_BYTES = 128 << 20
"""Budget in bytes of all request bodies in memory."""

MOST_OF_ONE = 8 << 20
"""Budget in bytes of one caller's bodies in memory (IPv6: of one /64)."""

UNCOUNTED = 4096
"""First bytes of each body that are not counted: a flood of large bodies must not keep heartbeats out."""

RETRY_AFTER = timedelta(seconds=5)


class BodyBudget:
    """Counts bytes of bodies that have arrived and are still held.

    Args:
        most: Budget in bytes of all bodies; callers with few bytes may exceed it by a quarter, so that a few addresses
            can't block all others.
        most_of_one: Budget in bytes of one caller.
        refused: Called with the name of a limit each time it is reached.
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
        """Adds bytes of a caller's bodies (negative: releases them); returns an error if they do not fit."""
        if size > 0:
            is_small = self._held[caller] + size <= self._most_of_one // 32
            reserve = self._most // 4 if is_small else 0
            if self._total + size > self._most + reserve:
                self._refused("bodies")
                return Unavailable(
                    f"the request bodies in memory hold {self._most} bytes already",
                    hint=f"send the request again in {RETRY_AFTER.total_seconds():.0f} s",
                )
            if self._held[caller] + size > self._most_of_one:
                self._refused("bodies-per-address")
                return RateLimited(
                    f"the request bodies of {caller} would hold more than {self._most_of_one} bytes",
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
    """Share of the budget that one request's body uses until the request ends.

    Args:
        budget: Budget of the server.
        caller: The client's address, or its IPv6 /64.
    """

    __slots__ = ("_budget", "_caller", "_closed", "_held", "refusal")

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget = budget
        self._caller = caller
        self._closed = False
        self._held = 0
        self.refusal: MusterError | None = None
        """Set when the body did not fit; its remaining bytes are dropped."""

    def take(self, size: int) -> bool:
        """Counts bytes that have arrived; false if they do not fit (`refusal` says why) or the request has ended."""
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
