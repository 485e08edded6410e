"""Settings of an examiner."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from protocol.runtime.budgets import KeepRule
from rollouts.files.schema import ReadLimits
from rollouts.precision import Dtype

KEPT_VERSIONS = 3
"""Downloaded versions that stay on disk in addition to those in use; others are downloaded again when needed."""

SLASH_MARGIN = 4.0
"""Factor on the limits, beyond which a statistical failure is forgery. Limits are twice the largest honest measurement,
or a hundred times for float32, so forgery starts at 8 and 400 times that. Decision 27 has the figures, and lists the
cheats that stay below: they are not paid, but not slashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminerSettings:
    """Settings of examinations on this machine.

    Args:
        home: Folder of the validator; downloaded versions are in `home/checkpoints`.
        policies: Folder of versions to search first, each in a folder of any name; for tests and single machines.
        calibration: Limits of the statistical checks; None for the shipped ones. Arithmetic without limits is not
            judged.
        processes: Number of concurrent examinations, each in its own process.
        device: Torch's name of the device; None for an accelerator if there is one.
        dtype: Type of prefills; None for the type that each file names.
        threads: Torch threads of each process, on a CPU.
        policy_memory: Bytes of weights per process; None for a share of the device's memory.
        keep: Rule for downloaded versions that stay on disk in addition to those in use.
        margin: Factor on the limits, beyond which a statistical failure is forgery.
        scoring: Wall time for scoring all rows of one file; later rows are undecided.
        deadline: Time limit of one examination, after which its process is ended.
        fetch_within: Time limit of a version's download; the next one continues it.
        most: Limits of files on this machine, in addition to those of their lease.
        allow_plain_http: True to allow plain `http` to relays on other machines.
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
        """Returns the time for scoring, at most a third of the deadline; the rest is for the computations before it."""
        return min(self.scoring, self.deadline / 3)
