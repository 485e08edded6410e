"""Check 2 of an examination: decodes an untrusted file in a sandbox, within the limits of its lease."""

from __future__ import annotations

import hashlib
from pathlib import Path

from protocol.identifiers import Digest, digest
from protocol.verdicts import ReasonCode
from rollouts.checks import CheckResult
from rollouts.checks.reading import passed, reason_of, refused
from rollouts.errors import BadRolloutFile, NotDecoded, TooLargeHere
from rollouts.files.limits import ReadLimits
from rollouts.files.samples import RolloutFile
from rollouts.files.self_test_file import TRIAL_LIMITS, trial_file
from rollouts.sandbox import Sandboxes
from rollouts.sandbox.decoder import BEYOND_LIMITS, LIMIT_OF, Decoder, no_memory
from validator.examination.interface import HashedFile, NotJudged

_SETTINGS = {
    "file_bytes": "file_most_bytes",
    "decoded_bytes": "file_decoded_bytes",
    "rows": "file_most_rows",
    "tokens": "file_most_tokens",
}
"""Name of the validator's setting for each field of `ReadLimits`."""

_ALLOWANCE = ("rows", "decoded_bytes")
"""Fields of `ReadLimits` that determine the memory, time and output that the decoder may use."""


class LimitedReader:
    """Reads rollout files in a sandbox, within the limits of each file's lease and of this machine.

    Args:
        sandboxes: Pool of sandboxes.
        most: Limits of this machine, from the validator's settings.
    """

    def __init__(self, sandboxes: Sandboxes, *, most: ReadLimits) -> None:
        self._decoder = Decoder(sandboxes)
        self._most = most

    def read(
        self, file: Path | HashedFile, *, sha256: Digest, lease: ReadLimits
    ) -> tuple[RolloutFile, CheckResult] | CheckResult | NotJudged:
        """Reads a file and compares it with the limits of its lease.

        Args:
            file: Path of the file, or its hash and size if it was not stored.
            sha256: Submitted SHA-256. Bytes with another hash are not judged, because a broken disk may be the cause.
            lease: Limits of an honest file of this slot. A file beyond these limits is forged; a file within these
                limits, but beyond this machine's limits, is not judged here.

        Returns:
            The decoded file with the passed check; or only the failed check; or the reason why the file is not judged.
        """
        try:
            content = self._content(file, lease) if isinstance(file, Path) else file
        except OSError as error:
            return NotJudged(code="disk-trouble", why=f"the file can't be read here: {error}", retryable=True)
        except NotDecoded as error:
            return _not_judged(error)
        if isinstance(content, HashedFile):
            return self._unread(content, sha256, lease)
        if digest(hashlib.sha256(content).digest()) != sha256:
            return _changed(sha256, size=len(content))
        return self._decode(content, lease)

    def try_out(self) -> NotJudged | None:
        """Reads a small known file in a sandbox; returns None if the sandbox returns its content, else the error."""
        found = self._decode(trial_file(), TRIAL_LIMITS)
        if isinstance(found, NotJudged):
            return found
        if isinstance(found, CheckResult) or found[0].units != 1:
            why = "the sandbox can't read a file that is known to be good"
            return NotJudged(code="sandbox-broken", why=why, retryable=True, hint="look at the validator's log")
        return None

    def _content(self, path: Path, lease: ReadLimits) -> bytes | HashedFile:
        """Reads a file into memory, or hashes it if it is beyond the limits of its lease or of this machine."""
        size = path.stat().st_size
        if size > min(lease.file_bytes, self._most.file_bytes):
            with path.open("rb") as file:
                return HashedFile(sha256=digest(hashlib.file_digest(file, "sha256").digest()), size=size)
        try:
            return path.read_bytes()
        except MemoryError as error:
            raise no_memory(f"the file has {size} bytes") from error

    def _unread(self, file: HashedFile, sha256: Digest, lease: ReadLimits) -> CheckResult | NotJudged:
        """Judges a file by hash and size alone, because it exceeds the limits of its lease or of this machine."""
        if file.sha256 != sha256:
            return _changed(sha256, size=file.size)
        if file.size > lease.file_bytes:
            what = f"{file.size} bytes, more than the {lease.file_bytes} that its lease allows"
            return refused(ReasonCode.FORMAT_TOO_LARGE, what, size=file.size)
        what = f"the file has {file.size} bytes, but this validator reads at most {self._most.file_bytes}"
        return _too_large_here(what, self._most, "file_bytes")

    def _decode(self, content: bytes, lease: ReadLimits) -> tuple[RolloutFile, CheckResult] | CheckResult | NotJudged:
        try:
            file = self._decoder.decode(content, limits=lease, here=self._most)
        except TooLargeHere as error:
            return _too_large_here(error.detail, self._most, LIMIT_OF[error.code])
        except NotDecoded as error:
            return _not_judged(error)
        except BadRolloutFile as error:
            smaller = [name for name in _ALLOWANCE if getattr(self._most, name) < getattr(lease, name)]
            if error.code == BEYOND_LIMITS and smaller:
                return _too_large_here(error.detail, self._most, *smaller)
            return refused(reason_of(error.code), error.detail, size=len(content))
        return file, passed(file, size=len(content))


def _not_judged(error: NotDecoded) -> NotJudged:
    return NotJudged(code=error.code, why=error.detail, retryable=error.retryable, hint=error.hint)


def _changed(sha256: Digest, *, size: int) -> NotJudged:
    why = f"the file on disk ({size} bytes) no longer has the hash {sha256} with which it was downloaded"
    return NotJudged(code="file-changed", why=why, retryable=True, hint="check the disk of the validator's directory")


def _too_large_here(what: str, most: ReadLimits, *names: str) -> NotJudged:
    """Returns the error for a file within its lease's limits, but beyond this machine's limits.

    Args:
        what: Description of the file's size.
        most: Limits of this machine.
        names: Fields of `ReadLimits` whose limits on this machine the file exceeds.
    """
    settings = " or ".join(f"{_SETTINGS[name]} (now {getattr(most, name)})" for name in names)
    return NotJudged(
        code="too-large-here",
        why=f"the file is within the limits of its lease, but beyond this validator's limits: {what}",
        retryable=False,
        hint=f"raise {settings}, then `muster validator retry`",
    )
