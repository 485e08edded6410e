"""Errors of the sandbox itself; the failure of a job is part of its `JobOutcome`.

MusterError
├── Unavailable
│   └── SandboxUnavailable   this machine can't run untrusted code, or a sandbox broke
└── InvalidInput
    └── PreparationFailed    an object that jobs need can't be made from its parameters
"""

from __future__ import annotations

from protocol.errors import InvalidInput, Unavailable


class SandboxUnavailable(Unavailable):
    """This machine can't run untrusted code. The code gets no score, and no node is at fault."""

    code = "sandbox-unavailable"
    default_hint = "install bubblewrap (Debian: apt install bubblewrap) and allow user namespaces, or run as root"


class PreparationFailed(InvalidInput):
    """An object that jobs need can't be made from its parameters, or needs more memory than its limit."""

    code = "preparation-failed"
