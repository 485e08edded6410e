"""What the converger must know again after the worker was killed, as it lies on disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from protocol.wire.tasks import AssignmentState, GroupPlace
from worker.state import StateDirectory
from worker.tasks.reconcile import AssignmentProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """What the bridge and `status` must know of the present task.

    No secret of the task is in it, and its token opens nothing but its own bridge.
    """

    assignment_id: str
    task_id: str
    task_name: str
    generation: int
    token: str
    group: GroupPlace | None = None


def save_progress(state: StateDirectory, progress: AssignmentProgress) -> None:
    """Writes the progress; when to retry is left out, because monotonic time begins anew with the machine."""
    state.write("progress", {**asdict(progress), "state": progress.state.value, "retry_at": None})


def load_progress(state: StateDirectory) -> AssignmentProgress | None:
    """What was saved; None if there is nothing, or another release wrote it."""
    saved = state.read("progress")
    if saved is None:
        return None
    try:
        state_then = AssignmentState(saved["state"])
        if state_then is AssignmentState.STOPPED:  # by this worker's own end, which is over now
            state_then = AssignmentState.PENDING
        return AssignmentProgress(**{**saved, "state": state_then})
    except (KeyError, TypeError, ValueError):
        return None


def save_task(state: StateDirectory, task: RunningTask) -> None:
    """Writes the present task."""
    saved = asdict(replace(task, group=None))
    saved["group"] = None if task.group is None else task.group.model_dump()
    state.write("task", saved)


def load_task(state: StateDirectory) -> RunningTask | None:
    """What was saved; None if there is nothing, or another release wrote it."""
    saved = state.read("task")
    if saved is None:
        return None
    try:
        group = saved.pop("group")
        return RunningTask(**saved, group=None if group is None else GroupPlace.model_validate(group))
    except (KeyError, TypeError, ValueError):
        return None
