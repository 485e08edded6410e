"""Errors of the sandbox itself. A failure of a job is an outcome, never an error.

MusterError
├── Unavailable
│   └── SandboxUnavailable   untrusted code can't be run here, or a sandbox broke
└── InvalidInput
    └── PreparationFailed    an object that jobs need can't be made from its parameters
"""

from __future__ import annotations

from protocol.errors import InvalidInput, Unavailable


class SandboxUnavailable(Unavailable):
    """Untrusted code can't be run here. The code gets no score, and no node is at fault."""

    code = "sandbox-unavailable"
    default_hint = "install bubblewrap (Debian: apt install bubblewrap) and allow user namespaces, or run as root"


class PreparationFailed(InvalidInput):
    """An object that jobs need can't be made from its parameters, or not within its memory limit."""

    code = "preparation-failed"
