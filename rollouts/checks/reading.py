"""Check 2: the bytes are a file of rollouts, within the limits of size, and every number is finite."""

from __future__ import annotations

from pathlib import Path

from protocol.verdicts import ReasonCode
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import Check, CheckFinding, CheckResult, Cost, Fails, concluded
from rollouts.errors import BadRolloutFile
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import OLD_VERSION, ReadLimits, read_rollouts
from rollouts.sandboxed_decoder import BEYOND_LIMITS, CRASHED, Decoder

RATIONALE = (
    "The format is one library call for who works with it. A file that does not read was cut, or made to break "
    "readers; its hash is on the ledger, so it is what the node submitted. Read strangers' files where memory and time "
    "are limited."
)

_REASONS = {
    "not-parquet": ReasonCode.FORMAT_UNREADABLE,
    "file-too-large": ReasonCode.FORMAT_TOO_LARGE,
    "too-many-rows": ReasonCode.FORMAT_TOO_LARGE,
    "too-long": ReasonCode.FORMAT_TOO_LARGE,
    "not-finite": ReasonCode.FORMAT_NOT_FINITE,
    OLD_VERSION: ReasonCode.FORMAT_OLD,
    CRASHED: ReasonCode.FORMAT_UNREADABLE,
    BEYOND_LIMITS: ReasonCode.FORMAT_TOO_LARGE,
}
"""Every other way of being no such file breaks the schema."""


def read(
    path: Path, *, limits: ReadLimits | None = None, decoder: Decoder | None = None
) -> tuple[RolloutFile | None, CheckResult]:
    """Reads a file, and says why if it can't be one.

    Args:
        path: Where it is.
        limits: What is taken.
        decoder: Decodes it in a sandbox; None for files of one's own, which are decoded in this process.

    Raises:
        OSError: There is no such file, or the machine can't read it.
        NotDecoded: The decoder can say nothing about it.
    """
    size, limits = path.stat().st_size, limits or ReadLimits()
    if size > limits.file_bytes:
        return None, refused(ReasonCode.FORMAT_TOO_LARGE, f"{size} bytes, more than {limits.file_bytes}", size=size)
    try:
        if decoder is None:
            file = read_rollouts(path, limits=limits)
        else:
            file = decoder.decode(path.read_bytes(), limits=limits)
    except BadRolloutFile as error:
        return None, refused(reason_of(error.code), error.detail, size=size)
    return file, passed(file, size=size)


def refused(reason: ReasonCode, what: str, *, size: int) -> CheckResult:
    """A file of `size` bytes that is none."""
    return concluded(CHECK.name, [CheckFinding(reason=reason, what=what)], fails=CHECK.fails, figures={"bytes": size})


def passed(file: RolloutFile, *, size: int) -> CheckResult:
    """A file that was read."""
    return concluded(CHECK.name, [], fails=CHECK.fails, figures={"bytes": size, "rows": len(file.samples)})


def reason_of(code: str) -> ReasonCode:
    """The reason for the ledger, of a `BadRolloutFile`'s code."""
    return _REASONS.get(code, ReasonCode.FORMAT_SCHEMA)


def judge(case: CheckInput) -> CheckResult:
    """A file that has been read passes: reading is the check."""
    return concluded(CHECK.name, [], fails=CHECK.fails, figures={"rows": len(case.file.samples)})


CHECK = Check(number=2, name="format", cost=Cost.FILE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
