"""Errors of the sandbox itself. A failure of a job is an outcome, never an error.

Unavailable
└── SandboxUnavailable   untrusted code can't be run here, or a sandbox broke
"""

from __future__ import annotations

from protocol.errors import Unavailable


class SandboxUnavailable(Unavailable):
    """Untrusted code can't be run here. The code gets no score, and no node is at fault."""

    code = "sandbox-unavailable"
    default_hint = "install bubblewrap (Debian: apt install bubblewrap) and allow user namespaces, or run as root"
