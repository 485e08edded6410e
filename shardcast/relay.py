"""A relay: pulls versions from an origin or from other relays and streams them on, block by block, as they verify.

    async with Relay(store, upstreams=["https://origin.example"], run="devnet", signer=publisher_address) as relay:
        await relay.run()

It needs no trust and gives none: a block is passed on when it is what the publisher signed, and not before. What lies
in the store after a crash is read again, and only what is not right is fetched again.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from prometheus_client import CollectorRegistry

from protocol.errors import InvalidInput, MusterError, Unavailable
from protocol.identifiers import Address, run_id
from protocol.runtime.budgets import KeepRule, Needs, OverBudget, StoredVersion
from protocol.runtime.clock import Clock, SystemClock
from shardcast.delta.selection import stands_alone
from shardcast.download.peer_catalog import PeerCatalog
from shardcast.download.peer_client import PeerClient, PeerTimeouts, check_peers
from shardcast.download.peers import Peers
from shardcast.download.transfer import Transfer, TransferPace
from shardcast.errors import VersionDiskFull
from shardcast.local_version import MANIFEST_NAME, LocalVersion
from shardcast.manifest.manifest import BlockSpan, VersionKey
from shardcast.manifest.signers import Signers, signers_of
from shardcast.metrics import FetchingMetrics
from shardcast.origin import KEPT_VERSIONS
from shardcast.serve.connection_limits import ServingLimits
from shardcast.serve.server import Server
from shardcast.serve.version_index import VersionIndex

_FOLDER = re.compile(r"([0-9]{1,16})\.([0-9]{1,10})")
_AGAIN_FIRST = timedelta(milliseconds=200)
_AGAIN_MOST = timedelta(seconds=30)
"""Pause before a failed version is tried again; doubles from the first to the maximum."""

_log = structlog.get_logger(__name__)


class Relay:
    """Holds a run's newest versions and passes them on, while it is entered.

    Args:
        store: Where versions are kept; the relay's own.
        upstreams: URLs of the origin or of other relays; more than one lets it leave one that lies.
        run: The run's name, or its id.
        signer: The publisher's address; or `Signers`, with the key before it and until when that one counts.
        keep: Which versions are held, besides the bases that they need; a number, or a rule with a budget.
        follows_needs: Whether `need` reports which versions leases and open work need; until then nothing is removed.
        host: Address to listen on.
        port: 0 for any free one.
        tls: A certificate to serve with; without one, TLS is a reverse proxy's work.
        upstream_tls: For https upstreams; the system's authorities by default.
        limits: For strangers.
        patience: How long upstreams may take.
        pace: How much is asked for at a time.
        allow_plain_http: Lets `http` go to upstreams beyond this machine.
        registry: For metrics.
        clock: The system's by default.
        draws: Randomness of the draws between upstreams.

    Raises:
        InvalidInput: There is no upstream, or one has no URL that may be spoken to.
    """

    def __init__(
        self,
        store: Path,
        *,
        upstreams: Sequence[str],
        run: str,
        signer: Address | Signers,
        keep: int | KeepRule = KEPT_VERSIONS,
        follows_needs: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        upstream_tls: ssl.SSLContext | None = None,
        limits: ServingLimits | None = None,
        patience: PeerTimeouts | None = None,
        pace: TransferPace | None = None,
        allow_plain_http: bool = False,
        registry: CollectorRegistry | None = None,
        clock: Clock | None = None,
        draws: random.Random | None = None,
    ) -> None:
        keep = KeepRule(most=keep) if isinstance(keep, int) else keep
        if keep.most < 1:
            raise InvalidInput(f"a relay keeps at least one version, not {keep.most}")
        clock = SystemClock() if clock is None else clock
        registry = CollectorRegistry() if registry is None else registry
        self.run_id = run_id(run)
        signers = signers_of(signer)
        self.peers = Peers(check_peers(upstreams, allow_plain_http=allow_plain_http), draws=draws)
        self.shelf = VersionIndex(run=self.run_id, publisher=signers.publisher, clock=clock)
        self.server = Server(
            self.shelf,
            host=host,
            port=port,
            tls=tls,
            limits=limits,
            registry=registry,
            check=self._check_ready,
            clock=clock,
        )
        self.metrics = FetchingMetrics(registry)
        self._store = store
        self._keep = keep
        self._follows_needs = follows_needs
        self._needs: Needs | None = None
        self._over_budget = OverBudget(store)
        self._clock = clock
        self._pace = pace
        self._upstream = PeerClient(patience=patience, tls=upstream_tls)
        self._directory = PeerCatalog(
            run=self.run_id,
            signers=signers,
            peers=self.peers,
            upstream=self._upstream,
            metrics=self.metrics,
            clock=clock,
        )
        self._stack = AsyncExitStack()
        self._keeping_up: asyncio.Task[None] | None = None
        self._work: dict[LocalVersion, asyncio.Task[None]] = {}
        self._known: dict[LocalVersion, list[BlockSpan]] = {}
        self._complete: set[LocalVersion] = set()
        self._failures: dict[VersionKey, int] = {}
        self._later: dict[VersionKey, float] = {}
        self._turn = asyncio.Event()
        self._given_up = -1
        """The newest version that the budget took away."""

    @property
    def url(self) -> str:
        """Returns the URL for clients and other relays."""
        return self.server.url

    @property
    def signers(self) -> Signers:
        """Returns the accepted signers."""
        return self._directory.signers

    def trust(self, signers: Signers) -> None:
        """Sets the accepted signers after a rotation. Held versions stay until their place is needed."""
        self._directory.trust(signers)
        self.shelf.publisher = signers.publisher
        self.shelf.changed()
        self._turn.set()

    def held(self) -> list[int]:
        """The versions that are held."""
        return [holding.manifest.key.version for holding in self.shelf]

    def need(self, needs: Needs | None) -> None:
        """Sets the versions that leases and open work need; with None (unknown) nothing may be removed."""
        self._needs = needs
        self._turn.set()

    async def __aenter__(self) -> Self:
        self._store.mkdir(parents=True, exist_ok=True)
        self._take_up()
        await self._stack.enter_async_context(self.server)
        await self._stack.enter_async_context(self._upstream)
        await self._stack.enter_async_context(self._directory)
        self._keeping_up = asyncio.create_task(self._keep_up())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._work.values(), *([self._keeping_up] if self._keeping_up else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()

    async def run(self) -> None:
        """Goes on until it is cancelled.

        Raises:
            Exception: What ended the relay's work, if something did.
        """
        if self._keeping_up is not None:
            await asyncio.shield(self._keeping_up)

    async def _keep_up(self) -> None:
        """Adopts what is newest, fetches what is missing, lets go of what is old; at each change, and never by rote."""
        while True:
            seen = self._directory.revision
            await self._adopt()
            for old in self.shelf.surplus(self._kept()):
                await self._let_go(old)
            self._start_work()
            await self._next_turn(seen)

    async def _adopt(self) -> None:
        """Takes up each version that is real and among the newest, and the bases of those that are held."""
        passed = {key for key in self._directory.listed() if self._has(key)}
        while (key := await self._directory.newest(but=passed)) is not None:
            passed.add(key)
            newer = sum(self._counts(holding) and holding.manifest.key.version > key.version for holding in self.shelf)
            wanted = newer < self._keep.most and key.version > self._given_up
            if (wanted or self._is_base(key)) and self._later.get(key, 0.0) <= self._clock.monotonic():
                await self._begin(key)

    def _kept(self) -> list[LocalVersion]:
        """The versions that stay; those that the budget removed are not fetched again."""
        ranked = self.shelf.ranked(self._directory.counting())
        choice = self._keep.choose(self._marked(ranked))
        self.metrics.over_budget.set(choice.over)
        self._over_budget.note(choice.over)
        for holding, stays in zip(ranked[: self._keep.most], choice.stays, strict=False):
            if not stays and self._counts(holding):
                self._given_up = max(self._given_up, holding.manifest.key.version)
        return [holding for holding, stays in zip(ranked, choice.stays, strict=True) if stays]

    def _marked(self, ranked: list[LocalVersion]) -> list[StoredVersion]:
        """Returns the versions for the keep rule. Versions of signers that are no longer accepted are not needed."""
        stored = [self._stored(holding) for holding in ranked]
        if not self._follows_needs:
            return stored
        if self._needs is None:
            return [replace(each, needed=True) for each in stored]
        pairs = zip(ranked, stored, strict=True)
        counting = [(holding.manifest.key.version, each) for holding, each in pairs if self._counts(holding)]
        return self._needs.of(counting) + stored[len(counting) :]

    def _stored(self, holding: LocalVersion) -> StoredVersion:
        try:
            since = (self._store / str(holding.manifest.key)).stat().st_mtime
        except OSError:
            since = 0.0
        return StoredVersion(holding.manifest.size, since)

    def _has(self, key: VersionKey) -> bool:
        held = self.shelf.get(key.version)
        return held is not None and self._counts(held) and held.manifest.key >= key

    def _counts(self, holding: LocalVersion) -> bool:
        """Returns whether a version may displace others: versions of a stolen key can have any number."""
        return holding.manifest.signer in self._directory.counting()

    def _is_base(self, key: VersionKey) -> bool:
        needing = (holding.manifest for holding in self.shelf if not stands_alone(holding.manifest))
        return any(each.base is not None and each.base.version == key.version for each in needing)

    async def _begin(self, key: VersionKey) -> None:
        folder = self._store / str(key)
        voided = self.shelf.get(key.version)
        if voided is not None:
            # Much of the older attempt may be the same: its bytes are looked at before any are fetched.
            await self._stop(voided)
            (self._store / str(voided.manifest.key)).rename(folder)
        holding = self._holding(key)
        holding.start()
        self._known[holding] = []
        self.shelf.put(holding)
        _log.info("adopted", version=key.version, attempt=key.attempt)

    def _holding(self, key: VersionKey) -> LocalVersion:
        folder = self._store / str(key)
        return LocalVersion(
            self._directory.manifest(key),
            log=folder / MANIFEST_NAME,
            locate=lambda file: folder / ("deltas" if file.kind == "delta" else "files") / file.path,
        )

    def _take_up(self) -> None:
        """Restores versions from before a restart; their blocks count as missing until they are verified again."""
        for folder in self._store.iterdir():
            match = _FOLDER.fullmatch(folder.name)
            if match is None:
                continue
            holding = self._holding(VersionKey(int(match[1]), int(match[2])))
            held = self.shelf.get(holding.manifest.key.version)
            known = holding.resume() if (folder / MANIFEST_NAME).exists() else []
            if holding.manifest.length and (held is None or held.manifest.key < holding.manifest.key):
                self._known[holding] = known
                self.shelf.put(holding)
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _start_work(self) -> None:
        """The newest version that is not complete is fetched at once, and one of the others beside it."""
        now = self._clock.monotonic()
        waiting = [
            holding
            for holding in self.shelf.ranked(self._directory.counting())
            if holding not in self._complete and self._later.get(holding.manifest.key, 0.0) <= now
        ]
        for place, holding in enumerate(waiting):
            if holding not in self._work and (place == 0 or len(self._work) < 2):
                self._work[holding] = asyncio.create_task(self._complete_one(holding))

    async def _complete_one(self, holding: LocalVersion) -> None:
        key = holding.manifest.key
        transfer = Transfer(
            holding,
            peers=self.peers,
            upstream=self._upstream,
            metrics=self.metrics,
            clock=self._clock,
            pace=self._pace,
            advanced=self._noticing(holding),
        )
        began = self._clock.monotonic()
        try:
            await transfer.run(self._known[holding])
            for file in holding.manifest.files:
                await asyncio.to_thread(holding.settle, file.index)
        except MusterError as error:
            await self._note_failure(holding, error)
        else:
            self._complete.add(holding)
            self._failures.pop(key, None)
            self.metrics.versions.labels("complete").inc()
            self.metrics.seconds.observe(self._clock.monotonic() - began)
            _log.info("complete", version=key.version, attempt=key.attempt, received=transfer.received)
        finally:
            self._work.pop(holding, None)
            self._turn.set()

    async def _note_failure(self, holding: LocalVersion, error: MusterError) -> None:
        key = holding.manifest.key
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        wait = min(_AGAIN_FIRST * 2 ** min(failures, 10), _AGAIN_MOST)
        self._later[key] = self._clock.monotonic() + wait.total_seconds()
        self.metrics.versions.labels(error.code).inc()
        _log.warning("version-incomplete", version=str(key), why=error.detail, again_in_s=wait.total_seconds())
        if isinstance(error, VersionDiskFull):
            self.shelf.drop(holding)
            await asyncio.to_thread(shutil.rmtree, self._store / str(key), ignore_errors=True)
        else:
            self._known[holding] = holding.missing()

    def _noticing(self, holding: LocalVersion) -> Callable[[], None]:
        """Tells those below when a version has its first extension, and when it is sealed."""
        said: list[tuple[bool, bool]] = [(holding.manifest.length > 0, holding.manifest.sealed)]

        def look() -> None:
            now = (holding.manifest.length > 0, holding.manifest.sealed)
            if now != said[0]:
                said[0] = now
                self.shelf.changed()
                self._turn.set()

        return look

    async def _let_go(self, holding: LocalVersion) -> None:
        await self._stop(holding)
        self.shelf.drop(holding)
        await asyncio.to_thread(shutil.rmtree, self._store / str(holding.manifest.key), ignore_errors=True)
        _log.info("let-go", version=holding.manifest.key.version)

    async def _stop(self, holding: LocalVersion) -> None:
        work = self._work.pop(holding, None)
        if work is not None:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        self._complete.discard(holding)
        self._known.pop(holding, None)

    async def _next_turn(self, seen: int) -> None:
        """Waits until an upstream has something else, some work ended, or something may be tried again."""
        now = self._clock.monotonic()
        self._later = {key: at for key, at in self._later.items() if at > now}
        wait_s = min((at - now for at in self._later.values()), default=_AGAIN_MOST.total_seconds())
        waiting = [
            asyncio.ensure_future(each)
            for each in (
                self._directory.next_change(seen),
                self._turn.wait(),
                self._clock.sleep(timedelta(seconds=wait_s)),
            )
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
            self._turn.clear()

    async def _check_ready(self) -> None:
        if not self._directory.answered and not len(self.shelf):
            raise Unavailable("no upstream has answered yet")
        if self._keeping_up is not None and self._keeping_up.done():
            raise Unavailable("the relay's work has ended; the log says why")
