"""Exit codes of all commands."""

from __future__ import annotations

from protocol.errors import InvalidInput, MusterError

SUCCESS = 0
FAILED = 1
USAGE = 2
NOT_CHECKED = 3
TRY_LATER = 75
INTERRUPTED = 130

EXIT_CODES = {
    SUCCESS: "the command succeeded, or the check found nothing wrong",
    FAILED: "the command failed, or the check found something wrong; the reason is on standard error or in the result",
    USAGE: "wrong usage: an unknown option or argument, or a confirmation is missing (--yes); nothing was done",
    NOT_CHECKED: "`muster rollouts verify` could not check the file, so it is neither accepted nor rejected",
    TRY_LATER: "a service, the chain or the network is down or slow; the same command may succeed later",
    INTERRUPTED: "interrupted by Ctrl-C",
}
"""Meaning of each exit code; `muster --help` and docs/command-line.md show this table."""


class WrongUsage(InvalidInput):
    """The command line is incomplete; the command did nothing."""

    code = "wrong-usage"


def exit_code_of(error: MusterError) -> int:
    """Returns the exit code of a command that ends with an error."""
    if isinstance(error, WrongUsage):
        return USAGE
    return TRY_LATER if error.retryable else FAILED
