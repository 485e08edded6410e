"""Settings for untrusted code on this machine."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from protocol.runtime.settings import Settings


class Isolation(Enum):
    """Isolation of sandboxes from the machine."""

    NAMESPACES = "namespaces"
    """Bubblewrap: a pid namespace of its own, no network, a file system with only Python, filtered system calls."""
    PROCESS = "process"
    """Only a process with limits and filtered system calls. The process can't open files or create processes or
    connections, but a vulnerability in the allowed system calls would expose the machine. This isolation is meant for
    workers in a container."""


class SandboxSettings(Settings):
    """Settings of sandboxes: the table `[sandbox]`, or variables `MUSTER_SANDBOX_…`."""

    service = "sandbox"

    isolation: Isolation | None = Field(
        None, description="namespaces (bubblewrap) or process (weaker); default: the stronger one that works here"
    )
    most: Annotated[int, Field(ge=1, le=256)] = Field(2, description="Maximum sandboxes of each kind")
