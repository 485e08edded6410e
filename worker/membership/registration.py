"""Keeps the node registered at each discovery service.

An outage of one service does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from protocol.clients import DiscoveryClient
from protocol.errors import MusterError
from protocol.runtime.backoff import GrowingPause
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import sleep_or
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import Registration
from worker.chain.ledger_chain import describe_error
from worker.situation import Situation

SHORTEST_REFRESH = timedelta(seconds=5)
"""Minimum pause between two registrations at a service."""
LONGEST_REFRESH = timedelta(minutes=10)
"""Maximum pause between two registrations at a service."""
_POLL = timedelta(seconds=25)
"""Duration of one long poll for invites."""
_LONGEST_LIFE_MS = 7 * 24 * 3600 * 1000
"""Maximum lifetime of a registration in milliseconds; a longer lifetime in a service's answer is cut to this
maximum."""

_log = get_logger(__name__)


class Registrar:
    """Registers the node, refreshes the registrations, and polls for invites.

    Args:
        services: Clients of the discovery services of the settings, with this node's key.
        describe: Function that returns the current description of the machine.
        clock: Clock that measures the pauses.
        situation: Status of the worker, which is updated with the state of each registration.
        longest_pause: Maximum pause between attempts while a service is down.
    """

    def __init__(
        self,
        services: Sequence[DiscoveryClient],
        *,
        describe: Callable[[], Registration],
        clock: Clock,
        situation: Situation,
        longest_pause: timedelta,
    ) -> None:
        self._services = list(services)
        self._describe = describe
        self._clock = clock
        self._situation = situation
        self._longest_pause = longest_pause
        self._invites: asyncio.Queue[tuple[DiscoveryClient, SignedInvite]] = asyncio.Queue(maxsize=64)
        self._wanted = asyncio.Event()
        self._registered: dict[DiscoveryClient, asyncio.Event] = {each: asyncio.Event() for each in services}
        self._group: asyncio.TaskGroup | None = None

    @property
    def services(self) -> Sequence[DiscoveryClient]:
        """Clients of all services, those that `add` added last."""
        return self._services

    def add(self, service: DiscoveryClient) -> None:
        """Adds a service: the node registers there too, from now on."""
        self._services.append(service)
        self._registered[service] = asyncio.Event()
        if self._group is not None:
            self._start(self._group, service)

    async def run(self) -> None:
        """Refreshes registrations until the task that runs this method is cancelled.

        While `next_invite` waits, it also fetches invites.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for service in self._services:
                    self._start(group, service)
                self._group = group
                await asyncio.Event().wait()  # also without a service: `add` may add one
        finally:
            self._group = None

    async def next_invite(self) -> tuple[DiscoveryClient, SignedInvite]:
        """Returns the next invite from any service.

        The caller must verify it.
        """
        self._wanted.set()
        try:
            return await self._invites.get()
        finally:
            if self._invites.empty():
                self._wanted.clear()

    async def sign_off(self) -> None:
        """Deletes the registrations.

        Services that do not answer are skipped.
        """
        await asyncio.gather(*(self._sign_off(service) for service in self._services))

    async def _sign_off(self, service: DiscoveryClient) -> None:
        try:
            await service.sign_off()
        except MusterError as error:
            _log.info("sign-off-failed", discovery=service.location.url, detail=error.detail)

    def _start(self, group: asyncio.TaskGroup, service: DiscoveryClient) -> None:
        group.create_task(self._keep_registered(service))
        group.create_task(self._listen(service))

    async def _keep_registered(self, service: DiscoveryClient) -> None:
        url = service.location.url
        pause = GrowingPause(first=timedelta(seconds=1), longest=self._longest_pause)
        while True:
            try:
                registration = await run_in_thread(self._describe)
                record = await service.register(registration)
            except MusterError as error:
                if self._situation.discovery.get(url) != describe_error(error):
                    _log.warning("registration-failed", discovery=url, detail=error.detail, hint=error.hint)
                self._situation.discovery[url] = describe_error(error)
                await self._clock.sleep(pause.failed())
                continue
            pause.succeeded()
            self._registered[service].set()
            # The service chooses these numbers. They are clamped, because extreme ones overflow datetime and timedelta.
            life_ms = max(0, min(record.expires_at_ms - record.last_seen_ms, _LONGEST_LIFE_MS))
            life = timedelta(milliseconds=life_ms)
            self._situation.discovery[url] = f"registered until {self._clock.now() + life:%H:%M:%S} UTC"
            await self._clock.sleep(min(LONGEST_REFRESH, max(SHORTEST_REFRESH, life / 3)))

    async def _listen(self, service: DiscoveryClient) -> None:
        pause = GrowingPause(first=timedelta(seconds=1), longest=self._longest_pause)
        await self._registered[service].wait()
        seen: set[str] = set()
        while True:
            await self._wanted.wait()
            try:
                invites = await service.invites(wait=_POLL)
            except MusterError as error:
                self._situation.discovery[service.location.url] = describe_error(error)
                await self._clock.sleep(pause.failed())
                continue
            pause.succeeded()
            fresh = [invite for invite in invites if invite.nonce not in seen]
            for invite in fresh:
                await self._invites.put((service, invite))
            seen = {invite.nonce for invite in invites}
            if not fresh:  # avoids a busy loop: a service answers at once while it has invites, also known ones
                await sleep_or(self._clock, timedelta(seconds=1 if invites else 0.05))
