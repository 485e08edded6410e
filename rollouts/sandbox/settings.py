"""What a machine's owner decides about untrusted code."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from protocol.runtime.settings import Settings


class Isolation(Enum):
    """How far a sandbox is from the machine."""

    NAMESPACES = "namespaces"
    """Bubblewrap: own processes, no network, and a file system with nothing but Python; the system calls filtered."""
    PROCESS = "process"
    """A process with limits and filtered system calls only: it can open no file and make no process or connection, but
    a hole in the kernel's allowed calls would lead to the machine. For a worker inside a container of its own."""


class SandboxSettings(Settings):
    """The table `[sandbox]`, `MUSTER_SANDBOX_…`."""

    service = "sandbox"

    isolation: Isolation | None = Field(
        None, description="namespaces (bubblewrap) or process (weaker); none takes the best that works here"
    )
    most: Annotated[int, Field(ge=1, le=256)] = Field(2, description="The most sandboxes of a kind at a time")
