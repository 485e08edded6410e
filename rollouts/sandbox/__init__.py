"""Runs untrusted code, and trusted code on untrusted input, in sandboxes; see `docs/environments.md`."""

from rollouts.sandbox.errors import PreparationFailed, SandboxUnavailable
from rollouts.sandbox.jobs import Job, JobEnding, JobKind, JobLimits, JobOutcome, PackageJobs, Preparation, SandboxKind
from rollouts.sandbox.pool import Sandboxes
from rollouts.sandbox.settings import Isolation, SandboxSettings

__all__ = [
    "Isolation",
    "Job",
    "JobEnding",
    "JobKind",
    "JobLimits",
    "JobOutcome",
    "PackageJobs",
    "Preparation",
    "PreparationFailed",
    "SandboxKind",
    "SandboxSettings",
    "SandboxUnavailable",
    "Sandboxes",
]
