"""Relay: downloads versions from an origin or other relays, and serves them.

The relay serves each block as soon as it has verified the block.

    async with Relay(store, upstreams=["https://origin.example"], run="devnet", signer=publisher_address) as relay:
        await relay.run()

A relay trusts no upstream: it verifies each block against the signed manifest. The relay's own readers do not trust the
relay either. After a restart the relay verifies the blocks in its store again, and fetches only the missing and the
wrong blocks.
"""

from __future__ import annotations

import asyncio
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

from prometheus_client import CollectorRegistry

from protocol.errors import InvalidInput, MusterError, Unavailable
from protocol.identifiers import Address, run_id
from protocol.runtime.backoff import backoff
from protocol.runtime.budgets import KeepRule, Needs, OverBudget, StoredVersion
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import Random
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import wait_first
from shardcast.delta.selection import stands_alone
from shardcast.download.context import DownloadContext, TransferLimits
from shardcast.download.peer_catalog import PeerCatalog
from shardcast.download.peer_client import PeerClient, PeerTimeouts, check_peers
from shardcast.download.peers import Peers
from shardcast.download.transfer import Transfer
from shardcast.errors import VersionDiskFull
from shardcast.local_version import MANIFEST_NAME, LocalVersion
from shardcast.manifest.manifest import BlockSpan, VersionKey
from shardcast.manifest.signers import Signers, signers_of
from shardcast.metrics import DownloadMetrics
from shardcast.origin import KEPT_VERSIONS
from shardcast.serve.connection_limits import ServingLimits
from shardcast.serve.server import Server
from shardcast.serve.version_index import VersionIndex

_FOLDER = re.compile(r"([0-9]{1,16})\.([0-9]{1,10})")
"""Name of a version's folder in the store: version and attempt, as `VersionKey` is written."""
_FIRST_RETRY = timedelta(milliseconds=200)
_LONGEST_RETRY = timedelta(seconds=30)
"""Longest back-off before a failed version is fetched again. The first back-off is `_FIRST_RETRY`, and each further one
is twice as long."""

_log = get_logger(__name__)


class Relay:
    """Downloads the newest versions of a run and serves them; an async context manager.

    Args:
        store: The relay's own folder, for the versions that it holds.
        upstreams: URLs of the origin or of other relays. With several upstreams the relay can avoid a faulty one.
        run: Name or id of the run.
        signer: The publisher's address; or `Signers`, which adds the publisher's former key and the time until which
            its signatures are accepted.
        keep: Number of versions to hold, or a rule with a disk budget. The relay also holds the versions to which the
            deltas of these versions are applied.
        follows_needs: Whether the caller reports, by `need`, the versions that leases and open work need. If so, the
            relay removes no version before the first report.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free port.
        tls: TLS context with the certificate for https; None if a reverse proxy provides TLS.
        upstream_tls: TLS context for https upstreams; by default it trusts the system's certificate authorities.
        limits: Limits of the connections and requests that the relay serves.
        timeouts: Time-outs of requests to upstreams.
        requests: Limits of concurrent requests to upstreams.
        allow_plain_http: Whether `http` to upstreams on other machines is allowed.
        registry: Prometheus registry for the metrics; a new one by default.
        clock: Clock; the system clock by default.
        rng: Random generator for the choice between upstreams.

    Raises:
        InvalidInput: `upstreams` is empty, or a URL in it is invalid or not allowed.
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
        timeouts: PeerTimeouts | None = None,
        requests: TransferLimits | None = None,
        allow_plain_http: bool = False,
        registry: CollectorRegistry | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        keep = KeepRule(most=keep) if isinstance(keep, int) else keep
        if keep.most < 1:
            raise InvalidInput(f"a relay keeps at least one version, not {keep.most}")
        clock = SystemClock() if clock is None else clock
        registry = CollectorRegistry() if registry is None else registry
        self.run_id = run_id(run)
        signers = signers_of(signer)
        self.peers = Peers(check_peers(upstreams, allow_plain_http=allow_plain_http), rng=rng)
        self.versions = VersionIndex(run=self.run_id, publisher=signers.publisher, clock=clock)
        self.server = Server(
            self.versions,
            host=host,
            port=port,
            tls=tls,
            limits=limits,
            registry=registry,
            check=self._check_ready,
            clock=clock,
        )
        self.metrics = DownloadMetrics(registry)
        self._store = store
        self._keep = keep
        self._follows_needs = follows_needs
        self._needs: Needs | None = None
        self._over_budget = OverBudget(store)
        self._clock = clock
        self._context = DownloadContext(
            peers=self.peers,
            client=PeerClient(timeouts=timeouts, tls=upstream_tls),
            metrics=self.metrics,
            clock=clock,
            requests=requests or TransferLimits(),
        )
        self._catalog = PeerCatalog(self._context, run=self.run_id, signers=signers)
        self._stack = AsyncExitStack()
        self._reconciler: asyncio.Task[None] | None = None
        self._transfers: dict[LocalVersion, asyncio.Task[None]] = {}
        self._known: dict[LocalVersion, list[BlockSpan]] = {}
        """For each version, the blocks that its next transfer verifies on the disk, or fetches."""
        self._complete: set[LocalVersion] = set()
        """Versions that are sealed, and whose blocks are all present."""
        self._failures: dict[VersionKey, int] = {}
        """Number of consecutive failed transfers, by version."""
        self._retry_at: dict[VersionKey, float] = {}
        """End of the back-off of each version whose transfer failed, in seconds of the monotonic clock."""
        self._changed = asyncio.Event()
        """Event that wakes the reconciler."""
        self._newest_evicted = -1
        """Number of the newest version that was removed because of the disk budget; -1 if none was."""

    @property
    def url(self) -> str:
        """Returns the URL at which clients and other relays reach this relay."""
        return self.server.url

    @property
    def signers(self) -> Signers:
        """Returns the publisher keys whose versions the relay accepts."""
        return self._catalog.signers

    def trust(self, signers: Signers) -> None:
        """Replaces the accepted signers, after the pool's publisher key was rotated.

        Held versions of a key that is no longer accepted stay until the relay needs their disk space.
        """
        self._catalog.trust(signers)
        self.versions.publisher = signers.publisher
        self.versions.changed()
        self._changed.set()

    def held(self) -> list[int]:
        """Returns the numbers of the versions that the relay holds, complete or not, newest first."""
        return [local.manifest.key.version for local in self.versions]

    def need(self, needs: Needs | None) -> None:
        """Sets the versions that leases and open work need, which the relay must keep.

        Args:
            needs: The needs, as read from the ledger. None means that the needs are unknown; the relay then removes no
                version.
        """
        self._needs = needs
        self._changed.set()

    async def __aenter__(self) -> Self:
        self._store.mkdir(parents=True, exist_ok=True)
        self._resume()
        await self._stack.enter_async_context(self.server)
        await self._stack.enter_async_context(self._context.client)
        await self._stack.enter_async_context(self._catalog)
        self._reconciler = asyncio.create_task(self._reconcile())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._transfers.values(), *([self._reconciler] if self._reconciler else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()

    async def run(self) -> None:
        """Waits until the relay fails, or the waiting task is cancelled.

        Raises:
            Exception: The unexpected error that ended the relay's reconciler.
        """
        if self._reconciler is not None:
            await asyncio.shield(self._reconciler)

    async def _reconcile(self) -> None:
        """Adds new versions, removes old versions and starts transfers; repeats this after each change."""
        while True:
            seen = self._catalog.revision
            await self._add_new_versions()
            for old in self.versions.surplus(self._kept()):
                await self._remove(old)
            self._start_transfers()
            await self._next_change(seen)

    async def _add_new_versions(self) -> None:
        """Adds the newest verified versions, and the bases of held versions."""
        seen = {key for key in self._catalog.listed() if self._has(key)}
        while (key := await self._catalog.newest(without=seen)) is not None:
            seen.add(key)
            newer = sum(
                self._is_accepted(local) and local.manifest.key.version > key.version for local in self.versions
            )
            wanted = newer < self._keep.most and key.version > self._newest_evicted
            if (wanted or self._is_base(key)) and self._retry_at.get(key, 0.0) <= self._clock.monotonic():
                await self._add(key)

    def _kept(self) -> list[LocalVersion]:
        """Returns the versions to keep.

        The method also records the number of the newest version that the disk budget removes. Afterwards the relay
        fetches neither that version nor an older one, except as the base of a held version.
        """
        ranked = self.versions.ranked(self._catalog.accepted_signers())
        choice = self._keep.choose(self._stored_versions(ranked))
        self.metrics.over_budget.set(choice.over)
        self._over_budget.note(choice.over)
        for local, stays in zip(ranked[: self._keep.most], choice.stays, strict=False):
            if not stays and self._is_accepted(local):
                self._newest_evicted = max(self._newest_evicted, local.manifest.key.version)
        return [local for local, stays in zip(ranked, choice.stays, strict=True) if stays]

    def _stored_versions(self, ranked: list[LocalVersion]) -> list[StoredVersion]:
        """Returns the size and age of versions, and whether leases or open work need them.

        A version of a signer that is no longer accepted does not count as needed. While the needs are unknown, all
        versions count as needed.

        Args:
            ranked: The versions, those of accepted signers first.
        """
        stored = [self._stored(local) for local in ranked]
        if not self._follows_needs:
            return stored
        if self._needs is None:
            return [replace(each, needed=True) for each in stored]
        pairs = zip(ranked, stored, strict=True)
        accepted = [(local.manifest.key.version, each) for local, each in pairs if self._is_accepted(local)]
        return self._needs.of(accepted) + stored[len(accepted) :]

    def _stored(self, local: LocalVersion) -> StoredVersion:
        try:
            since = (self._store / str(local.manifest.key)).stat().st_mtime
        except OSError:
            since = 0.0
        return StoredVersion(local.manifest.size, since)

    def _has(self, key: VersionKey) -> bool:
        held = self.versions.get(key.version)
        return held is not None and self._is_accepted(held) and held.manifest.key >= key

    def _is_accepted(self, local: LocalVersion) -> bool:
        """Returns whether the version's signer is accepted now.

        Only accepted versions count towards the number to keep. Otherwise the thief of a former key, who can sign
        versions with the highest numbers, could displace all other versions.
        """
        return local.manifest.signer in self._catalog.accepted_signers()

    def _is_base(self, key: VersionKey) -> bool:
        dependent = (local.manifest for local in self.versions if not stands_alone(local.manifest))
        return any(each.base is not None and each.base.version == key.version for each in dependent)

    async def _add(self, key: VersionKey) -> None:
        folder = self._store / str(key)
        voided = self.versions.get(key.version)
        if voided is not None:
            # The new attempt takes over the folder of the older one, because many blocks of the two attempts may be
            # equal. The transfer verifies the blocks on disk, and fetches only those that differ.
            await self._stop(voided)
            (self._store / str(voided.manifest.key)).rename(folder)
        local = self._local(key)
        local.start()
        self._known[local] = []
        self.versions.put(local)
        _log.info("version-added", version=key.version, attempt=key.attempt)

    def _local(self, key: VersionKey) -> LocalVersion:
        folder = self._store / str(key)
        return LocalVersion(
            self._catalog.manifest(key),
            log=folder / MANIFEST_NAME,
            locate=lambda file: folder / ("deltas" if file.kind == "delta" else "files") / file.path,
        )

    def _resume(self) -> None:
        """Restores the versions in the store after a restart.

        The blocks of these versions count as missing until the relay has verified them again.
        """
        for folder in self._store.iterdir():
            match = _FOLDER.fullmatch(folder.name)
            if match is None:
                continue
            local = self._local(VersionKey(int(match[1]), int(match[2])))
            held = self.versions.get(local.manifest.key.version)
            known = local.resume() if (folder / MANIFEST_NAME).exists() else []
            if local.manifest.length and (held is None or held.manifest.key < local.manifest.key):
                self._known[local] = known
                self.versions.put(local)
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _start_transfers(self) -> None:
        """Starts transfers of incomplete versions.

        The transfer of the newest version always starts; the transfer of an older version starts only while fewer than
        two transfers run.
        """
        now = self._clock.monotonic()
        incomplete = [
            local
            for local in self.versions.ranked(self._catalog.accepted_signers())
            if local not in self._complete and self._retry_at.get(local.manifest.key, 0.0) <= now
        ]
        for place, local in enumerate(incomplete):
            if local not in self._transfers and (place == 0 or len(self._transfers) < 2):
                self._transfers[local] = asyncio.create_task(self._transfer(local))

    async def _transfer(self, local: LocalVersion) -> None:
        key = local.manifest.key
        transfer = Transfer(local, self._context, on_progress=self._progress_listener(local))
        began = self._clock.monotonic()
        try:
            await transfer.run(self._known[local])
            for file in local.manifest.files:
                await run_in_thread(local.truncate, file.index)
        except MusterError as error:
            await self._record_failure(local, error)
        else:
            self._complete.add(local)
            self._failures.pop(key, None)
            self.metrics.versions.labels("complete").inc()
            self.metrics.seconds.observe(self._clock.monotonic() - began)
            _log.info("version-complete", version=key.version, attempt=key.attempt, received=transfer.received)
        finally:
            self._transfers.pop(local, None)
            self._changed.set()

    async def _record_failure(self, local: LocalVersion, error: MusterError) -> None:
        key = local.manifest.key
        self._failures[key] = self._failures.get(key, 0) + 1
        wait = backoff(_FIRST_RETRY, _LONGEST_RETRY, self._failures[key])
        self._retry_at[key] = self._clock.monotonic() + wait.total_seconds()
        self.metrics.versions.labels(error.code).inc()
        _log.warning("version-incomplete", version=str(key), why=error.detail, again_in_s=wait.total_seconds())
        if isinstance(error, VersionDiskFull):
            self.versions.remove(local)
            await run_in_thread(shutil.rmtree, self._store / str(key), ignore_errors=True)
        else:
            self._known[local] = local.missing()

    def _progress_listener(self, local: LocalVersion) -> Callable[[], None]:
        """Returns a transfer's callback; it announces the version to this relay's readers.

        The callback announces the version when its first extension arrives, and again when the version is sealed.
        """
        announced = (local.manifest.length > 0, local.manifest.sealed)

        def on_progress() -> None:
            nonlocal announced
            state = (local.manifest.length > 0, local.manifest.sealed)
            if state != announced:
                announced = state
                self.versions.changed()
                self._changed.set()

        return on_progress

    async def _remove(self, local: LocalVersion) -> None:
        await self._stop(local)
        self.versions.remove(local)
        await run_in_thread(shutil.rmtree, self._store / str(local.manifest.key), ignore_errors=True)
        _log.info("version-removed", version=local.manifest.key.version)

    async def _stop(self, local: LocalVersion) -> None:
        transfer = self._transfers.pop(local, None)
        if transfer is not None:
            transfer.cancel()
            await asyncio.gather(transfer, return_exceptions=True)
        self._complete.discard(local)
        self._known.pop(local, None)

    async def _next_change(self, seen: int) -> None:
        """Waits until the catalog, a transfer, the needs or the signers change.

        The wait also ends when the next back-off ends; without a back-off, after `_LONGEST_RETRY` at the latest.

        Args:
            seen: Revision of the catalog that the reconciler has handled.
        """
        now = self._clock.monotonic()
        self._retry_at = {key: at for key, at in self._retry_at.items() if at > now}
        wait_s = min((at - now for at in self._retry_at.values()), default=_LONGEST_RETRY.total_seconds())
        pause = self._clock.sleep(timedelta(seconds=wait_s))
        try:
            await wait_first(self._catalog.next_change(seen), self._changed.wait(), pause)
        finally:
            self._changed.clear()

    async def _check_ready(self) -> None:
        if not self._catalog.answered and not len(self.versions):
            raise Unavailable("no upstream has answered yet")
        if self._reconciler is not None and self._reconciler.done():
            raise Unavailable(
                "the relay's reconciler ended with an error, so the relay fetches no more versions",
                hint="restart the relay; the log has the error",
            )
