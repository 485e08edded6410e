"""Persistent state of the reconciler, read again after a restart of the worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from protocol.wire.tasks import AssignmentState, GroupPlace
from worker.state import StateDirectory
from worker.tasks.reconcile import AssignmentProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """The current task as the bridge and `status` see it.

    It holds no secret of the task except the token, which is valid for the task's own bridge only.
    """

    assignment_id: str
    task_id: str
    task_name: str
    generation: int
    token: str
    group: GroupPlace | None = None


def save_progress(state: StateDirectory, progress: AssignmentProgress) -> None:
    """Saves the progress without `retry_at`, because monotonic time starts anew when the machine reboots."""
    state.write("progress", {**asdict(progress), "state": progress.state.value, "retry_at": None})


def load_progress(state: StateDirectory) -> AssignmentProgress | None:
    """Returns the saved state; None if there is none or another release wrote it in a different format."""
    saved = state.read("progress")
    if saved is None:
        return None
    try:
        state_then = AssignmentState(saved["state"])
        if state_then is AssignmentState.STOPPED:  # set when the worker shut down; it runs again now
            state_then = AssignmentState.PENDING
        return AssignmentProgress(**{**saved, "state": state_then})
    except (KeyError, TypeError, ValueError):
        return None


def save_task(state: StateDirectory, task: RunningTask) -> None:
    """Saves the current task."""
    saved = asdict(replace(task, group=None))
    saved["group"] = None if task.group is None else task.group.model_dump()
    state.write("task", saved)


def load_task(state: StateDirectory) -> RunningTask | None:
    """Returns the saved state; None if there is none or another release wrote it in a different format."""
    saved = state.read("task")
    if saved is None:
        return None
    try:
        group = saved.pop("group")
        return RunningTask(**saved, group=None if group is None else GroupPlace.model_validate(group))
    except (KeyError, TypeError, ValueError):
        return None
