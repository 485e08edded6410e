"""A clock that follows the orchestrator's, so that this machine's clock may jump without anybody noticing.

Requests carry a time and are refused a minute off. The orchestrator's signed answers carry its time; from then on this
clock counts monotonic seconds from there.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from protocol.runtime.clock import Clock


class ServerTime:
    """Follows the last signed answer; the machine's clock until there is one.

    Args:
        clock: The machine's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._anchor: tuple[datetime, float] | None = None

    def heard(self, server_time_ms: int) -> timedelta:
        """Takes the time of a signed answer; returns by how much the machine's own clock is ahead of it."""
        told = datetime.fromtimestamp(server_time_ms / 1000, UTC)
        self._anchor = (told, self._clock.monotonic())
        return self._clock.now() - told

    def now(self) -> datetime:
        """The orchestrator's time, as well as it is known."""
        if self._anchor is None:
            return self._clock.now()
        told, at = self._anchor
        return told + timedelta(seconds=self._clock.monotonic() - at)

    def monotonic(self) -> float:
        """The machine's."""
        return self._clock.monotonic()

    async def sleep(self, duration: timedelta) -> None:
        """The machine's."""
        await self._clock.sleep(duration)
