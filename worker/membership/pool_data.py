"""Learns from the pool's orchestrator which discovery services the pool uses, and from the ledger where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import httpx

from ledger.artifacts import Contract
from protocol.clients import DiscoveryClient, NodeClient, ServiceLocation
from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.runtime.backoff import GrowingPause
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import jittered
from protocol.runtime.retry import Backoff
from protocol.runtime.waiting import sleep_or
from protocol.wire.joining import MOST_DISCOVERY, JoiningInformation
from worker.chain.ledger_chain import LedgerChain
from worker.membership.joining import OrchestratorLocation
from worker.membership.reach import PoolReach
from worker.membership.registration import Registrar
from worker.settings import WorkerSettings
from worker.state import StateDirectory

ASK_EVERY = timedelta(hours=1)
"""Pause between two questions about the pool's discovery services; it has jitter."""
FIRST_PAUSE = timedelta(minutes=1)
"""Pause after the first failed question; it doubles with each further one, up to `ASK_EVERY`."""
ASK_TIMEOUT = timedelta(seconds=15)
"""Time limit of one question."""
SAVED_AS = "discovery"
"""Name under which the learned services are saved."""

_ONE_ATTEMPT = Backoff(attempts=1)
_log = get_logger(__name__)


class PoolData:
    """Adds the discovery services that the pool names to those of the settings, and finds a pool that has moved.

    The orchestrator signs the list, with the key that the ledger names. The services only have to answer: a node acts
    on nothing that they say without the pool's signature. The learned ones are saved, so that a worker finds them again
    while the orchestrator and the services of its settings are down.

    Args:
        settings: Settings of the worker.
        key: The node's key.
        chain: The ledger.
        state: State directory.
        registrar: Registrar, which gets the learned services.
        orchestrator: Function that returns the orchestrator's present URL; None while the node is not a member.
        clock: Source of time.
        transport: HTTP transport for tests that serve everything in one process.
    """

    def __init__(
        self,
        *,
        settings: WorkerSettings,
        key: Key,
        chain: LedgerChain,
        state: StateDirectory,
        registrar: Registrar,
        orchestrator: Callable[[], str | None],
        clock: Clock,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._key = key
        self._chain = chain
        self._state = state
        self._registrar = registrar
        self._orchestrator = orchestrator
        self._clock = clock
        self._transport = transport
        self._reach = PoolReach(settings)
        self._learned = 0
        self.outcome = ""
        """Result of the last search on the ledger, as text."""
        self.joined = asyncio.Event()
        """Event that makes `run` ask early: the orchestrator's URL is known or has changed."""

    async def run(self) -> None:
        """Adds the saved services, then asks for the pool's services until it is cancelled; a background loop."""
        saved = self._state.read(SAVED_AS) or {}
        if saved.get("pool_id") == self._settings.pool_id:
            await self._add([str(each) for each in saved.get("services", ())][:MOST_DISCOVERY])
        pause = GrowingPause(first=FIRST_PAUSE, longest=ASK_EVERY)
        while True:
            self.joined.clear()
            try:
                asked = await self.ask()
            except MusterError as error:
                asked = False
                _log.info("pool-not-asked", detail=error.detail)
            if asked:
                pause.succeeded()
            await sleep_or(self._clock, jittered(ASK_EVERY) if asked else pause.failed(), self.joined)

    async def ask(self) -> bool:
        """Asks the orchestrator for the pool's discovery services: at its present URL, or at the ledger's.

        Returns False if neither URL is known.

        Raises:
            MusterError: The orchestrator answers at neither URL, or the chain can't be read.
        """
        url, on_ledger = self._orchestrator(), await self._chain.pool_url()
        orchestrator = await self._chain.orchestrator()
        if url is not None:
            try:
                await self._ask_at(url, orchestrator)
            except MusterError:
                if on_ledger in {"", url}:
                    raise
            else:
                return True
        if on_ledger:
            await self._ask_at(on_ledger, orchestrator, destination=self._reach.address_of)
        return bool(on_ledger)

    async def find(self, membership: OrchestratorLocation) -> OrchestratorLocation | None:
        """Returns the membership with the URL that the ledger has, if the orchestrator answers there; None otherwise.

        Its discovery services are added too. The pool's owner puts the URL on the ledger, and the answer must be
        signed by the orchestrator's key on the ledger.
        """
        try:
            url = await self._chain.pool_url()
            orchestrator = await self._chain.orchestrator()
            if not url or url == membership.url:
                self.outcome = "the ledger names the same URL" if url else "the ledger names no URL"
                return None
            await self._ask_at(url, orchestrator, destination=self._reach.address_of)
        except MusterError as error:
            self.outcome = f"the URL on the ledger did not help: {error.detail}"
            return None
        self.outcome = f"the orchestrator answers at {url}, its URL on the ledger"
        return replace(membership, url=url, orchestrator=orchestrator)

    async def _ask_at(
        self, url: str, orchestrator: Address, *, destination: Callable[[str, int], Awaitable[str]] | None = None
    ) -> None:
        location = ServiceLocation(url, orchestrator)
        async with NodeClient(
            location,
            key=self._key,
            clock=self._clock,
            backoff=_ONE_ATTEMPT,
            allow_plain_http=self._settings.allow_plain_http,
            destination=destination,
            transport=self._transport,
        ) as client:
            answer = await client.joining(call_timeout=ASK_TIMEOUT)
        if not self._is_own_pool(answer):
            raise InvalidInput(
                f"the orchestrator at {url} answers for pool {answer.pool_id} of chain {answer.deployment.chain_id}, "
                f"not for pool {self._settings.pool_id}",
                hint="the pool's owner should correct the URL: `muster pool url`",
                code="another-pool",
            )
        await self._add(answer.discovery)
        services = list(answer.discovery)[:MOST_DISCOVERY]
        self._state.write(SAVED_AS, {"pool_id": self._settings.pool_id, "services": services})

    def _is_own_pool(self, answer: JoiningInformation) -> bool:
        domain = self._chain.invites_domain
        contract = answer.deployment.contracts.get(Contract.COMPUTE_POOLS)
        return (answer.pool_id, answer.deployment.chain_id, contract) == (
            self._settings.pool_id,
            domain.chain_id,
            domain.contract,
        )

    async def _add(self, services: list[str] | tuple[str, ...]) -> None:
        """Adds services that are not known by their URL yet."""
        for text in services:
            try:
                location = ServiceLocation.parse(text, allow_plain_http=self._settings.allow_plain_http)
                if location.url in {each.location.url for each in self._registrar.services}:
                    continue
                if self._learned >= MOST_DISCOVERY:
                    return
                await self._reach.check(location)
            except MusterError as error:
                _log.info("discovery-not-added", detail=error.detail)
                continue
            self._learned += 1
            self._registrar.add(
                DiscoveryClient(
                    location,
                    key=self._key,
                    clock=self._clock,
                    allow_plain_http=self._settings.allow_plain_http,
                    destination=self._reach.address_of,
                    transport=self._transport,
                )
            )
            _log.info("discovery-added", discovery=location.url)
