"""What can be wrong with a policy's folder and with a file of rollouts.

InvalidInput
├── BadVersionFolder   a folder that no policy can be loaded from
└── BadRolloutFile     a file that is not what this format says; `code` names what it breaks
Unavailable
└── NotDecoded         nothing can be said about a file: this machine could not decode it
    └── TooLargeHere   it is larger than this machine reads, and not too large for what it is
"""

from __future__ import annotations

from protocol.errors import InvalidInput, MusterError, Unavailable


class BadVersionFolder(InvalidInput):
    """No policy can be used from this folder."""

    code = "bad-version-folder"


class BadRolloutFile(InvalidInput):
    """The bytes are no file of rollouts."""

    code = "bad-rollout-file"


class NotDecoded(Unavailable):
    """This machine could not decode a file, which says nothing about who wrote it."""

    code = "not-decoded"


class TooLargeHere(NotDecoded):
    """A file within what is allowed, and beyond what this machine reads; `code` is that of the limit."""

    code = "file-too-large"
    retryable = False


class EngineFailed(MusterError):
    """The engine crashed, or it computed something that is no number."""

    code = "engine-failed"
    default_hint = "restart the task; if it fails again on this version, the model or the machine is broken"


class OutOfMemory(EngineFailed):
    """Not even one sequence fits into memory; smaller batches were tried."""

    code = "out-of-memory"
    default_hint = "use a machine with more memory, a shorter limit of new tokens, or a smaller data type"
