"""Runs untrusted code, and trusted code on untrusted text, where it can do no harm: `docs/environments.md`."""

from rollouts.sandbox.errors import SandboxUnavailable
from rollouts.sandbox.jobs import Ending, Job, Kind, Limits, Outcome
from rollouts.sandbox.pool import Sandboxes
from rollouts.sandbox.settings import Isolation, SandboxSettings

__all__ = [
    "Ending",
    "Isolation",
    "Job",
    "Kind",
    "Limits",
    "Outcome",
    "SandboxSettings",
    "SandboxUnavailable",
    "Sandboxes",
]
