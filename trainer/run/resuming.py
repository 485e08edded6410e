"""Going on where a run was: the state from the disk, then every batch of the journal that came after it, once more."""

from __future__ import annotations

import hashlib
from pathlib import Path

import structlog

from protocol.errors import Conflict
from protocol.identifiers import Digest
from trainer.run.batches import SeenFile, after_batch, groups_at
from trainer.run.files import FileRules, UnusableFile, read_accepted
from trainer.run.intake import file_paths, step_folder
from trainer.run.journal import Batch, Recorded
from trainer.run.state import RunState, load_state
from trainer.run.student import Student, learn_batch

_log = structlog.get_logger(__name__)
_OLD = "journal and state are of different days: put back the copy of one directory, whole"
_HINT = "put the files back from a copy of the state directory; without them the run can't go on as it was"


def resume(folder: Path, *, student: Student, recorded: Recorded, rules: FileRules, about: dict[str, str]) -> RunState:
    """Brings the student to where the journal ends, and returns where that is.

    Args:
        folder: The trainer's state directory.
        student: Fresh from the base.
        recorded: What the journal holds.
        rules: What every file keeps.
        about: What decides whose state it is.

    Raises:
        Conflict: State, journal and files do not belong together.
        TrainingDiverged: As it did before.
    """
    loaded = load_state(folder, about=about)
    state = RunState()
    if loaded is not None:
        state, snapshot = loaded
        student.restore(snapshot)
    elif recorded.batches and min(recorded.batches) > 0:
        raise Conflict(f"the journal begins with step {min(recorded.batches)}, and there is no state", hint=_HINT)
    ends = max(recorded.batches, default=None)
    if ends is not None and ends + 1 < state.step:
        raise Conflict(f"the journal ends with step {ends}, and the state is that of step {state.step}", hint=_OLD)
    for step in range(state.step, max(recorded.batches, default=-1) + 1):
        if step not in recorded.batches:
            raise Conflict(f"the journal lacks step {step}", hint=_HINT)
        batch = recorded.batches[step]
        files = _files(folder, batch, rules)
        groups = groups_at(files, batch.groups)
        learn_batch(student, groups, parts=batch.parts, step=step)
        state = after_batch(state, files, learned=bool(groups))
        _log.info("step-learned-again", step=step, groups=len(groups))
    return state


def _files(folder: Path, batch: Batch, rules: FileRules) -> list[SeenFile]:
    found = []
    for entry in batch.files:
        paths = file_paths(step_folder(folder, batch.step), entry)
        for path, wanted in zip(paths, (entry.sha256, entry.audit), strict=True):
            _check(path, wanted)
        try:
            found.append(read_accepted(*paths, entry=entry, step=batch.step, rules=rules))
        except UnusableFile as error:
            raise Conflict(f"step {batch.step} learned from {paths[0]}: {error.detail}", hint=_HINT) from error
    return found


def _check(path: Path, wanted: Digest) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Conflict(f"{path}, which the journal names, can't be read: {error.strerror}", hint=_HINT) from error
    if found != wanted[2:]:
        raise Conflict(f"{path} has the SHA-256 {found}, and the journal says {wanted[2:]}", hint=_HINT)
