"""The worker daemon: runs the background loops and the membership loop until it is stopped.

    discovery   keeps the node registered at discovery services, fetches invites
    converge    starts and stops containers to match the assignment
    queue       uploads files and submits work
    pay         checks whether delivered work is paid
    logs        pushes task output to the orchestrator
    pool-data   learns the pool's discovery services from its orchestrator
    membership  waits for an invite, joins, sends heartbeats; starts over when the membership ends

Each line of this list begins with the name that the loop has in the log. The loops are independent: while the chain,
the orchestrator or the container engine is down, the loops that need it retry and the others continue.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from ledger.errors import InsufficientFunds
from protocol.errors import MusterError
from protocol.http.object_transfer import ObjectTransfer
from protocol.http.serving.metrics_server import MetricsServer
from protocol.http.serving.unix_server import UnixServer
from protocol.runtime.logs import get_logger
from protocol.runtime.loops import BackgroundLoops
from protocol.runtime.threads import run_in_thread
from worker.chain.ledger_chain import describe_error
from worker.control import create_control
from worker.delivery.pay_watch import PayWatch
from worker.delivery.queue.runner import QueueRunner
from worker.delivery.queue.store import QueueStore
from worker.dependencies import Dependencies
from worker.heartbeat import HeartbeatLoop, HeartbeatStop
from worker.logs.push import LogPusher
from worker.membership.joining import Joiner, OrchestratorLocation, load_membership, save_membership
from worker.membership.pool_data import SAVED_AS, PoolData
from worker.membership.registration import Registrar
from worker.membership.relayed_join import RelayedJoin
from worker.membership.relayed_leave import leave_by_relay
from worker.membership.relocation import Relocation
from worker.metrics import WorkerCollector
from worker.session.orchestrator_client import OrchestratorSession
from worker.situation import Phase, Situation, WorkerStatus
from worker.slots.bridge.task_bridge import TaskBridge
from worker.status_report import SelfReport
from worker.tasks.reconciler import Reconciler

_FINAL_HEARTBEAT_TIMEOUT = timedelta(seconds=5)
"""Time limit of each of the two heartbeats at shutdown."""
_DRAIN_TIMEOUT = timedelta(seconds=5)
"""Time for attempts in progress to end, before the worker follows a moved orchestrator. Later ones are cancelled."""
_log = get_logger(__name__)


class Daemon:
    """One worker.

    `run` returns after `stop` was called and the shutdown has finished.

    Args:
        dependencies: Settings, key, clients and clock of the worker.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        settings, state = dependencies.settings, dependencies.state
        self.situation = Situation(warnings=list(dependencies.warnings))
        self.situation.draining = bool((state.read("drain") or {}).get("draining"))
        self._longest_pause = timedelta(seconds=settings.wait_at_most_s)
        self._stopping = asyncio.Event()
        self._leaving = False
        self._queue = QueueStore(state.queue, state.spool)
        self._pay = PayWatch(state=state, chain=dependencies.chain, clock=dependencies.clock)
        self._delivery = dependencies.deliver(
            key=dependencies.key,
            pool_id=settings.pool_id,
            chain=dependencies.chain,
            clock=dependencies.clock,
            pay=self._pay,
        )
        self._runner = QueueRunner(self._queue, self._delivery, clock=dependencies.clock)
        self._bridge = TaskBridge(
            key=dependencies.key,
            settings=settings,
            state=state,
            chain=dependencies.chain,
            queue=self._queue,
            runner=self._runner,
            orchestrator=lambda: self._pusher.orchestrator,
            stopped=lambda: self._pay.stopped,
            clock=dependencies.clock,
        )
        self.reconciler = Reconciler(
            runtime=dependencies.runtime,
            state=state,
            node=dependencies.key.address,
            pool_id=settings.pool_id,
            gpus=dependencies.gpus,
            clock=dependencies.clock,
            task_user=dependencies.task_user,
            on_task=self._bridge.open,
        )
        self._registrar = Registrar(
            dependencies.discovery,
            describe=dependencies.describe,
            clock=dependencies.clock,
            situation=self.situation,
            longest_pause=self._longest_pause,
        )
        self._pusher = LogPusher(self.reconciler.task_logs.of, clock=dependencies.clock)
        self._heartbeat: HeartbeatLoop | None = None
        self._relocation = Relocation(
            node=dependencies.key.address,
            chain=dependencies.chain,
            services=self._registrar.services,
            clock=dependencies.clock,
            allow_plain_http=settings.allow_plain_http,
        )
        self._pool_data = PoolData(
            settings=settings,
            key=dependencies.key,
            chain=dependencies.chain,
            state=state,
            registrar=self._registrar,
            orchestrator=lambda: None if self._heartbeat is None else self.situation.orchestrator,
            clock=dependencies.clock,
            transport=dependencies.transport,
        )
        self._moved_to: OrchestratorLocation | None = None
        self._report = SelfReport(
            dependencies,
            situation=self.situation,
            reconciler=self.reconciler,
            bridge=self._bridge,
            queue=self._queue,
            pay=self._pay,
        )

    def stop(self) -> None:
        """Starts an orderly shutdown.

        This method may be called several times, also from a signal handler of the event loop.
        """
        self._stopping.set()

    async def leave(self) -> None:
        """Starts an orderly shutdown that also ends the pool membership on the ledger."""
        self._leaving = True
        self.situation.phase = Phase.LEAVING
        self.stop()

    def drain(self, on: bool) -> None:
        """Starts or ends draining, and sends a heartbeat early to report it.

        A draining node accepts no new task.
        """
        self.situation.draining = on
        self._dependencies.state.write("drain", {"draining": on})
        if self._heartbeat is not None:
            self._heartbeat.send_early.set()

    async def run(self) -> None:
        """Runs all loops until `stop` is called, then shuts down in order."""
        orphans = await run_in_thread(self._queue.recover)
        if orphans:
            _log.info("spool-cleaned", removed=orphans)
        control = UnixServer(self._control_app(), self._dependencies.state.control_socket, mode=0o600)
        await control.start()
        loops = BackgroundLoops(clock=self._dependencies.clock)
        loops.add("converge", self.reconciler.run)
        loops.add("queue", self._runner.run)
        loops.add("pay", self._pay.run)
        loops.add("discovery", self._registrar.run)
        loops.add("logs", self._pusher.run)
        loops.add("pool-data", self._pool_data.run)
        try:
            async with self._metrics_server(), loops:
                membership = asyncio.create_task(self._keep_membership(), name="membership")
                await self._stopping.wait()
                _log.info("stopping", leaving=self._leaving)
                membership.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await membership
            await self._shut_down()
        finally:
            await control.stop()
            await self._close()

    def _metrics_server(self) -> AbstractAsyncContextManager[object]:
        """Returns the server of `/metrics` on loopback, or a context that does nothing if no port is set."""
        dependencies = self._dependencies
        if dependencies.settings.metrics_port is None:
            return contextlib.nullcontext()
        registry = CollectorRegistry()
        registry.register(
            WorkerCollector(
                situation=self.situation,
                queue=self._queue,
                bridge=self._bridge,
                runtime=dependencies.runtime.kind,
                clock=dependencies.clock,
            )
        )
        return MetricsServer(
            registry, host="127.0.0.1", port=dependencies.settings.metrics_port, clock=dependencies.clock
        )

    async def _keep_membership(self) -> None:
        """Joins the pool and sends heartbeats, in an endless loop.

        The loop starts over when the membership ends or the URL or key of the orchestrator changes.
        """
        dependencies, settings = self._dependencies, self._dependencies.settings
        membership = load_membership(dependencies.state, settings.pool_id)
        while not self._stopping.is_set():
            if membership is None:
                membership = await self._joiner().join()
                save_membership(dependencies.state, membership)
                _log.info("member", pool=settings.pool_id, orchestrator=membership.url)
            reason = await self._run_heartbeats(membership)
            _log.info("heartbeats-ended", why=reason)
            if reason is HeartbeatStop.KEY_CHANGED:
                membership = await self._with_new_key(membership)
            elif reason is HeartbeatStop.NOT_A_MEMBER:
                dependencies.state.forget("membership")
                membership = None
            elif reason is HeartbeatStop.MOVED and self._moved_to is not None:
                membership = await self._follow(membership, self._moved_to)
                self._moved_to = None

    async def _run_heartbeats(self, membership: OrchestratorLocation) -> HeartbeatStop:
        dependencies = self._dependencies
        orchestrator = OrchestratorSession(
            membership,
            key=dependencies.key,
            clock=dependencies.clock,
            allow_plain_http=dependencies.settings.allow_plain_http,
            transport=dependencies.transport,
        )
        self.situation.orchestrator = membership.url
        self._pusher.orchestrator = orchestrator
        self._delivery.connect(orchestrator, self._transfer(membership))
        self._runner.wake()

        async def has_moved() -> bool:
            self._moved_to = await self._relocation.find(membership)
            outcome = self._relocation.outcome
            if self._moved_to is None:
                self._moved_to = await self._pool_data.find(membership)
                outcome = f"{outcome}; {self._pool_data.outcome}"
            self.situation.search = outcome
            _log.info("looked-for-orchestrator", outcome=outcome)
            return self._moved_to is not None

        self._heartbeat = HeartbeatLoop(
            orchestrator=orchestrator,
            known_key=membership.orchestrator,
            pool_id=dependencies.settings.pool_id,
            chain=dependencies.chain,
            reconciler=self.reconciler,
            pusher=self._pusher,
            gauges=self._report.gauges,
            situation=self.situation,
            clock=dependencies.clock,
            stopping=self._stopping,
            longest_pause=self._longest_pause,
            has_moved=has_moved,
        )
        self._pool_data.joined.set()
        try:
            return await self._heartbeat.run()
        finally:
            if not self._stopping.is_set():
                self._pusher.orchestrator = self._heartbeat = None
                await self._delivery.disconnect()
                await orchestrator.aclose()

    async def _follow(self, old: OrchestratorLocation, new: OrchestratorLocation) -> OrchestratorLocation:
        """Saves the orchestrator's new location and returns it.

        All queued files become due. Whoever answers at the former URL may have refused them, for example a proxy that
        answers 404 for an abandoned host, and such errors are not signed. The location is saved last: if the process
        ends before, the next start finds the new location again, and the files become due then.
        """
        await self._runner.drain(within=_DRAIN_TIMEOUT)  # an answer of the former URL must not park a file afterwards
        due = await run_in_thread(self._queue.retry_all)
        save_membership(self._dependencies.state, new)
        at = f"{self._dependencies.clock.now():%Y-%m-%d %H:%M:%S} UTC"
        source = "by a newer invite" if new.expiry > old.expiry else "by its URL on the ledger"
        self.situation.moved = f"from {old.url} to {new.url} at {at}, {source}"
        _log.warning("orchestrator-moved", before=old.url, now=new.url, invite_expiry=new.expiry, queued_files=due)
        return new

    async def _with_new_key(self, membership: OrchestratorLocation) -> OrchestratorLocation:
        """Returns the membership with the orchestrator key that the ledger names now.

        If the ledger can't be read, the membership is unchanged.
        """
        try:
            key = await self._dependencies.chain.orchestrator()
        except MusterError:
            return membership
        _log.warning("orchestrator-key-changed", now=key)
        changed = replace(membership, orchestrator=key)
        save_membership(self._dependencies.state, changed)
        return changed

    async def _shut_down(self) -> None:
        """Shuts down in order, before the process ends.

        The daemon announces the stop to the orchestrator, ends the task, delivers queued files and reports the final
        state.
        """
        self.situation.phase = Phase.LEAVING if self._leaving else Phase.STOPPED
        self.situation.draining = True
        await self._send_final_heartbeat()
        try:
            await self.reconciler.shut_down()
        except MusterError as error:
            _log.warning("not-handed-over", detail=error.detail, hint=error.hint)
        await self._bridge.release_slots()
        await self._deliver_queued()
        await self._send_final_heartbeat()
        if self._leaving:
            await self._leave()

    async def _send_final_heartbeat(self) -> None:
        if self._heartbeat is None:
            return
        with contextlib.suppress(MusterError, TimeoutError):
            async with asyncio.timeout(_FINAL_HEARTBEAT_TIMEOUT.total_seconds()):
                await self._heartbeat.send()

    async def _deliver_queued(self) -> None:
        """Delivers queued files for up to `stop_grace_s` seconds.

        Files that are not delivered stay queued for the next start.
        """
        left = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._dependencies.settings.stop_grace_s):
                left = await self._runner.deliver_now(
                    linger=timedelta(seconds=self._dependencies.settings.stop_grace_s)
                )
        if left != 0:
            _log.warning("not-all-delivered", left=left, hint="undelivered files are delivered after the next start")

    async def _leave(self) -> None:
        dependencies = self._dependencies
        try:
            await self._end_membership()
            _log.info("left-the-pool", pool=dependencies.settings.pool_id)
        except MusterError as error:
            _log.error(
                "not-left",
                detail=describe_error(error),
                hint="`muster node leave --carrier NAME` lets another key pay the gas",
            )
        await self._registrar.sign_off()
        await self.reconciler.clear()
        for name in ("membership", "drain", SAVED_AS):
            dependencies.state.forget(name)

    async def _end_membership(self) -> None:
        """Ends the membership on the ledger; if the node's account can't pay the gas, through the relayer."""
        dependencies, orchestrator = self._dependencies, self._pusher.orchestrator
        try:
            await dependencies.chain.leave()
        except InsufficientFunds:
            if orchestrator is None or not await leave_by_relay(
                orchestrator,
                key=dependencies.key,
                pool_id=dependencies.settings.pool_id,
                joins=await dependencies.chain.joins(),
                domain=dependencies.chain.invites_domain,
                is_member=self._is_member,
                clock=dependencies.clock,
            ):
                raise

    async def _is_member(self) -> bool:
        return (await self._dependencies.chain.node_status()).member

    async def _close(self) -> None:
        await self._bridge.stop()
        if self._pusher.orchestrator is not None:
            await self._pusher.orchestrator.aclose()
        await self._delivery.disconnect()
        self.reconciler.task_logs.close()
        for service in self._registrar.services:
            await service.aclose()
        await self._dependencies.runtime.close()
        self._queue.close()

    def _transfer(self, membership: OrchestratorLocation) -> ObjectTransfer:
        dependencies = self._dependencies
        return ObjectTransfer(
            membership.url,
            clock=dependencies.clock,
            allow_plain_http=dependencies.settings.allow_plain_http,
            private=dependencies.settings.allow_networks if dependencies.settings.denies_local_network else None,
            transport=dependencies.transport,
        )

    def _joiner(self) -> Joiner:
        dependencies = self._dependencies
        return Joiner(
            node=dependencies.key.address,
            pool_id=dependencies.settings.pool_id,
            chain=dependencies.chain,
            registrar=self._registrar,
            clock=dependencies.clock,
            situation=self.situation,
            allow_plain_http=dependencies.settings.allow_plain_http,
            longest_pause=self._longest_pause,
            relayed_join=RelayedJoin(
                dependencies.key,
                clock=dependencies.clock,
                allow_plain_http=dependencies.settings.allow_plain_http,
                transport=dependencies.transport,
            ),
        )

    def _control_app(self) -> FastAPI:
        return create_control(
            status=self.status,
            logs=lambda: self.reconciler.logs,
            queue=self._queue,
            drain=self.drain,
            leave=self.leave,
            resume=self._pay.resume,
        )

    def status(self) -> WorkerStatus:
        """Returns the worker's status for `muster worker status`."""
        return self._report.status()
