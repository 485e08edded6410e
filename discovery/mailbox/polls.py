"""Limits the number of waiting long polls.

Each poll holds a connection and some memory for up to half a minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from protocol.errors import RateLimited
from protocol.http.rates import counted_as

RETRY_AFTER = timedelta(seconds=5)
"""Time after which a node may send a refused poll again (`Retry-After`)."""


class WaitingPolls:
    """Counts the polls that wait at this instance, in total and per IP, and refuses further ones at the limits.

    Args:
        most: Function that returns the maximum total of waiting polls. It is called for each poll, because the maximum
            depends on the process's limit of open files, which is known only when the server runs.
        per_ip: Maximum number of polls from one IPv4 address or one IPv6 /64.
    """

    def __init__(self, *, most: Callable[[], int], per_ip: int) -> None:
        self._most = most
        self._per_ip = per_ip
        self._waiting: Counter[str] = Counter()
        self._total = 0

    @contextmanager
    def one_from(self, ip: str) -> Iterator[None]:
        """Counts one poll for the duration of the context.

        Raises:
            RateLimited: Too many polls are waiting.
        """
        caller = counted_as(ip)
        if self._waiting[caller] >= self._per_ip:
            raise _too_many(
                f"{self._per_ip} polls from {ip} are waiting already", "send one poll at a time for each node"
            )
        if self._total >= self._most():
            raise _too_many(
                f"{self._total} polls are waiting here already", "try again later or use another discovery service"
            )
        self._waiting[caller] += 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]

    def __len__(self) -> int:
        return self._total


def _too_many(detail: str, hint: str) -> RateLimited:
    error = RateLimited(detail, retry_after=RETRY_AFTER, hint=hint)
    error.code = "too-many-polls"
    return error
