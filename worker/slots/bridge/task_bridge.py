"""Serves the bridge of the current task, and manages slots leased through the bridge."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from protocol.http.serving.unix_server import UnixServer
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from protocol.runtime.threads import run_in_thread
from worker.chain.ledger_chain import LedgerChain
from worker.delivery.queue.runner import QueueRunner
from worker.delivery.queue.store import QueueStore
from worker.session.orchestrator_client import OrchestratorSession
from worker.settings import WorkerSettings
from worker.slots.bridge.app import BridgeDependencies, create_bridge
from worker.slots.gateway_sessions import GatewaySessions
from worker.slots.task_slots import TaskSlots
from worker.state import StateDirectory, remove_tree
from worker.tasks.container_spec import Volumes
from worker.tasks.saved_state import RunningTask

MOST_TASK_METRICS = 32
"""Maximum number of gauges of a task."""
_RELEASING = timedelta(seconds=5)
"""Time limit for releasing unused slots."""


class TaskBridge:
    """The bridge of the current task.

    It accepts requests before the container starts, and also after a restart of the worker.

    Args:
        key: The node's key, which signs requests for a gateway's sessions.
        settings: Settings of the worker: pool, and size limits of files.
        state: The worker's state directory.
        chain: The ledger, against which leases are verified.
        queue: The delivery queue.
        runner: Queue runner, which is woken when a file was added.
        orchestrator: Function that returns the orchestrator session; None while the node is not a member.
        stopped: Function that returns why leasing has stopped; empty while leasing is allowed.
        clock: Clock for timestamps and time-outs.
    """

    def __init__(
        self,
        *,
        key: Key,
        settings: WorkerSettings,
        state: StateDirectory,
        chain: LedgerChain,
        queue: QueueStore,
        runner: QueueRunner,
        orchestrator: Callable[[], OrchestratorSession | None],
        stopped: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._key = key
        self._settings = settings
        self._state = state
        self._chain = chain
        self._queue = queue
        self._runner = runner
        self._orchestrator = orchestrator
        self._stopped = stopped
        self._clock = clock
        self._server: UnixServer | None = None
        self._task: RunningTask | None = None
        self._slots: TaskSlots | None = None
        self._sessions: GatewaySessions | None = None
        self._metrics: dict[str, float] = {}

    @property
    def metrics(self) -> Mapping[str, float]:
        """Last values of the gauges that the task reported, by name."""
        return self._metrics

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings about the task's leases, for the contributor."""
        return [self._slots.last_error] if self._slots and self._slots.last_error else []

    async def open(self, task: RunningTask) -> None:
        """Starts the bridge of a task.

        Unused slots of the previous task are released.
        """
        if task == self._task:
            return
        await self.stop()
        if self._task is not None and self._task.assignment_id != task.assignment_id:
            await self.release_slots()
        self._metrics.clear()
        volumes = Volumes.of(self._state, task_id=task.task_id, assignment_id=task.assignment_id)
        await run_in_thread(self._make_directory, volumes.bridge)
        # Mode 0666, because the user of the image is unknown. Only this task's container mounts the directory.
        self._server = UnixServer(
            create_bridge(self._dependencies(task, volumes)), volumes.bridge / "bridge.sock", mode=0o666
        )
        await self._server.start()
        self._task = task

    async def release_slots(self) -> None:
        """Releases the task's unused slots, so that other nodes can lease them."""
        if self._slots is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RELEASING.total_seconds()):
                    await self._slots.release_unused()

    async def stop(self) -> None:
        """Closes the socket.

        Slots stay leased.
        """
        if self._server is not None:
            await self._server.stop()
            self._server = None
        if self._sessions is not None:
            await self._sessions.aclose()

    def _make_directory(self, directory: Path) -> None:
        for place in self._state.bridges.iterdir():
            if place != directory:
                remove_tree(place)
        directory.mkdir(parents=True, exist_ok=True, mode=0o755)
        directory.chmod(0o755)  # the parent directory has mode 0700, which keeps other users out

    def _dependencies(self, task: RunningTask, volumes: Volumes) -> BridgeDependencies:
        loop = asyncio.get_running_loop()
        self._slots = TaskSlots(
            assignment_id=task.assignment_id,
            node=self._key.address,
            pool_id=self._settings.pool_id,
            domain=self._chain.work_domain,
            state=self._state,
            service=self._orchestrator,
            fault_of=self._chain.fault_of,
            pay_fault_of=self._chain.pay_fault_of,
            stopped=self._stopped,
            clock=self._clock,
        )
        self._sessions = GatewaySessions(
            key=self._key,
            step=self._slots.step,
            lease_of=self._slots.lease_of,
            clock=_PoolTime(self._clock, self._orchestrator),
            allow_plain_http=self._settings.allow_plain_http,
        )
        return BridgeDependencies(
            task=task,
            node=self._key.address,
            pool_id=self._settings.pool_id,
            volume=volumes.data,
            queue=self._queue,
            on_metrics=self._store_metrics,
            on_file=lambda: _ignore(loop.call_soon_threadsafe(self._runner.wake)),
            clock=self._clock,
            most_file_bytes=self._settings.most_file_bytes,
            most_spooled_bytes=self._settings.most_spooled_bytes,
            slots=self._slots,
            sessions=self._sessions,
        )

    def _store_metrics(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if name in self._metrics or len(self._metrics) < MOST_TASK_METRICS:
                self._metrics[name] = value


class _PoolTime:
    """Clock that returns the orchestrator's time while the node has a session, so that gateways accept requests.

    Args:
        clock: The machine's clock.
        orchestrator: Function that returns the orchestrator session.
    """

    def __init__(self, clock: Clock, orchestrator: Callable[[], OrchestratorSession | None]) -> None:
        self._clock = clock
        self._orchestrator = orchestrator

    def now(self) -> datetime:
        """Returns the orchestrator's time, or this machine's."""
        session = self._orchestrator()
        return self._clock.now() if session is None else session.time.now()

    def monotonic(self) -> float:
        """Returns the machine's monotonic time in seconds."""
        return self._clock.monotonic()

    async def sleep(self, duration: timedelta) -> None:
        """Sleeps for `duration` on the machine's clock."""
        await self._clock.sleep(duration)


def _ignore(_: object) -> None:
    return None
