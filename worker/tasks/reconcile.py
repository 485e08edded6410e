"""What to do next, so that what runs becomes what was asked for. Pure: values in, a decision out.

    desired ─┐
    observed ─┼─▶ converge() ─▶ actions, progress, when to look again
    progress ─┘

`AssignmentProgress` is kept between passes and across restarts of the worker: without it a completed task would run
again, and a crash would be counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from protocol.wire.tasks import AssignmentState, RestartKind, RestartRule
from worker.runtime.interface import Container, ContainerStatus

FIRST_BACKOFF = timedelta(seconds=1)
LONGEST_BACKOFF = timedelta(minutes=5)
STABLE_AFTER = timedelta(minutes=10)
"""A container that ran this long has left its failures behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """The assignment, as far as convergence needs it.

    Two assignments with the same `fingerprint` are run by the same container, whatever else about them changed.
    """

    assignment_id: str
    generation: int
    fingerprint: str
    restart_nonce: int
    restart: RestartRule


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentProgress:
    """How far this worker is with an assignment.

    Args:
        failures: Failures in a row.
        launches: Containers made so far; numbers their names.
        counted: The launch whose end was taken into account already.
        quote: The last lines that the task wrote before it failed; empty once it runs again.
        retry_at: Monotonic time in seconds of the next launch, if it must wait.
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
    """End this container within its grace, then remove it."""

    name: str
    grace: timedelta
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveContainer:
    """Remove this container, which has ended, after its output was read to the end."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContainer:
    """Pull the image and start container number `number` of the assignment."""

    number: int


Action = StopContainer | RemoveContainer | LaunchContainer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileStep:
    """What to do now, what to remember, and after how long to look again if nothing happens."""

    actions: tuple[Action, ...] = ()
    progress: AssignmentProgress | None = None
    wake_in: timedelta | None = None


def converge(
    desired: Desired | None,
    observed: Sequence[Container],
    progress: AssignmentProgress | None,
    *,
    now: float,
    luck: float,
) -> ReconcileStep:
    """Decides the next actions.

    Args:
        desired: What is asked for; None when nothing is.
        observed: Every container of this worker.
        progress: What the last decision said to remember.
        now: Monotonic time in seconds.
        luck: Uniform in [0, 1), for the jitter of back-offs.
    """
    if desired is None:
        return ReconcileStep(actions=tuple(_end(container, "no longer asked for") for container in observed))
    progress = _continued(desired, progress)
    ours = [container for container in observed if _matches(container, desired)]
    keep = max(ours, key=lambda container: (container.status is ContainerStatus.RUNNING, container.name), default=None)
    strays = tuple(_end(container, "replaced") for container in observed if container is not keep)
    decision = _without(progress, now) if keep is None else _with(desired, keep, progress, now, luck)
    if strays:  # two containers never share a task's volume: the old one ends before a new one starts
        return replace(
            decision, actions=strays + tuple(a for a in decision.actions if not isinstance(a, LaunchContainer))
        )
    return decision


def launched(progress: AssignmentProgress, *, at_ms: int) -> AssignmentProgress:
    """After a launch that worked."""
    return replace(
        progress, state=AssignmentState.RUNNING, detail="", quote="", retry_at=None, started_at_ms=at_ms, exit_code=None
    )


def launching(progress: AssignmentProgress, *, number: int, detail: str) -> AssignmentProgress:
    """Before a launch: remembered first, so that a name is never used twice."""
    restarts = progress.restarts + (progress.launches > 0)
    return replace(progress, state=AssignmentState.PULLING, launches=number, restarts=restarts, detail=detail)


def launch_failed(
    progress: AssignmentProgress,
    rule: RestartRule,
    *,
    detail: str,
    blameless: bool = False,
    hopeless: bool = False,
    now: float,
    luck: float,
) -> AssignmentProgress:
    """After a launch that did not work.

    Args:
        progress: Before it.
        rule: The task's.
        detail: Why, in words.
        blameless: The engine was down; that is retried without end and counts for nothing.
        hopeless: Another attempt would end the same way.
        now: Monotonic seconds.
        luck: Uniform in [0, 1).
    """
    if hopeless:
        return replace(progress, state=AssignmentState.FAILED, detail=detail, failures=progress.failures + 1)
    if blameless:
        wait = backoff(progress.failures + 3, luck)
        return replace(progress, state=AssignmentState.PENDING, detail=detail, retry_at=now + wait.total_seconds())
    return _failed(progress, rule, detail=detail, now=now, luck=luck)


def backoff(failures: int, luck: float) -> timedelta:
    """The wait after so many failures in a row: doubling up to a limit, the upper half of it by luck."""
    exponent = max(0, min(failures - 1, 20))
    doubled: int = 2**exponent
    whole = min(LONGEST_BACKOFF, FIRST_BACKOFF * doubled)
    return whole * (0.5 + luck / 2)


def is_stale(*, offered_id: str, offered_generation: int, progress: AssignmentProgress | None) -> bool:
    """Whether an offered assignment is older than what this worker has seen of it."""
    return progress is not None and progress.assignment_id == offered_id and offered_generation < progress.generation


def _continued(desired: Desired, progress: AssignmentProgress | None) -> AssignmentProgress:
    """The progress to go on from: a new one for a new assignment, new content, or an asked-for restart."""
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


def _without(progress: AssignmentProgress, now: float) -> ReconcileStep:
    """No container: launch one, unless the assignment has ended or must wait."""
    if progress.state.is_final:
        return ReconcileStep(progress=progress)
    if progress.state is AssignmentState.RUNNING:  # it vanished: somebody removed it by hand, or the engine lost it
        progress = replace(progress, state=AssignmentState.RESTARTING, detail="the container vanished", quote="")
    if progress.retry_at is not None and now < progress.retry_at:
        return ReconcileStep(progress=progress, wake_in=timedelta(seconds=progress.retry_at - now))
    return ReconcileStep(actions=(LaunchContainer(number=progress.launches + 1),), progress=progress)


def _with(
    desired: Desired, container: Container, progress: AssignmentProgress, now: float, luck: float
) -> ReconcileStep:
    if container.status is ContainerStatus.CREATED:  # the worker died between creating and starting
        return ReconcileStep(actions=(RemoveContainer(name=container.name),), progress=progress)
    if container.status is ContainerStatus.RUNNING:
        return _running(container, progress)
    if progress.state.is_final or progress.counted == container.name:
        keep = progress.state.is_final  # kept as evidence until the assignment goes
        return ReconcileStep(actions=() if keep else (RemoveContainer(name=container.name),), progress=progress)
    progress = replace(progress, counted=container.name, exit_code=container.exit_code)
    progress = _ended(desired.restart, container, progress, now, luck)
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
    rule: RestartRule, container: Container, progress: AssignmentProgress, now: float, luck: float
) -> AssignmentProgress:
    code = container.exit_code
    if code == 0:
        if rule.kind is RestartKind.ALWAYS:
            wait = backoff(1, luck)
            return replace(
                progress,
                state=AssignmentState.RESTARTING,
                detail="ended with exit code 0; started again as its rule says",
                failures=0,
                retry_at=now + wait.total_seconds(),
            )
        return replace(progress, state=AssignmentState.COMPLETED, detail="ended with exit code 0", failures=0)
    detail = f"ended with exit code {code}" if code is not None else "ended without an exit code"
    if container.out_of_memory:
        detail += ": it used more memory than its limit"
    return _failed(progress, rule, detail=detail, now=now, luck=luck)


def stable(progress: AssignmentProgress, *, uptime: timedelta) -> AssignmentProgress:
    """Forgets earlier failures once a container has run long enough."""
    if progress.failures and uptime >= STABLE_AFTER:
        return replace(progress, failures=0)
    return progress


def _failed(
    progress: AssignmentProgress, rule: RestartRule, *, detail: str, now: float, luck: float
) -> AssignmentProgress:
    failures = progress.failures + 1
    if rule.kind is RestartKind.NEVER:
        return replace(progress, state=AssignmentState.FAILED, detail=detail, failures=failures)
    if failures > rule.attempts:
        detail = f"{detail}; failed {failures} times in a row, given up as its rule says"
        return replace(progress, state=AssignmentState.FAILED, detail=detail, failures=failures)
    wait = backoff(failures, luck)
    return replace(
        progress,
        state=AssignmentState.RESTARTING,
        detail=f"{detail}; attempt {failures + 1} of {rule.attempts + 1} in {wait.total_seconds():.0f} s",
        failures=failures,
        retry_at=now + wait.total_seconds(),
    )
