"""Errors of policy folders, rollout files and engines.

InvalidInput
├── BadVersionFolder   no policy can be loaded from the folder
└── BadRolloutFile     the file violates the format; `code` names the violated rule
Unavailable
└── NotDecoded         this machine could not decode the file, so the file's validity is unknown
    └── TooLargeHere   the file exceeds a limit of this machine, but no limit of its lease
MusterError
└── EngineFailed       the engine crashed or computed NaN or infinity
    └── OutOfMemory    one sequence alone does not fit into memory
"""

from __future__ import annotations

from protocol.errors import InvalidInput, MusterError, Unavailable


class BadVersionFolder(InvalidInput):
    """The folder does not hold a usable policy."""

    code = "bad-version-folder"


class BadRolloutFile(InvalidInput):
    """The bytes are not a valid rollout file."""

    code = "bad-rollout-file"


class NotDecoded(Unavailable):
    """This machine could not decode a file. The error implies nothing about the file's author."""

    code = "not-decoded"


class TooLargeHere(NotDecoded):
    """The file is within the limits of its lease but exceeds a limit of this machine, which `code` names."""

    code = "file-too-large"
    retryable = False


class EngineFailed(MusterError):
    """The engine crashed, or it computed NaN or infinity."""

    code = "engine-failed"
    default_hint = "restart the task; if it fails again on this version, the model or the machine is broken"


class OutOfMemory(EngineFailed):
    """A single sequence does not fit into memory; the engine has already tried smaller batches."""

    code = "out-of-memory"
    default_hint = "use a machine with more memory, a shorter limit of new tokens, or a smaller data type"
