"""Runs untrusted code, and trusted code on untrusted input, in sandboxes: `docs/environments.md`."""

from rollouts.sandbox.errors import SandboxUnavailable
from rollouts.sandbox.jobs import Job, JobEnding, JobKind, JobLimits, JobOutcome
from rollouts.sandbox.pool import Sandboxes
from rollouts.sandbox.settings import Isolation, SandboxSettings

__all__ = [
    "Isolation",
    "Job",
    "JobEnding",
    "JobKind",
    "JobLimits",
    "JobOutcome",
    "SandboxSettings",
    "SandboxUnavailable",
    "Sandboxes",
]
