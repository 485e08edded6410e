"""What a run is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.clock import Clock
from trainer.run.desk import DemandDesk
from trainer.run.evaluation import EvaluationProcess
from trainer.run.intake import Intake
from trainer.run.journal import Journal
from trainer.run.lease import RunLease
from trainer.run.progress import Progress
from trainer.run.publishing import Publisher
from trainer.run.settings import TrainerSettings
from trainer.run.state import RunState
from trainer.run.student import Student
from trainer.run.student_thread import StudentThread

Where = Callable[[], RunState]
"""Where the run is at this moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What a run is made of."""

    settings: TrainerSettings
    student: Student
    student_thread: StudentThread
    candidates: NDArray[np.uint64] | None
    """The base's table of prompts: no version has others. None if it has no table, nor can have one."""
    journal: Journal
    publisher: Publisher
    desk: DemandDesk
    lease: RunLease
    intake: Callable[[int], Intake]
    progress: Progress
    evaluation: EvaluationProcess | None
    clock: Clock
    about: dict[str, str]
    """What decides whose state it is."""
