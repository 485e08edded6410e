"""Leader leases: only one of several processes on one Redis runs each background loop at a time.

A lease's value contains a fencing token that grows with each new holder. Scripts that compare the value before they
write (`holds` in the orchestrator's prelude) keep out a loop that was paused and lost its lease. Where no script
compares it, the work must be harmless when two processes do it at once.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from protocol.redis.script_call import ScriptRunner
from protocol.redis.scripts import HoldLease
from protocol.runtime.randomness import token_hex


class LeaderLease:
    """The lease of one loop.

    Args:
        scripts: Script runner of the service.
        loop: Name of the work that the lease protects.
        lifetime: Time until the lease expires unless renewed; then another process may acquire it.
    """

    def __init__(self, scripts: ScriptRunner, loop: str, *, lifetime: timedelta) -> None:
        self._scripts = scripts
        self._loop = loop
        self.lifetime = lifetime
        self._lifetime_ms = int(lifetime.total_seconds() * 1000)
        self._holder = token_hex(8)
        self._asking = asyncio.Lock()
        self.value = ""
        """Fencing token for scripts; empty while another process holds the lease."""

    async def hold(self) -> bool:
        """Acquires or renews the lease; returns whether this process has it.

        Raises:
            StoreUnavailable: Redis can't answer; the lease then counts as lost.
        """
        async with self._asking:  # serialised: a late reply must not replace the value of a newer one
            try:
                # `value` stays set during the request to Redis, because concurrent iterations of the loop write with
                # it.
                self.value = await self._call(self._lifetime_ms)
            except BaseException:
                self.value = ""
                raise
            return bool(self.value)

    async def give_up(self) -> None:
        """Lets another process acquire the lease at once."""
        async with self._asking:
            if self.value:
                self.value = await self._call(0)

    async def _call(self, lifetime_ms: int) -> str:
        return await self._scripts.run(
            HoldLease(loop=self._loop, holder=self._holder, held=self.value, lifetime_ms=lifetime_ms)
        )
