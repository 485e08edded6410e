"""What can be wrong with the sandbox itself; what a job does is an outcome, never an error.

Unavailable
└── SandboxUnavailable   nothing untrusted can be run here, or a sandbox broke
"""

from __future__ import annotations

from protocol.errors import Unavailable


class SandboxUnavailable(Unavailable):
    """Nothing untrusted can be run here. Says nothing about the code that was to run: never a score, never guilt."""

    code = "sandbox-unavailable"
    default_hint = "install bubblewrap (Debian: apt install bubblewrap) and allow user namespaces, or run as root"
