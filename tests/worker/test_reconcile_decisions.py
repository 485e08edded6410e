"""Reconciliation: every case of desired and observed state, and invariants of any history."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.assignments import AssignmentState
from protocol.wire.tasks import RestartKind, RestartRule
from worker.runtime.interface import Container, ContainerStatus
from worker.tasks.reconcile_plan import (
    LONGEST_BACKOFF,
    STABLE_AFTER,
    Action,
    AssignmentProgress,
    Desired,
    LaunchContainer,
    RemoveContainer,
    StopContainer,
    is_stale,
    launch_failed,
    launched,
    launching,
    reconcile,
    restart_pause,
    stable,
)

RUNNING, EXITED, CREATED = ContainerStatus.RUNNING, ContainerStatus.EXITED, ContainerStatus.CREATED
ALWAYS, ON_FAILURE, NEVER = RestartKind.ALWAYS, RestartKind.ON_FAILURE, RestartKind.NEVER
GRACE = timedelta(seconds=3)


def wanted(kind: RestartKind = ON_FAILURE, *, attempts: int = 2, content: str = "f", nonce: int = 0) -> Desired:
    return Desired(
        assignment_id="a",
        generation=1,
        fingerprint=content,
        restart_nonce=nonce,
        restart=RestartRule(kind=kind, attempts=attempts),
    )


def there(
    status: ContainerStatus,
    code: int | None = None,
    *,
    name: str = "c-1",
    content: str = "f",
    nonce: int = 0,
    assignment: str = "a",
) -> Container:
    return Container(
        name=name,
        assignment_id=assignment,
        fingerprint=content,
        restart_nonce=nonce,
        stop_grace=GRACE,
        status=status,
        exit_code=code,
    )


def so_far(state: AssignmentState = AssignmentState.RUNNING, **fields: object) -> AssignmentProgress:
    base = AssignmentProgress(
        assignment_id="a", generation=1, fingerprint="f", restart_nonce=0, state=state, launches=1
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def kinds(actions: tuple[Action, ...]) -> str:
    names = [type(action).__name__.removesuffix("Container") for action in actions]
    targets = [getattr(action, "name", "") for action in actions]
    return " ".join(f"{name}:{target}".rstrip(":") for name, target in zip(names, targets, strict=True))


@pytest.mark.parametrize(
    ("desired", "observed", "progress", "actions", "state"),
    [
        (None, [], None, "", None),
        (None, [there(RUNNING)], so_far(), "Stop:c-1", None),
        (None, [there(EXITED, 0)], so_far(), "Remove:c-1", None),
        (wanted(), [], None, "Launch", "pending"),
        (wanted(), [there(CREATED)], so_far(), "Remove:c-1", "running"),
        (wanted(), [there(RUNNING)], so_far(), "", "running"),
        (wanted(), [there(RUNNING)], None, "", "running"),
        (wanted(), [there(EXITED, 0)], so_far(), "", "completed"),
        (wanted(NEVER), [there(EXITED, 0)], so_far(), "", "completed"),
        (wanted(ALWAYS), [there(EXITED, 0)], so_far(), "Remove:c-1", "restarting"),
        (wanted(), [there(EXITED, 1)], so_far(), "Remove:c-1", "restarting"),
        (wanted(), [there(EXITED, 1)], so_far(failures=2), "", "failed"),
        (wanted(ALWAYS), [there(EXITED, 1)], so_far(failures=2), "", "failed"),
        (wanted(NEVER), [there(EXITED, 1)], so_far(), "", "failed"),
        (wanted(attempts=0), [there(EXITED, 1)], so_far(), "", "failed"),
        # the exit was counted, but the worker was killed before it removed the container
        (wanted(), [there(EXITED, 1)], so_far(AssignmentState.RESTARTING, counted="c-1"), "Remove:c-1", "restarting"),
        # the assignment has ended for good: it stays so, and the container is kept for inspection
        (wanted(), [there(EXITED, 0)], so_far(AssignmentState.COMPLETED), "", "completed"),
        (wanted(), [], so_far(AssignmentState.COMPLETED), "", "completed"),
        (wanted(), [], so_far(AssignmentState.FAILED), "", "failed"),
        # a changed container or a requested restart: the old container ends before a new one starts
        (wanted(content="g"), [there(RUNNING)], so_far(), "Stop:c-1", "pending"),
        (wanted(content="g"), [], so_far(AssignmentState.FAILED), "Launch", "pending"),
        (wanted(nonce=1), [there(RUNNING)], so_far(), "Stop:c-1", "pending"),
        (wanted(nonce=1), [there(EXITED, 0)], so_far(AssignmentState.COMPLETED), "Remove:c-1", "pending"),
        (wanted(nonce=1), [there(RUNNING, nonce=1)], so_far(), "", "running"),
        # a container of another assignment
        (wanted(), [there(RUNNING, assignment="b")], None, "Stop:c-1", "pending"),
        # two of our containers: the running one is kept
        (wanted(), [there(EXITED, 1, name="c-1"), there(RUNNING, name="c-2")], so_far(), "Remove:c-1", "running"),
        (wanted(), [there(RUNNING, name="c-1"), there(RUNNING, name="c-2")], so_far(), "Stop:c-1", "running"),
        # the container has disappeared
        (wanted(), [], so_far(), "Launch", "restarting"),
    ],
)
def test_the_observed_state_is_moved_to_the_desired_state(
    desired: Desired | None,
    observed: list[Container],
    progress: AssignmentProgress | None,
    actions: str,
    state: str | None,
) -> None:
    decision = reconcile(desired, observed, progress, now=100.0, jitter=0.0)
    assert kinds(decision.actions) == actions
    assert (decision.progress.state if decision.progress else None) == state


def test_a_restart_waits_exactly_for_its_backoff() -> None:
    ended = reconcile(wanted(), [there(EXITED, 1)], so_far(), now=100.0, jitter=1.0)
    assert ended.progress is not None
    assert ended.progress.retry_at == 101.0
    early = reconcile(wanted(), [], ended.progress, now=100.5, jitter=0.0)
    assert early.actions == ()
    assert early.wake_in == timedelta(seconds=0.5)
    due = reconcile(wanted(), [], ended.progress, now=101.0, jitter=0.0)
    assert due.actions == (LaunchContainer(number=2),)


def test_an_exit_is_counted_once_however_often_it_is_observed() -> None:
    progress: AssignmentProgress | None = so_far()
    for _ in range(5):
        progress = reconcile(wanted(), [there(EXITED, 1)], progress, now=0.0, jitter=0.0).progress
    assert progress is not None
    assert progress.failures == 1


def test_a_change_that_needs_no_new_container_keeps_the_old_one() -> None:
    desired = replace(wanted(), generation=7)
    decision = reconcile(desired, [there(RUNNING)], so_far(), now=0.0, jitter=0.0)
    assert decision.actions == ()
    assert decision.progress is not None
    assert decision.progress.generation == 7


def test_an_offer_of_an_older_generation_is_stale() -> None:
    progress = so_far(generation=5)
    assert is_stale(offered_id="a", offered_generation=4, progress=progress)
    assert not is_stale(offered_id="a", offered_generation=5, progress=progress)
    assert not is_stale(offered_id="b", offered_generation=1, progress=progress)
    assert not is_stale(offered_id="a", offered_generation=1, progress=None)


def test_an_unreachable_container_engine_is_not_counted_as_a_failure() -> None:
    progress = so_far(AssignmentState.PULLING)
    for _ in range(50):
        progress = launch_failed(
            progress, RestartRule(attempts=0), detail="down", infrastructure=True, now=0.0, jitter=0.0
        )
    assert progress.state is AssignmentState.PENDING
    assert progress.failures == 0


def test_a_permanent_launch_error_fails_at_once() -> None:
    failed = launch_failed(so_far(), RestartRule(attempts=99), detail="no GPU", permanent=True, now=0.0, jitter=0.0)
    assert failed.state is AssignmentState.FAILED


def test_a_long_run_resets_earlier_failures() -> None:
    assert stable(so_far(failures=2), uptime=STABLE_AFTER).failures == 0
    assert stable(so_far(failures=2), uptime=STABLE_AFTER / 2).failures == 2


@given(failures=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_the_backoff_grows_is_jittered_and_bounded(failures: int, jitter: float) -> None:
    wait = restart_pause(failures, jitter)
    assert timedelta() < wait <= LONGEST_BACKOFF
    assert restart_pause(failures + 1, jitter) >= wait


@given(
    rule=st.builds(RestartRule, kind=st.sampled_from(list(RestartKind)), attempts=st.integers(0, 3)),
    codes=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    crash_after=st.integers(0, 30),
)
def test_any_history_follows_the_restart_rule_and_never_runs_two_containers(
    rule: RestartRule, codes: list[int], crash_after: int
) -> None:
    """Simulates a whole assignment.

    Launches exit with the given codes, and the worker is killed once after a decision.
    """
    desired = replace(wanted(), restart=rule)
    progress: AssignmentProgress | None = None
    container: Container | None = None
    now, launches, crashed = 0.0, 0, False
    for step in range(200):
        decision = reconcile(desired, [container] if container else [], progress, now=now, jitter=0.5)
        if step == crash_after and not crashed:  # killed before it executed the decision; only the saved state remains
            crashed = True
            progress = decision.progress and replace(decision.progress, retry_at=None)
            continue
        progress = decision.progress
        assert progress is not None
        for action in decision.actions:
            if isinstance(action, LaunchContainer):
                assert container is None
                progress = launched(launching(progress, number=action.number, detail=""), at_ms=0)
                code = codes[launches] if launches < len(codes) else 0
                launches += 1
                container = there(EXITED, code, name=f"c-{action.number}")
            else:
                assert isinstance(action, (StopContainer, RemoveContainer))
                container = None
        now += (decision.wake_in or timedelta()).total_seconds()
        if progress.state.is_final:
            break
    seen = [codes[i] if i < len(codes) else 0 for i in range(launches)]
    if rule.kind is NEVER:
        assert launches == 1
    if rule.kind is ON_FAILURE:
        assert progress is not None
        assert progress.state.is_final
        assert (progress.state is AssignmentState.COMPLETED) == (seen[-1] == 0)
        assert launches <= rule.attempts + 1
