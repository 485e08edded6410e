"""Settings of examinations on one machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from protocol.runtime.budgets import KeepRule
from rollouts.files.limits import ReadLimits
from rollouts.precision import Dtype
from rollouts.recompute.place import VllmPlace

KEPT_VERSIONS = 3
"""Number of unused versions that stay on disk; the validator downloads other versions again when it needs them."""

SLASH_MARGIN = 4.0
"""A statistical failure counts as forgery if a measurement exceeds its limit times this factor.

Limits are twice the largest honest measurement, or a hundred times that measurement for float32. So forgery starts at
8 times the largest honest measurement, or at 400 times for float32. Decision 27 has the measurements, and lists the
attacks that stay below these factors: the work of such attacks is not paid, but no stake is slashed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminerSettings:
    """Settings of examinations on this machine.

    Args:
        home: Folder of the examiner; downloaded versions are in `home/checkpoints`.
        policies: Folder of versions that is searched before the relays are used; each version is in a folder named by
            its digest or its number. Tests and networks on one machine use this folder instead of relays.
        calibration: File with limits of the statistical checks; None for the shipped limits. Work whose arithmetic has
            no limits is not judged.
        processes: Number of examiner processes; each makes one examination at a time.
        device: Torch's name of the device; None for an accelerator if there is one, else the CPU.
        dtype: Data type of prefills; None for the data type that each file names.
        threads: Number of torch threads of each process, on a CPU.
        vllm_python: Python interpreter of an environment with vLLM, which recomputes files of numerics classes; None
            for this process's own environment.
        policy_memory: Maximum size of the weights in each process, in bytes; None for a share of the device's memory.
        keep: Rule that determines which unused downloaded versions stay on disk.
        margin: Factor on the limits beyond which a statistical failure is forgery.
        scoring: Time limit for scoring all rows of one file; later rows stay undecided.
        deadline: Time limit of each stage of an examination, and of each piece of a recomputation, after which the
            process is killed.
        fetch_within: Time limit of a version's download; the next examination resumes the download.
        most: Limits of files on this machine, in addition to the limits of each file's lease.
        allow_plain_http: True to allow plain `http` to relays on other machines.
    """

    home: Path
    policies: Path | None = None
    calibration: Path | None = None
    processes: int = 1
    device: str | None = None
    dtype: Dtype | None = None
    threads: int = 1
    vllm_python: Path | None = None
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
    def vllm(self) -> VllmPlace:
        """Python interpreter, device and number of threads with which vLLM runs on this machine."""
        return VllmPlace(python=self.vllm_python, device=self.device, threads=self.threads)

    @property
    def scoring_budget(self) -> timedelta:
        """Time limit for scoring: at most a third of the deadline, so that a busy machine ends the stage in time."""
        return min(self.scoring, self.deadline / 3)
