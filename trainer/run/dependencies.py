"""Dependencies of a training run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.runtime.clock import Clock
from rollouts.environments.mixture import Parts
from trainer.policy.policy_learner import PolicyLearner
from trainer.run.curves import CurvePublisher
from trainer.run.evaluation_process import EvaluationProcess
from trainer.run.gathering.intake import RolloutIntake
from trainer.run.learner.thread import LearnerThread
from trainer.run.orchestrator.demand import DemandPublisher
from trainer.run.orchestrator.lease import RunLease
from trainer.run.progress import ProgressLog
from trainer.run.publishing.announcer import Announcer
from trainer.run.publishing.folders import VersionFolders
from trainer.run.settings import TrainerSettings
from trainer.run.state.journal import Journal
from trainer.run.state.trainer_state import TrainerState

Where = Callable[[], TrainerState]
"""Function that returns the current state of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Dependencies of a training run."""

    settings: TrainerSettings
    learner: PolicyLearner
    learner_thread: LearnerThread
    candidates: NDArray[np.uint64] | None
    """Prompts from which each version's eligible prompts are selected by difficulty; None for too many to list."""
    parts: Parts
    """Assigns prompt indices to the recipe's environments."""
    journal: Journal
    folders: VersionFolders
    announcer: Announcer
    demand: DemandPublisher
    lease: RunLease
    intake: Callable[[int], RolloutIntake]
    progress: ProgressLog
    curves: CurvePublisher
    evaluation: EvaluationProcess | None
    clock: Clock
    identity: dict[str, str]
    """Identity of the run, stored in its state: run id, pool, base digest and seed."""
