"""A clock that follows the orchestrator's time.

Requests then stay valid when this machine's clock is wrong.

A signed request carries a timestamp, and the service refuses the request if the timestamp is more than a minute off.
The orchestrator's signed answers carry the orchestrator's time. This clock adds the monotonic seconds since the last
answer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from protocol.runtime.clock import Clock


class ServerTime:
    """Clock that returns the orchestrator's time.

    Before the first signed answer it returns this machine's time.

    Args:
        clock: The machine's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._anchor: tuple[datetime, float] | None = None

    def update(self, server_time_ms: int) -> timedelta:
        """Sets the time from a signed answer.

        Returns the time by which this machine's clock is ahead of the orchestrator's.
        """
        server_time = datetime.fromtimestamp(server_time_ms / 1000, UTC)
        self._anchor = (server_time, self._clock.monotonic())
        return self._clock.now() - server_time

    def now(self) -> datetime:
        """Returns the orchestrator's time, estimated from its last answer."""
        if self._anchor is None:
            return self._clock.now()
        server_time, at = self._anchor
        return server_time + timedelta(seconds=self._clock.monotonic() - at)

    def monotonic(self) -> float:
        """Returns the machine's monotonic time in seconds."""
        return self._clock.monotonic()

    async def sleep(self, duration: timedelta) -> None:
        """Sleeps for `duration` on the machine's clock."""
        await self._clock.sleep(duration)
