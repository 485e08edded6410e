"""Settings of an examiner."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from protocol.runtime.budgets import KeepRule
from rollouts.files.schema import ReadLimits
from rollouts.precision import Dtype

KEPT_VERSIONS = 3
"""Fetched versions that stay on disk beside those in use; others are fetched again when work names them."""

SLASH_MARGIN = 4.0
"""How many times beyond its limits a file has to be to be forged. Limits are twice what honest work was seen to show,
or a hundred times for float32, so this is eight times and four hundred times; what computes other than was calibrated
is further off still. Decision 27 has the figures, and says which cheats stay below: they are not paid, not slashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminerSettings:
    """Settings of examinations on this machine.

    Args:
        home: Folder of the validator; downloaded versions are in `home/checkpoints`.
        policies: A folder of versions to look in first, each in a folder of any name; for tests and single machines.
        calibration: Limits of the statistical checks; None for those that were shipped. What has none is not judged.
        processes: How many examinations run at a time, each in a process of its own.
        device: As torch names it; None for an accelerator if there is one.
        dtype: What to compute in; None for what each file names.
        threads: Of torch in each process, on a CPU.
        policy_memory: Bytes of weights that one process holds; None for a share of the device's memory.
        keep: Which fetched versions stay on disk beside those in use.
        margin: How many times beyond its limits a statistical failure has to be to be forgery.
        scoring: Wall time for scoring all rows of one file; rows beyond it are undecided.
        deadline: For one examination; then the process is ended.
        fetch_within: For bringing a version here; what was fetched until then is gone on with the next time.
        most: The largest file that is read here, whatever its lease allows.
        allow_plain_http: Lets `http` go to relays beyond this machine.
    """

    home: Path
    policies: Path | None = None
    calibration: Path | None = None
    processes: int = 1
    device: str | None = None
    dtype: Dtype | None = None
    threads: int = 1
    policy_memory: int | None = None
    keep: KeepRule = field(default_factory=lambda: KeepRule(most=KEPT_VERSIONS))
    margin: float = SLASH_MARGIN
    scoring: timedelta = timedelta(minutes=3)
    deadline: timedelta = timedelta(minutes=10)
    fetch_within: timedelta = timedelta(minutes=30)
    most: ReadLimits = field(
        default_factory=lambda: ReadLimits(file_bytes=256 << 20, rows=1 << 18, decoded_bytes=512 << 20, tokens=1 << 18)
    )
    allow_plain_http: bool = False

    @property
    def scoring_budget(self) -> timedelta:
        """The time for scoring; at most a third of the deadline, so that the computations before it have the rest."""
        return min(self.scoring, self.deadline / 3)
