"""Decides which actions bring the running containers to the desired state.

All functions are pure.

    desired ─┐
    observed ─┼─▶ reconcile() ─▶ actions, progress, delay until the next pass
    progress ─┘

`AssignmentProgress` is kept between passes and across restarts of the worker. Without the saved progress, a completed
task would run again, and a failure could be counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from protocol.runtime.backoff import backoff
from protocol.wire.assignments import AssignmentState
from protocol.wire.tasks import RestartKind, RestartRule
from worker.runtime.interface import Container, ContainerStatus

FIRST_BACKOFF = timedelta(seconds=1)
"""Maximum pause before the first restart; the pause doubles with each failure in a row."""
LONGEST_BACKOFF = timedelta(minutes=5)
"""Maximum pause before any restart."""
LONGEST_DENIED_GRACE = timedelta(seconds=10)
"""Maximum grace period of a container whose network the contributor's settings don't allow."""
STABLE_AFTER = timedelta(minutes=10)
"""Run time of a container after which its earlier failures no longer count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """The fields of an assignment that reconciliation needs.

    A container is kept as long as the `fingerprint` stays the same, even if other fields of the assignment change.
    """

    assignment_id: str
    generation: int
    fingerprint: str
    restart_nonce: int
    restart: RestartRule


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentProgress:
    """Progress of this worker with an assignment.

    Args:
        failures: Number of failures in a row.
        launches: Number of containers created so far; a container's number is part of its name.
        counted: Name of the last container whose exit was counted.
        quote: Last lines of output before a failure; empty when the task runs again.
        retry_at: Monotonic time in seconds before which no container is launched; None if there is no need to wait.
    """

    assignment_id: str
    generation: int
    fingerprint: str
    restart_nonce: int
    state: AssignmentState = AssignmentState.PENDING
    detail: str = ""
    exit_code: int | None = None
    restarts: int = 0
    failures: int = 0
    launches: int = 0
    counted: str = ""
    quote: str = ""
    retry_at: float | None = None
    started_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopContainer:
    """Action: stop this container within its grace period, then remove it."""

    name: str
    grace: timedelta
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveContainer:
    """Action: remove this exited container after its output was read to the end."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContainer:
    """Action: pull the image and start container `number` of the assignment."""

    number: int


Action = StopContainer | RemoveContainer | LaunchContainer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileStep:
    """Result of one pass.

    It has the actions to execute now, the progress to save, and the delay until the next pass if nothing happens.
    """

    actions: tuple[Action, ...] = ()
    progress: AssignmentProgress | None = None
    wake_in: timedelta | None = None


def reconcile(
    desired: Desired | None,
    observed: Sequence[Container],
    progress: AssignmentProgress | None,
    *,
    now: float,
    jitter: float,
) -> ReconcileStep:
    """Returns the next actions, the new progress and the delay until the next pass.

    Args:
        desired: The desired state; None if no task is assigned.
        observed: All containers of this worker.
        progress: Progress from the previous pass.
        now: Monotonic time in seconds.
        jitter: Uniform random number in [0, 1), for the back-off.
    """
    if desired is None:
        return ReconcileStep(actions=tuple(_end(container, "no longer assigned") for container in observed))
    progress = _continued(desired, progress)
    ours = [container for container in observed if _matches(container, desired)]
    keep = max(ours, key=lambda container: (container.status is ContainerStatus.RUNNING, container.name), default=None)
    strays = tuple(_end(container, "replaced") for container in observed if container is not keep)
    decision = (
        _decide_without_container(progress, now)
        if keep is None
        else _decide_with_container(desired, keep, progress, now, jitter)
    )
    if strays:  # the old container ends before a new one starts, because two must never share a task's volume
        return replace(
            decision, actions=strays + tuple(a for a in decision.actions if not isinstance(a, LaunchContainer))
        )
    return decision


def launched(progress: AssignmentProgress, *, at_ms: int) -> AssignmentProgress:
    """Returns the progress after a successful launch."""
    return replace(
        progress, state=AssignmentState.RUNNING, detail="", quote="", retry_at=None, started_at_ms=at_ms, exit_code=None
    )


def launching(progress: AssignmentProgress, *, number: int, detail: str) -> AssignmentProgress:
    """Returns the progress before a launch.

    The worker saves this progress before the launch, so that a container name is never used twice.
    """
    restarts = progress.restarts + (progress.launches > 0)
    return replace(progress, state=AssignmentState.PULLING, launches=number, restarts=restarts, detail=detail)


def launch_failed(
    progress: AssignmentProgress,
    rule: RestartRule,
    *,
    detail: str,
    infrastructure: bool = False,
    permanent: bool = False,
    now: float,
    jitter: float,
) -> AssignmentProgress:
    """Returns the progress after a failed launch.

    Args:
        progress: Progress before the launch.
        rule: Restart policy of the task.
        detail: Error text.
        infrastructure: Whether the engine was down. The launch is then retried without limit and not counted as a
            failure.
        permanent: Whether another attempt would fail in the same way. The assignment then fails at once.
        now: Monotonic time in seconds.
        jitter: Uniform random number in [0, 1), for the back-off.
    """
    if permanent:
        return replace(progress, state=AssignmentState.FAILED, detail=detail, failures=progress.failures + 1)
    if infrastructure:
        wait = restart_pause(progress.failures + 3, jitter)
        return replace(progress, state=AssignmentState.PENDING, detail=detail, retry_at=now + wait.total_seconds())
    return _failed(progress, rule, detail=detail, now=now, jitter=jitter)


def restart_pause(failures: int, jitter: float) -> timedelta:
    """Returns the pause before a restart after a number of failures in a row.

    The pause doubles with each failure up to a limit. The result is multiplied by a factor between 0.5 and 1, which
    `jitter` chooses.
    """
    return backoff(FIRST_BACKOFF, LONGEST_BACKOFF, failures) * (0.5 + jitter / 2)


def is_stale(*, offered_id: str, offered_generation: int, progress: AssignmentProgress | None) -> bool:
    """Returns whether an offered assignment is older than one that this worker has seen."""
    return progress is not None and progress.assignment_id == offered_id and offered_generation < progress.generation


def _continued(desired: Desired, progress: AssignmentProgress | None) -> AssignmentProgress:
    """Returns the progress to continue from.

    The progress starts anew for a new assignment, a changed container, or a requested restart.
    """
    if progress is None or progress.assignment_id != desired.assignment_id:
        return AssignmentProgress(
            assignment_id=desired.assignment_id,
            generation=desired.generation,
            fingerprint=desired.fingerprint,
            restart_nonce=desired.restart_nonce,
        )
    if progress.fingerprint != desired.fingerprint or progress.restart_nonce < desired.restart_nonce:
        return AssignmentProgress(
            assignment_id=desired.assignment_id,
            generation=desired.generation,
            fingerprint=desired.fingerprint,
            restart_nonce=desired.restart_nonce,
            restarts=progress.restarts,
            launches=progress.launches,
            counted=progress.counted,
        )
    return replace(progress, generation=desired.generation)


def _matches(container: Container, desired: Desired) -> bool:
    return (
        container.assignment_id == desired.assignment_id
        and container.fingerprint == desired.fingerprint
        and container.restart_nonce >= desired.restart_nonce
    )


def _end(container: Container, why: str) -> Action:
    if container.status is ContainerStatus.RUNNING:
        return StopContainer(name=container.name, grace=container.stop_grace, why=why)
    return RemoveContainer(name=container.name)


def end_denied(container: Container) -> Action:
    """Returns the action that ends a container whose network the contributor's settings don't allow.

    The pool's owner chooses the grace period of a task, so that it is limited here.
    """
    limited = replace(container, stop_grace=min(container.stop_grace, LONGEST_DENIED_GRACE))
    return _end(limited, "the settings do not allow its network")


def _decide_without_container(progress: AssignmentProgress, now: float) -> ReconcileStep:
    """Returns the next step if there is no container.

    The step launches a container, unless the assignment has ended or a back-off is running.
    """
    if progress.state.is_final:
        return ReconcileStep(progress=progress)
    if progress.state is AssignmentState.RUNNING:  # a person removed the container, or the engine lost it
        progress = replace(progress, state=AssignmentState.RESTARTING, detail="the container has disappeared", quote="")
    if progress.retry_at is not None and now < progress.retry_at:
        return ReconcileStep(progress=progress, wake_in=timedelta(seconds=progress.retry_at - now))
    return ReconcileStep(actions=(LaunchContainer(number=progress.launches + 1),), progress=progress)


def _decide_with_container(
    desired: Desired, container: Container, progress: AssignmentProgress, now: float, jitter: float
) -> ReconcileStep:
    if container.status is ContainerStatus.CREATED:  # the worker was killed between creating and starting it
        return ReconcileStep(actions=(RemoveContainer(name=container.name),), progress=progress)
    if container.status is ContainerStatus.RUNNING:
        return _running(container, progress)
    if progress.state.is_final or progress.counted == container.name:
        keep = progress.state.is_final  # kept for inspection, until the task is no longer assigned
        return ReconcileStep(actions=() if keep else (RemoveContainer(name=container.name),), progress=progress)
    progress = replace(progress, counted=container.name, exit_code=container.exit_code)
    progress = _ended(desired.restart, container, progress, now, jitter)
    if progress.state.is_final:
        return ReconcileStep(progress=progress)
    return ReconcileStep(actions=(RemoveContainer(name=container.name),), progress=progress)


def _running(container: Container, progress: AssignmentProgress) -> ReconcileStep:
    started_at_ms = progress.started_at_ms
    if container.started_at is not None:
        started_at_ms = int(container.started_at.timestamp() * 1000)
    if progress.state is not AssignmentState.RUNNING:
        progress = replace(progress, state=AssignmentState.RUNNING, detail="", quote="", retry_at=None, exit_code=None)
    return ReconcileStep(progress=replace(progress, started_at_ms=started_at_ms))


def _ended(
    rule: RestartRule, container: Container, progress: AssignmentProgress, now: float, jitter: float
) -> AssignmentProgress:
    code = container.exit_code
    if code == 0:
        if rule.kind is RestartKind.ALWAYS:
            wait = restart_pause(1, jitter)
            return replace(
                progress,
                state=AssignmentState.RESTARTING,
                detail="ended with exit code 0; the task's restart policy restarts it",
                failures=0,
                retry_at=now + wait.total_seconds(),
            )
        return replace(progress, state=AssignmentState.COMPLETED, detail="ended with exit code 0", failures=0)
    detail = f"ended with exit code {code}" if code is not None else "ended without an exit code"
    if container.out_of_memory:
        detail += ": it used more memory than its limit"
    return _failed(progress, rule, detail=detail, now=now, jitter=jitter)


def stable(progress: AssignmentProgress, *, uptime: timedelta) -> AssignmentProgress:
    """Resets the failure count when a container has run for `STABLE_AFTER`."""
    if progress.failures and uptime >= STABLE_AFTER:
        return replace(progress, failures=0)
    return progress


def _failed(
    progress: AssignmentProgress, rule: RestartRule, *, detail: str, now: float, jitter: float
) -> AssignmentProgress:
    failures = progress.failures + 1
    if rule.kind is RestartKind.NEVER:
        return replace(progress, state=AssignmentState.FAILED, detail=detail, failures=failures)
    if failures > rule.attempts:
        detail = f"{detail}; failed {failures} times in a row, more than the restart policy allows"
        return replace(progress, state=AssignmentState.FAILED, detail=detail, failures=failures)
    wait = restart_pause(failures, jitter)
    return replace(
        progress,
        state=AssignmentState.RESTARTING,
        detail=f"{detail}; attempt {failures + 1} of {rule.attempts + 1} in {wait.total_seconds():.0f} s",
        failures=failures,
        retry_at=now + wait.total_seconds(),
    )
