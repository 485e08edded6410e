"""The daemon: registers, joins, beats, converges, delivers; ends in order when it is told to.

    registrar   keeps the record at discovery, hears of invites      (always)
    converger   makes what runs into what was asked for              (always)
    queue       delivers files                                        (always)
    pay         watches whether delivered work is paid                (always)
    membership  waits for an invite, joins, beats, and begins again   (one after the other)

Each goes on without the others: no chain, no orchestrator and no engine are reasons to wait, not to end.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta

import structlog
from fastapi import FastAPI

from protocol.errors import MusterError
from protocol.http.object_transfer import ObjectTransfer
from protocol.http.unix_server import UnixServer
from protocol.runtime.loops import BackgroundLoops
from worker.chain.ledger_chain import why
from worker.control import create_control
from worker.delivery.pay_watch import PayWatch
from worker.delivery.queue.runner import QueueRunner
from worker.delivery.queue.store import QueueStore
from worker.dependencies import Dependencies
from worker.heartbeat import HeartbeatLoop, HeartbeatStop
from worker.logs.push import LogPusher
from worker.membership.joining import Joiner, OrchestratorLocation, load_membership, save_membership
from worker.membership.registration import Registrar
from worker.membership.relayed_join import RelayedJoin
from worker.membership.relocation import Relocation
from worker.session.orchestrator_client import OrchestratorSession
from worker.situation import Phase, Situation, WorkerStatus
from worker.slots.task_bridge import TaskBridge
from worker.status_report import SelfReport
from worker.tasks.reconciler import Reconciler

_LAST_WORDS = timedelta(seconds=5)
_log = structlog.get_logger(__name__)


class Daemon:
    """One worker. `run` returns when `stop` was called and everything is handed over.

    Args:
        parts: What it is made of.
    """

    def __init__(self, parts: Dependencies) -> None:
        self._parts = parts
        settings, state = parts.settings, parts.state
        self.situation = Situation(warnings=list(parts.warnings))
        self.situation.draining = bool((state.read("drain") or {}).get("draining"))
        self._longest_pause = timedelta(seconds=settings.wait_at_most_s)
        self._stopping = asyncio.Event()
        self._leaving = False
        self._queue = QueueStore(state.queue, state.spool)
        self._pay = PayWatch(state=state, chain=parts.chain, clock=parts.clock)
        self._delivery = parts.deliver(
            key=parts.key, pool_id=settings.pool_id, chain=parts.chain, clock=parts.clock, pay=self._pay
        )
        self._runner = QueueRunner(self._queue, self._delivery, clock=parts.clock)
        self._bridge = TaskBridge(
            node=parts.key.address,
            settings=settings,
            state=state,
            chain=parts.chain,
            queue=self._queue,
            runner=self._runner,
            orchestrator=lambda: self._pusher.orchestrator,
            stopped=lambda: self._pay.stopped,
            clock=parts.clock,
        )
        self.converger = Reconciler(
            runtime=parts.runtime,
            state=state,
            node=parts.key.address,
            pool_id=settings.pool_id,
            gpus=parts.gpus,
            clock=parts.clock,
            task_user=parts.task_user,
            on_task=self._bridge.open,
        )
        self._registrar = Registrar(
            parts.discovery,
            describe=parts.describe,
            clock=parts.clock,
            situation=self.situation,
            longest_pause=self._longest_pause,
        )
        self._pusher = LogPusher(self.converger.task_logs.of, clock=parts.clock)
        self._heart: HeartbeatLoop | None = None
        self._relocation = Relocation(
            node=parts.key.address,
            chain=parts.chain,
            services=parts.discovery,
            clock=parts.clock,
            allow_plain_http=settings.allow_plain_http,
        )
        self._moved_to: OrchestratorLocation | None = None
        self._report = SelfReport(
            parts,
            situation=self.situation,
            converger=self.converger,
            bridge=self._bridge,
            queue=self._queue,
            pay=self._pay,
        )

    def stop(self) -> None:
        """Begins an orderly end; safe to call from a signal handler of the loop, and twice."""
        self._stopping.set()

    async def leave(self) -> None:
        """Begins an orderly end that leaves the pool too."""
        self._leaving = True
        self.situation.phase = Phase.LEAVING
        self.stop()

    def drain(self, on: bool) -> None:
        """Says to the pool, from the next heartbeat on, that this node takes nothing new, or takes work again."""
        self.situation.draining = on
        self._parts.state.write("drain", {"draining": on})
        if self._heart is not None:
            self._heart.news.set()

    async def run(self) -> None:
        """Lives until `stop`, then hands over."""
        orphans = await asyncio.to_thread(self._queue.recover)
        if orphans:
            _log.info("spool-cleaned", removed=orphans)
        control = UnixServer(self._control_app(), self._parts.state.control_socket, mode=0o600)
        await control.start()
        loops = BackgroundLoops(clock=self._parts.clock)
        loops.add("converge", self.converger.run)
        loops.add("queue", self._runner.run)
        loops.add("pay", self._pay.run)
        loops.add("discovery", self._registrar.run)
        loops.add("logs", self._pusher.run)
        try:
            async with loops:
                membership = asyncio.create_task(self._live(), name="membership")
                await self._stopping.wait()
                _log.info("stopping", leaving=self._leaving)
                membership.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await membership
            await self._hand_over()
        finally:
            await control.stop()
            await self._close()

    async def _live(self) -> None:
        """Becomes a member and beats, again and again."""
        parts, settings = self._parts, self._parts.settings
        membership = load_membership(parts.state, settings.pool_id)
        while not self._stopping.is_set():
            if membership is None:
                membership = await self._joiner().join()
                save_membership(parts.state, membership)
                _log.info("member", pool=settings.pool_id, orchestrator=membership.url)
            ending = await self._beat(membership)
            _log.info("heartbeats-ended", why=ending)
            if ending is HeartbeatStop.KEY_CHANGED:
                membership = await self._rotated(membership)
            elif ending is HeartbeatStop.NOT_A_MEMBER:
                parts.state.forget("membership")
                membership = None
            elif ending is HeartbeatStop.MOVED and self._moved_to is not None:
                membership, self._moved_to = self._moved_to, None
                save_membership(parts.state, membership)
                _log.warning("orchestrator-moved", now=membership.url)

    async def _beat(self, membership: OrchestratorLocation) -> HeartbeatStop:
        parts = self._parts
        orchestrator = OrchestratorSession(
            membership,
            key=parts.key,
            clock=parts.clock,
            allow_plain_http=parts.settings.allow_plain_http,
            transport=parts.transport,
        )
        self.situation.orchestrator = membership.url
        self._pusher.orchestrator = orchestrator
        self._delivery.connect(orchestrator, self._transfer(membership))
        self._runner.wake()

        async def has_moved() -> bool:
            self._moved_to = await self._relocation.of(membership)
            return self._moved_to is not None

        self._heart = HeartbeatLoop(
            orchestrator=orchestrator,
            known_key=membership.orchestrator,
            pool_id=parts.settings.pool_id,
            chain=parts.chain,
            converger=self.converger,
            pusher=self._pusher,
            gauges=self._report.gauges,
            situation=self.situation,
            clock=parts.clock,
            stopping=self._stopping,
            longest_pause=self._longest_pause,
            has_moved=has_moved,
        )
        try:
            return await self._heart.beat_until_end()
        finally:
            if not self._stopping.is_set():
                self._pusher.orchestrator = self._heart = None
                await self._delivery.disconnect()
                await orchestrator.close()

    async def _rotated(self, membership: OrchestratorLocation) -> OrchestratorLocation:
        """The same orchestrator under the key that the ledger names now."""
        try:
            key = await self._parts.chain.orchestrator()
        except MusterError:
            return membership
        _log.warning("orchestrator-key-changed", now=key)
        changed = replace(membership, orchestrator=key)
        save_membership(self._parts.state, changed)
        return changed

    async def _hand_over(self) -> None:
        """Ends in order: says so, stops what runs within its grace, delivers what waits, says how it ended."""
        self.situation.phase = Phase.LEAVING if self._leaving else Phase.STOPPED
        self.situation.draining = True
        await self._say_last_words()
        try:
            await self.converger.hand_over()
        except MusterError as error:
            _log.warning("not-handed-over", detail=error.detail, hint=error.hint)
        await self._bridge.release_slots()
        await self._deliver_rest()
        await self._say_last_words()
        if self._leaving:
            await self._leave()

    async def _say_last_words(self) -> None:
        if self._heart is None:
            return
        with contextlib.suppress(MusterError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS.total_seconds()):
                await self._heart.beat()

    async def _deliver_rest(self) -> None:
        """As much of the queue as its grace allows; the rest is kept for the next start."""
        left = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._parts.settings.stop_grace_s):
                left = await self._runner.deliver_now(linger=timedelta(seconds=self._parts.settings.stop_grace_s))
        if left != 0:
            _log.warning("not-all-delivered", left=left, hint="what is left is delivered after the next start")

    async def _leave(self) -> None:
        parts = self._parts
        try:
            await parts.chain.leave()
            _log.info("left-the-pool", pool=parts.settings.pool_id)
        except MusterError as error:
            _log.error(
                "not-left", detail=why(error), hint="`muster node leave --carrier NAME` has another key pay for it"
            )
        await self._registrar.sign_off()
        await self.converger.clear()
        for name in ("membership", "drain"):
            parts.state.forget(name)

    async def _close(self) -> None:
        await self._bridge.stop()
        if self._pusher.orchestrator is not None:
            await self._pusher.orchestrator.close()
        await self._delivery.disconnect()
        self.converger.task_logs.close()
        for service in self._parts.discovery:
            await service.aclose()
        await self._parts.runtime.close()
        self._queue.close()

    def _transfer(self, membership: OrchestratorLocation) -> ObjectTransfer:
        parts = self._parts
        return ObjectTransfer(
            membership.url,
            clock=parts.clock,
            allow_plain_http=parts.settings.allow_plain_http,
            transport=parts.transport,
        )

    def _joiner(self) -> Joiner:
        parts = self._parts
        return Joiner(
            node=parts.key.address,
            pool_id=parts.settings.pool_id,
            chain=parts.chain,
            registrar=self._registrar,
            clock=parts.clock,
            situation=self.situation,
            allow_plain_http=parts.settings.allow_plain_http,
            longest_pause=self._longest_pause,
            relay=RelayedJoin(
                parts.key,
                clock=parts.clock,
                allow_plain_http=parts.settings.allow_plain_http,
                transport=parts.transport,
            ),
        )

    def _control_app(self) -> FastAPI:
        return create_control(
            status=self.status,
            logs=lambda: self.converger.logs,
            queue=self._queue,
            drain=self.drain,
            leave=self.leave,
            resume=self._pay.resume,
        )

    def status(self) -> WorkerStatus:
        """How this worker is."""
        return self._report.status()
