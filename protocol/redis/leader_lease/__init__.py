"""Leader leases in Redis, by which one of several processes runs a background loop.

A lease's value contains a fencing token that grows with each new holder. A process that was paused may not notice that
it lost its lease. Scripts can refuse its writes by comparing the value first (`holds` in the orchestrator's prelude).
If a loop's scripts do not compare it, the loop's work must be harmless when two processes do it at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from protocol.redis.script_call import ScriptCall, ScriptRunner
from protocol.runtime.randomness import token_hex


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldLease(ScriptCall[str]):
    """Acquires, renews or releases a leader lease.

    The reply is the lease's value; it is empty while another holder has the lease.

    Args:
        loop: Name of the work that the lease protects.
        holder: Random id of the calling process.
        held: Value of the lease that the caller holds; empty if it holds none.
        lifetime_ms: Milliseconds after which the lease expires unless it is renewed; 0 releases it.
    """

    loop: str
    holder: str
    held: str
    lifetime_ms: int


class LeaderLease:
    """The leader lease of one background loop.

    Args:
        scripts: Script runner of the service.
        loop: Name of the work that the lease protects.
        lifetime: Time after which the lease expires unless it is renewed. Another process may then acquire it.
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
        """Acquires or renews the lease; returns whether this process holds it.

        Raises:
            StoreUnavailable: Redis does not answer. The lease then counts as lost.
        """
        async with self._asking:  # one request at a time: a late reply must not replace a newer value
            try:
                # `value` is not cleared before the request: the loop's work may use it concurrently in its writes.
                self.value = await self._call(self._lifetime_ms)
            except BaseException:
                self.value = ""
                raise
            return bool(self.value)

    async def give_up(self) -> None:
        """Releases the lease, so that another process can acquire it at once."""
        async with self._asking:
            if self.value:
                self.value = await self._call(0)

    async def _call(self, lifetime_ms: int) -> str:
        return await self._scripts.run(
            HoldLease(loop=self._loop, holder=self._holder, held=self.value, lifetime_ms=lifetime_ms)
        )
