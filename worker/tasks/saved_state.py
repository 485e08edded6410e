"""State of the reconciler on disk, which a restarted worker reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from protocol.wire.assignments import AssignmentState, GroupPlace
from worker.state import StateDirectory
from worker.tasks.reconcile_plan import AssignmentProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """The current task, as the bridge and `muster worker status` see it.

    This object contains no secret except the token, which is valid only for the task's own bridge.
    """

    assignment_id: str
    task_id: str
    task_name: str
    generation: int
    token: str
    group: GroupPlace | None = None


def save_progress(state: StateDirectory, progress: AssignmentProgress) -> None:
    """Saves the progress without `retry_at`.

    `retry_at` is a monotonic time, which has no meaning after a reboot.
    """
    state.write("progress", {**asdict(progress), "state": progress.state.value, "retry_at": None})


def load_progress(state: StateDirectory) -> AssignmentProgress | None:
    """Returns the saved progress.

    None if nothing is saved, or another release saved it in a different format.
    """
    saved = state.read("progress")
    if saved is None:
        return None
    try:
        state_then = AssignmentState(saved["state"])
        if state_then is AssignmentState.STOPPED:  # set at the worker's shutdown; the task should run again now
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
    """Returns the saved task.

    None if nothing is saved, or another release saved it in a different format.
    """
    saved = state.read("task")
    if saved is None:
        return None
    try:
        group = saved.pop("group")
        return RunningTask(**saved, group=None if group is None else GroupPlace.model_validate(group))
    except (KeyError, TypeError, ValueError):
        return None
