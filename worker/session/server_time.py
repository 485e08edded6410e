"""A clock that follows the orchestrator's time, so that requests stay valid when this machine's clock is wrong.

Signed requests carry a time and are refused if it is more than a minute off. The orchestrator's signed answers carry
its time; this clock adds the monotonic seconds since the last answer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from protocol.runtime.clock import Clock


class ServerTime:
    """Returns the orchestrator's time, or this machine's before the first signed answer.

    Args:
        clock: The machine's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._anchor: tuple[datetime, float] | None = None

    def update(self, server_time_ms: int) -> timedelta:
        """Sets the time from a signed answer; returns how far this machine's clock is ahead of it."""
        server_time = datetime.fromtimestamp(server_time_ms / 1000, UTC)
        self._anchor = (server_time, self._clock.monotonic())
        return self._clock.now() - server_time

    def now(self) -> datetime:
        """Returns the orchestrator's time as estimated from its last answer."""
        if self._anchor is None:
            return self._clock.now()
        server_time, at = self._anchor
        return server_time + timedelta(seconds=self._clock.monotonic() - at)

    def monotonic(self) -> float:
        """Returns the machine's monotonic time in seconds."""
        return self._clock.monotonic()

    async def sleep(self, duration: timedelta) -> None:
        """Sleeps by the machine's clock."""
        await self._clock.sleep(duration)
