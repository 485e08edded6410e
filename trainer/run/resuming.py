"""Resumes a run: restores the saved state, then trains again on every later batch of the journal."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.errors import Conflict
from protocol.identifiers import Digest
from protocol.runtime.logs import get_logger
from rollouts.sandbox.decoder import Decoder
from trainer.errors import TrainingDiverged
from trainer.policy.policy_learner import PolicyLearner
from trainer.run.gathering.batches import SeenFile, after_batch, groups_at
from trainer.run.gathering.intake import file_paths, remove_files, step_folder
from trainer.run.gathering.rollout_files import FileRules, UnusableFile, read_accepted
from trainer.run.state.config_history import adopt
from trainer.run.state.journal import Journal, Recorded, StepBatch, Value
from trainer.run.state.trainer_state import TrainerState, load_state, save_state

_log = get_logger(__name__)
_OLD = "journal and state are from different times: restore one complete copy of the state directory"
_HINT = "restore the files from a copy of the state directory; without them the run can't be resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """Inputs of `resume`.

    Args:
        folder: The trainer's state directory.
        journal: The journal in this directory.
        recorded: Content of the journal.
        rules: Rules that every file must satisfy.
        decoder: Sandboxed decoder of untrusted files.
        identity: Identity of the run, compared with the identity in the saved state.
        under: Current learning settings, from `learned_under`.
    """

    folder: Path
    journal: Journal
    recorded: Recorded
    rules: FileRules
    decoder: Decoder
    identity: Mapping[str, str]
    under: Mapping[str, Value]


def resume(resumption: Resumption, *, learner: PolicyLearner) -> TrainerState:
    """Restores the learner to the end of the journal, and returns the run's state.

    Args:
        resumption: Saved state, journal and settings.
        learner: Learner, freshly created from the base.

    Raises:
        Conflict: State, journal, files and settings do not match.
        TrainingDiverged: A repeated step diverged.
        NotWritten: The disk is full or refuses the write.
        NotDecoded: A file can't be decoded on this machine now.
    """
    recorded = resumption.recorded
    state = _restored(resumption, learner)
    if state is None and recorded.batches and min(recorded.batches) > 0:
        raise Conflict(f"the journal begins with step {min(recorded.batches)}, and there is no saved state", hint=_HINT)
    state = state or TrainerState()
    ends = max(recorded.batches, default=None)
    if ends is not None and ends + 1 < state.step:
        raise Conflict(f"the journal ends with step {ends}, and the state is that of step {state.step}", hint=_OLD)
    adopt(resumption.under, journal=resumption.journal, recorded=recorded, step=state.step)
    first = state.step
    for step in range(first, max(recorded.batches, default=-1) + 1):
        if step not in recorded.batches:
            raise Conflict(f"the journal lacks step {step}", hint=_HINT)
        batch = recorded.batches[step]
        files = _files(batch, resumption)
        groups = groups_at(files, batch.groups)
        try:
            if groups:
                learner.learn(groups, step=step, parts=batch.parts)
        except TrainingDiverged:  # save the earlier steps, so that a start with other settings need not repeat them
            _keep(resumption, state, learner, first=first)
            raise
        state = after_batch(state, files, learned=bool(groups))
        _log.info("step-learned-again", step=step, groups=len(groups))
    _keep(resumption, state, learner, first=first)
    _log.info("taken-up", step=state.step, learned_again=state.step - first)
    return state


def _restored(resumption: Resumption, learner: PolicyLearner) -> TrainerState | None:
    """Restores the saved state; returns None if there is no state.

    The tensors that were read are freed when this function returns.
    """
    loaded = load_state(resumption.folder, identity=resumption.identity)
    if loaded is None:
        return None
    state, learner_state = loaded
    learner.restore(learner_state)
    return state


def _keep(resumption: Resumption, state: TrainerState, learner: PolicyLearner, *, first: int) -> None:
    """Saves the state after repeated steps.

    Later starts do not repeat these steps, so settings may change from here on.
    """
    if state.step > first:
        save_state(resumption.folder, state=state, learner_state=learner.state(), identity=resumption.identity)
        remove_files(resumption.folder, below=state.step)


def _files(batch: StepBatch, resumption: Resumption) -> list[SeenFile]:
    found = []
    for entry in batch.files:
        paths = file_paths(step_folder(resumption.folder, batch.step), entry)
        for path, wanted in zip(paths, (entry.sha256, entry.audit), strict=True):
            _check(path, wanted)
        # The trainer took this file before; a size limit that was lowered later applies to new files only.
        rules = replace(resumption.rules, most_bytes=max(resumption.rules.most_bytes, paths[0].stat().st_size))
        try:
            found.append(read_accepted(*paths, entry=entry, step=batch.step, rules=rules, decoder=resumption.decoder))
        except UnusableFile as error:
            raise Conflict(f"step {batch.step} trained on {paths[0]}: {error.detail}", hint=_HINT) from error
    return found


def _check(path: Path, wanted: Digest) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Conflict(f"{path}, which the journal names, can't be read: {error.strerror}", hint=_HINT) from error
    if found != wanted[2:]:
        raise Conflict(f"{path} has the SHA-256 {found}, and the journal says {wanted[2:]}", hint=_HINT)
