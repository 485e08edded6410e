"""Check 2: the bytes are a valid rollout file within the size limits, and every number is finite."""

from __future__ import annotations

from pathlib import Path

from protocol.verdicts import ReasonCode
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckFinding, CheckResult, Cost, Fails, concluded
from rollouts.errors import BadRolloutFile
from rollouts.files.limits import ReadLimits
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import OLD_VERSION, read_rollouts
from rollouts.sandbox.decoder import BEYOND_LIMITS, CRASHED, Decoder

RATIONALE = (
    "Every honest task writes this format with one library call. A file that does not decode was truncated, or built "
    "to break readers; its hash is on the ledger, so the node did submit it. Untrusted files are decoded with limited "
    "memory and time."
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
"""Errors that this table does not list are schema violations."""


def read(
    path: Path, *, limits: ReadLimits | None = None, decoder: Decoder | None = None
) -> tuple[RolloutFile | None, CheckResult]:
    """Reads a file, and returns the file and the result of this check.

    If the file is invalid, None is returned in its place, and the result says why the file is invalid.

    Args:
        path: The file.
        limits: Size limits.
        decoder: Decodes the file in a sandbox; None decodes it in this process, which is safe only for trusted files.

    Raises:
        OSError: The file is missing or unreadable.
        NotDecoded: The decoder failed without establishing whether the file is valid.
    """
    size, limits = path.stat().st_size, limits or ReadLimits()
    if size > limits.file_bytes:
        what = f"the file has {size} bytes, more than {limits.file_bytes}"
        return None, refused(ReasonCode.FORMAT_TOO_LARGE, what, size=size)
    try:
        if decoder is None:
            file = read_rollouts(path, limits=limits)
        else:
            file = decoder.decode(path.read_bytes(), limits=limits)
    except BadRolloutFile as error:
        return None, refused(reason_of(error.code), error.detail, size=size)
    return file, passed(file, size=size)


def refused(reason: ReasonCode, what: str, *, size: int) -> CheckResult:
    """Returns the failed result for a file of `size` bytes."""
    return concluded(CHECK.name, [CheckFinding(reason=reason, what=what)], fails=CHECK.fails, figures={"bytes": size})


def passed(file: RolloutFile, *, size: int) -> CheckResult:
    """Returns the passed result for a decoded file."""
    return concluded(CHECK.name, [], fails=CHECK.fails, figures={"bytes": size, "rows": len(file.samples)})


def reason_of(code: str) -> ReasonCode:
    """Returns the ledger's reason code for the code of a `BadRolloutFile`."""
    return _REASONS.get(code, ReasonCode.FORMAT_SCHEMA)


def judge(case: CheckInput) -> CheckResult:
    """Returns a passed result: a decoded file has already satisfied this check."""
    return concluded(CHECK.name, [], fails=CHECK.fails, figures={"rows": len(case.file.samples)})


CHECK = Check(number=2, name="format", cost=Cost.FILE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
