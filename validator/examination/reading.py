"""Check 2 as a service makes it: strangers' files, within what a lease allows, are decoded in a sandbox."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

from protocol.identifiers import Digest, digest
from protocol.verdicts import ReasonCode
from rollouts.checks import CheckResult
from rollouts.checks.reading import passed, reason_of, refused
from rollouts.errors import BadRolloutFile, NotDecoded
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import ReadLimits
from rollouts.files.self_test_file import TRIAL_LIMITS, trial_file
from rollouts.sandbox import Sandboxes
from rollouts.sandboxed_decoder import BEYOND_LIMITS, Decoder, no_memory
from validator.examination.interface import NotJudged

_LIMITS_BEHIND: dict[str, tuple[str, ...]] = {
    "file-too-large": ("decoded_bytes",),
    "too-many-rows": ("rows",),
    "too-long": ("tokens",),
    BEYOND_LIMITS: ("rows", "decoded_bytes"),
}
"""The limits that a file has passed, by the code of `BadRolloutFile`. `file_bytes` is checked before it is decoded."""


class LimitedReader:
    """Reads files of rollouts in a sandbox.

    Args:
        sandboxes: Where.
        most: What this machine takes, whatever a lease allows.
    """

    def __init__(self, sandboxes: Sandboxes, *, most: ReadLimits) -> None:
        self._decoder = Decoder(sandboxes)
        self._most = most

    def read(
        self, path: Path, *, sha256: Digest, lease: ReadLimits
    ) -> tuple[RolloutFile, CheckResult] | CheckResult | NotJudged:
        """Reads a file.

        Args:
            path: Where it is.
            sha256: What was submitted. Nobody is accused of other bytes, however they came to stand here.
            lease: The most that an honest file of this slot can be. Beyond it a file is forged; within it, but beyond
                what this machine takes, it is not judged here.

        Returns:
            The file, with the check that it passed; the check alone, if it failed; or why nothing can be said.
        """
        try:
            size = path.stat().st_size
            if size > lease.file_bytes:
                return self._beyond_the_lease(path, sha256, size=size, most=lease.file_bytes)
            if size > self._most.file_bytes:
                return _too_large_here(f"the file has {size} bytes, and {self._most.file_bytes} are read here")
            content = path.read_bytes()
        except OSError as error:
            return NotJudged(code="disk-trouble", why=f"the file can't be read here: {error}", retryable=True)
        except MemoryError:
            return _not_judged(no_memory(f"the file has {path.stat().st_size} bytes"))
        if digest(hashlib.sha256(content).digest()) != sha256:
            return _changed(sha256, size=len(content))
        return self._decode(content, lease)

    def try_out(self) -> NotJudged | None:
        """Reads a small file of our own; None if the sandbox gives what stands in it."""
        found = self._decode(trial_file(), TRIAL_LIMITS)
        if isinstance(found, NotJudged):
            return found
        if isinstance(found, CheckResult) or found[0].units != 1:
            why = "the sandbox does not read a file that is known to be good"
            return NotJudged(code="sandbox-broken", why=why, retryable=True, hint="look at the validator's log")
        return None

    @staticmethod
    def _beyond_the_lease(path: Path, sha256: Digest, *, size: int, most: int) -> CheckResult | NotJudged:
        """Refuses a file for its size alone, which needs its hash and none of it in memory."""
        with path.open("rb") as file:
            found = digest(hashlib.file_digest(file, "sha256").digest())
        if found != sha256:
            return _changed(sha256, size=size)
        return refused(ReasonCode.FORMAT_TOO_LARGE, f"{size} bytes, more than {most}", size=size)

    def _decode(self, content: bytes, lease: ReadLimits) -> tuple[RolloutFile, CheckResult] | CheckResult | NotJudged:
        limits = ReadLimits(**{name: min(value, getattr(self._most, name)) for name, value in asdict(lease).items()})
        try:
            file = self._decoder.decode(content, limits=limits)
        except NotDecoded as error:
            return _not_judged(error)
        except BadRolloutFile as error:
            reason = reason_of(error.code)
            passed_limits = _LIMITS_BEHIND.get(error.code, ())
            if any(getattr(limits, name) < getattr(lease, name) for name in passed_limits):
                return _too_large_here(error.detail)
            return refused(reason, error.detail, size=len(content))
        return file, passed(file, size=len(content))


def _not_judged(error: NotDecoded) -> NotJudged:
    return NotJudged(code=error.code, why=error.detail, retryable=error.retryable, hint=error.hint)


def _changed(sha256: Digest, *, size: int) -> NotJudged:
    why = f"the file here has {size} bytes, and not the hash {sha256} with which it was fetched"
    return NotJudged(code="file-changed", why=why, retryable=True, hint="is the disk broken, or full?")


def _too_large_here(what: str) -> NotJudged:
    return NotJudged(
        code="too-large-here",
        why=what,
        retryable=False,
        hint="raise the validator's reading limits, then retry the work",
    )
