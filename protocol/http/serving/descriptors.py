"""The limit of this process's file descriptors, and the share for connections."""

from __future__ import annotations

import contextlib
import resource


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard limit; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some values although the hard limit is unlimited
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connection_room() -> int:
    """Returns the number of connections for which there are file descriptors.

    An eighth of the limit of open files, at least 128, is reserved for Redis, the chain, files and the listening
    socket.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return max(16, soft - max(128, soft // 8))
