"""The reconciler loop: executes the actions of `tasks.reconcile_plan` and saves the progress.

The loop uses the network only to pull images. While the orchestrator can't be reached, the task keeps running, and its
restart policy applies as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

from protocol.errors import MusterError
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import unit
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import sleep_or, wait_first
from protocol.wire.assignments import AssignmentState
from protocol.wire.heartbeat import AssignmentReport
from protocol.wire.tasks import Assignment
from worker.logs.store import LogStore
from worker.logs.task_logs import TaskLogs
from worker.runtime.interface import Container, ContainerStatus, LaunchRefused, Runtime, RuntimeDown
from worker.state import StateDirectory, remove_tree
from worker.tasks import reconcile_plan
from worker.tasks.container_runner import ContainerRunner
from worker.tasks.container_spec import InstalledGpu, fingerprint
from worker.tasks.reconcile_plan import AssignmentProgress, Desired, LaunchContainer, RemoveContainer, StopContainer
from worker.tasks.saved_state import RunningTask, load_progress, load_task, save_progress, save_task

POLL_INTERVAL = timedelta(seconds=1)
"""Interval at which containers are checked. The end of a container's output triggers a check at once."""

_MOST_DETAIL = 2000
"""Maximum number of characters of a report's detail, so that a quote of the task's output still fits."""

_log = get_logger(__name__)


class Reconciler:
    """Runs the current assignment: starts, restarts and stops its containers.

    Args:
        runtime: Runtime for containers.
        state: The worker's state directory.
        node: This node's address.
        pool_id: Number of this node's pool.
        gpus: GPUs of this machine.
        clock: Clock for pauses and timestamps.
        task_user: User id that owns the task volumes, if tasks run as a separate user; else None.
        on_task: Function that is called when the current task changes. The bridge must be up when this function
            returns, because the container starts then.
    """

    def __init__(
        self,
        *,
        runtime: Runtime,
        state: StateDirectory,
        node: Address,
        pool_id: int,
        gpus: tuple[InstalledGpu, ...],
        clock: Clock,
        task_user: int | None = None,
        on_task: Callable[[RunningTask], Awaitable[None]],
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._clock = clock
        self._runner = ContainerRunner(runtime, state, node=node, pool_id=pool_id, gpus=gpus, task_user=task_user)
        self._on_task = on_task
        self._orchestrator_answered = False
        self._assignment: Assignment | None = None
        self._fingerprint = ""
        self._secret = state.fingerprint_secret()
        self._changed = asyncio.Event()
        self.task_logs = TaskLogs(runtime, state, clock=clock, ended=self._changed)
        self._running_since: dict[str, float] = {}
        self.runtime_error = ""
        """Reason why the runtime is unavailable; empty while it works."""
        self.refused = ""
        """The last task that this machine refused, with the reason and what to do. Empty when another task has started.
        """
        self.progress = load_progress(state)
        self.task = load_task(state)

    @property
    def logs(self) -> LogStore | None:
        """Log store of the current assignment."""
        return self.task_logs.present

    @property
    def assignment(self) -> Assignment | None:
        """Assignment from the orchestrator's last answer; None if there is none."""
        return self._assignment

    def named_images(self) -> frozenset[str] | None:
        """Returns the images that the present assignment names; None before the orchestrator's first answer."""
        if not self._orchestrator_answered:
            return None
        return frozenset() if self._assignment is None else frozenset({self._assignment.spec.image})

    def offer(self, assignment: Assignment | None) -> str:
        """Sets the desired assignment from a signed answer.

        Returns the reason if the assignment is refused, else an empty text.

        An older generation than one that this worker has seen is refused. Such an answer is outdated, or comes from an
        orchestrator instance that lags behind.
        """
        self._orchestrator_answered = True
        if assignment is not None and reconcile_plan.is_stale(
            offered_id=assignment.id, offered_generation=assignment.generation, progress=self.progress
        ):
            return (
                f"generation {assignment.generation} of assignment {assignment.id} is older than one already seen here"
            )
        if assignment != self._assignment:
            self._assignment = assignment
            self._fingerprint = "" if assignment is None else fingerprint(assignment, secret=self._secret)
            self._changed.set()
        return ""

    def report(self) -> AssignmentReport | None:
        """Returns the report for the next heartbeat; None if there is no assignment."""
        progress = self.progress
        if progress is None:
            return None
        error = self.runtime_error
        detail = f"{progress.detail} ({error})" if error and progress.detail else error
        return AssignmentReport(
            id=progress.assignment_id,
            generation=progress.generation,
            state=progress.state,
            detail=_with_quote((detail or progress.detail)[:_MOST_DETAIL], progress),
            exit_code=progress.exit_code,
            restarts=progress.restarts,
            started_at_ms=progress.started_at_ms,
        )

    async def run(self) -> None:
        """Reconciles until the task that runs this method is cancelled.

        Containers keep running afterwards.
        """
        if self.task is not None:
            self.task_logs.open(self.task.assignment_id)
            await self._on_task(self.task)
        try:
            while True:
                self._changed.clear()
                wake_in = await self._reconcile_once()
                await sleep_or(self._clock, min(wake_in or POLL_INTERVAL, POLL_INTERVAL), self._changed)
        finally:
            await self.task_logs.stop()

    async def shut_down(self) -> None:
        """Stops and removes all containers at shutdown, each within its grace period, and the worker's network.

        Call it after `run` has ended.
        """
        for container in await self._runtime.containers():
            if container.status is ContainerStatus.RUNNING:
                await self._runtime.stop(container.name, grace=container.stop_grace)
            self.task_logs.follow(container)
            await self.task_logs.finish(container.name)
            await self._runtime.remove(container.name)
        await self.task_logs.stop()
        if self.progress is not None and not self.progress.state.is_final:
            self._set_progress(replace(self.progress, state=AssignmentState.STOPPED, detail="the worker was stopped"))
        await self._runtime.remove_network()

    async def clear(self) -> None:
        """Deletes the saved assignment, volumes and bridges.

        Call it after the worker has left the pool.
        """
        for place in (*self._state.tasks.iterdir(), *self._state.bridges.iterdir()):
            await run_in_thread(remove_tree, place)
        for name in ("progress", "task"):
            self._state.forget(name)
        self.progress = self.task = None

    async def _reconcile_once(self) -> timedelta | None:
        """Observes containers and acts until no action is left, at most 20 times.

        Returns the delay until the next pass; None for the default delay.
        """
        for _ in range(20):
            try:
                observed = await self._runtime.containers()
                self.runtime_error = ""
                for container in observed:
                    self.task_logs.follow(container)
                denied = [container for container in observed if container.network_denied]
                for container in denied:  # also while the orchestrator is silent
                    await self._execute(reconcile_plan.end_denied(container))
                if denied:
                    continue
                if (
                    not self._orchestrator_answered
                ):  # before the first answer, it is unknown which containers should run
                    return None
                decision = await self._decide(observed)
                if not decision.actions:
                    return decision.wake_in
                for action in decision.actions:
                    await self._execute(action)
            except RuntimeDown as error:
                if self.runtime_error != error.detail:
                    _log.warning("runtime-down", detail=error.detail, hint=error.hint)
                self.runtime_error = error.detail
                return None
        return None

    async def _decide(self, observed: tuple[Container, ...]) -> reconcile_plan.ReconcileStep:
        desired = self._desired()
        decision = reconcile_plan.reconcile(
            desired, observed, self.progress, now=self._clock.monotonic(), jitter=unit()
        )
        progress = decision.progress
        if progress is not None:
            progress = self._reset_failures_if_stable(progress, observed)
            if self._has_failed(progress):
                progress = replace(progress, quote=await self.task_logs.quote(progress.counted))
        if progress != self.progress:
            self._set_progress(progress)
        return decision

    def _has_failed(self, progress: AssignmentProgress) -> bool:
        """Returns whether this pass counted a container's failure."""
        before = "" if self.progress is None else self.progress.counted
        return progress.counted != before and progress.failures > 0

    def _reset_failures_if_stable(
        self, progress: AssignmentProgress, observed: tuple[Container, ...]
    ) -> AssignmentProgress:
        """Resets the failure count when a container has run for a long time.

        The time is monotonic, because the wall clock may jump.
        """
        now = self._clock.monotonic()
        running = {container.name for container in observed if container.status is ContainerStatus.RUNNING}
        self._running_since = {name: self._running_since.get(name, now) for name in running}
        longest = max((now - since for since in self._running_since.values()), default=0.0)
        return reconcile_plan.stable(progress, uptime=timedelta(seconds=longest))

    def _desired(self) -> Desired | None:
        if self._assignment is None:
            return None
        return Desired(
            assignment_id=self._assignment.id,
            generation=self._assignment.generation,
            fingerprint=self._fingerprint,
            restart_nonce=self._assignment.restart_nonce,
            restart=self._assignment.spec.restart,
        )

    async def _execute(self, action: reconcile_plan.Action) -> None:
        match action:
            case StopContainer():
                _log.info("stopping", container=action.name, why=action.why)
                await self._runtime.stop(action.name, grace=action.grace)
                await self.task_logs.finish(action.name)
                await self._runtime.remove(action.name)
            case RemoveContainer():
                await self.task_logs.finish(action.name)
                await self._runtime.remove(action.name)
            case LaunchContainer():
                await self._launch(action.number)

    async def _launch(self, number: int) -> None:
        assignment, progress = self._assignment, self.progress
        if assignment is None or progress is None:
            return
        task = await self._prepare(assignment)
        self._set_progress(reconcile_plan.launching(progress, number=number, detail=f"pulling {assignment.spec.image}"))
        try:
            await self._unless_superseded(self._start(assignment, task, number), assignment)
        except MusterError as error:
            permanent = isinstance(error, LaunchRefused) and not error.retryable
            detail = f"{error.detail} ({error.hint})" if error.hint else error.detail
            _log.warning("launch-failed", task=task.task_name, detail=error.detail, code=error.code)
            self.task_logs.note(f"not started: {detail}")
            self.refused = f"{task.task_name}: {detail}" if permanent else self.refused
            self._set_progress(
                reconcile_plan.launch_failed(
                    self.progress or progress,
                    assignment.spec.restart,
                    detail=detail,
                    infrastructure=isinstance(error, RuntimeDown),
                    permanent=permanent,
                    now=self._clock.monotonic(),
                    jitter=unit(),
                )
            )

    async def _prepare(self, assignment: Assignment) -> RunningTask:
        """Prepares volumes, token, bridge and log store of the assignment."""
        task = await self._runner.prepare(assignment, present=self.task)
        if task != self.task:
            self.task = task
            save_task(self._state, task)
        self.task_logs.open(task.assignment_id)
        await self._on_task(task)
        return task

    async def _start(self, assignment: Assignment, task: RunningTask, number: int) -> None:
        await self._runner.start(
            assignment, task, number=number, fingerprint=self._fingerprint, pulling=self._report_pull
        )
        if self.progress is not None:
            self._set_progress(reconcile_plan.launched(self.progress, at_ms=unix_ms(self._clock.now())))
        self.refused = ""

    def _report_pull(self, text: str) -> None:
        if self.progress is not None:
            self.progress = replace(self.progress, detail=text[:1000])

    async def _unless_superseded(self, work: Coroutine[Any, Any, None], assignment: Assignment) -> None:
        """Runs a launch, and cancels it if the assignment changes meanwhile.

        A launch can take long, because it may pull a large image.
        """
        running = asyncio.ensure_future(work)
        wanted = self._fingerprint, assignment.id
        try:
            while not running.done():
                self._changed.clear()
                await wait_first(self._changed.wait(), tasks=[running])
                current = self._assignment
                if not running.done() and (current is None or (self._fingerprint, current.id) != wanted):
                    running.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await running
                    return
            running.result()
        finally:
            running.cancel()

    def _set_progress(self, progress: AssignmentProgress | None) -> None:
        before = "" if self.progress is None else self.progress.detail
        if progress is not None and progress.detail and progress.detail != before:
            self.task_logs.note(progress.detail)
        self.progress = progress
        if progress is not None:
            save_progress(self._state, progress)


def _with_quote(detail: str, progress: AssignmentProgress) -> str:
    """Returns the detail, followed by the last lines of output if the task failed."""
    failed = progress.state in {AssignmentState.FAILED, AssignmentState.RESTARTING}
    return f"{detail}\n{progress.quote}" if failed and progress.quote else detail
