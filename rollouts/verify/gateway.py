"""Verifies answers of a gateway before or after their delivery: `muster gateway verifier`.

The verifier takes answers from the gateway by long polling, and runs the checks of `verify_answer`. It finds an answer
invalid only if a check failed; everything that may be this machine's own trouble leaves the result open.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch

from protocol.clients.verifications import VerificationClient
from protocol.errors import InvalidInput, MusterError, Unavailable
from protocol.identifiers import Digest
from protocol.runtime.backoff import GrowingPause
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import cancel_all, run_unless, sleep_or, wait_first
from protocol.wire.serving import LONGEST_POLL, MOST_VERSIONS, TakeVerification, VerificationResult
from protocol.wire.serving import Verification as Task
from rollouts.calibration.limits import RolloutCalibration
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recompute.place import VllmPlace
from rollouts.verify.answers import Answer, AnswerVerifier, BadAnswer, digest_of
from rollouts.verify.files import Verification

FIRST_PAUSE = timedelta(milliseconds=500)
LONGEST_PAUSE = timedelta(seconds=10)
"""Maximum pause while the gateway is down."""
OPEN_PAUSE = timedelta(seconds=1)
"""Pause after an open result, whose answer the gateway offers again, so that another verifier can take it."""
END_GRACE = timedelta(seconds=1)
"""Time for which the verifier waits at its end for a running computation."""
_LEAST_CALL = timedelta(seconds=5)
_MOST_OPEN = 1024
"""Number of open results that are remembered, so that an answer is not recomputed when it is offered again."""
_MOST_REASONS = 16
_LONGEST_REASON = 300

_log = get_logger(__name__)
T = TypeVar("T")


class _Ended(Exception):
    """The verification is not needed any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """Settings of the recomputation of answers; see `verify_answer` for the fields."""

    calibration: RolloutCalibration | None = None
    dtype: Dtype | None = None
    device: torch.device | None = None
    engine: EngineName | None = None
    vllm: VllmPlace | None = None

    def open(self, folder: Path) -> AnswerVerifier:
        """Opens a version's folder."""
        return AnswerVerifier(
            folder,
            calibration=self.calibration,
            dtype=self.dtype,
            device=self.device,
            engine=self.engine,
            vllm=self.vllm,
        )


class Judge:
    """Judges answers of several versions, with the weights of one version in memory.

    Args:
        folders: Folder of each version.
        computation: Settings of the recomputation.
    """

    def __init__(self, folders: Mapping[Digest, Path], computation: Computation) -> None:
        self._folders = folders
        self._computation = computation
        self._open: AnswerVerifier | None = None

    @classmethod
    def of(cls, folders: Sequence[Path], computation: Computation) -> Judge:
        """Reads the digest of each folder.

        Raises:
            InvalidInput: There are too many folders, or two have the same version.
            BadVersionFolder: A folder is not a usable version.
        """
        if not 1 <= len(folders) <= MOST_VERSIONS:
            raise InvalidInput(
                f"{len(folders)} folders were given; the limit is {MOST_VERSIONS}", hint="give 1 to 16 folders"
            )
        found: dict[Digest, Path] = {}
        for folder in folders:
            digest = digest_of(folder)
            if digest in found:
                raise InvalidInput(
                    f"{folder} has the same version as {found[digest]}: {digest}", hint="name each version once"
                )
            with computation.open(folder):
                found[digest] = folder
        return cls(found, computation)

    @property
    def versions(self) -> tuple[Digest, ...]:
        """Digests of the versions."""
        return tuple(self._folders)

    def close(self) -> None:
        """Releases the weights."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def judge(self, task: Task, *, proceed: Callable[[], None] = lambda: None) -> VerificationResult:
        """Returns the result for an answer; it never raises because of the answer.

        Args:
            task: The answer with its request.
            proceed: Function that is called before each computation and raises an error to end the verification.
        """
        try:
            return self._judge(task, proceed)
        except BadAnswer as error:
            return _result(False, [error.detail])
        except _Ended:
            return _result(None, ["the verification was not done in time"])
        except (MusterError, MemoryError, torch.OutOfMemoryError) as error:
            self.close()
            detail = error.detail if isinstance(error, MusterError) else "this machine's memory is too small"
            return _result(None, [detail])
        except Exception as error:  # noqa: BLE001 - one answer must not end the verifier
            self.close()
            _log.error(
                "verification-crashed", request=task.id, error=type(error).__name__
            )  # its text may be the answer's
            return _result(None, [f"the verifier failed: {type(error).__name__}"])

    def _judge(self, task: Task, proceed: Callable[[], None]) -> VerificationResult:
        folder = self._folders.get(task.version)
        if folder is None:
            return _result(None, [f"this verifier does not have the version {task.version}"])
        answer = Answer.parse(task.answer.encode())
        record = answer.record
        try:
            Arithmetic.parse(record.arithmetic)
        except (ValueError, InvalidInput):
            return _result(None, [f"this release does not know the arithmetic {record.arithmetic!r:.80}"])
        wrong = []
        if record.version != task.version:
            wrong.append(f"the answer's version is {record.version}")
        if record.seed != task.seed:
            wrong.append("the seed is not that of the request")
        wrong += [f"choice {one.sample} has no proofs" for one in record.samples if one.proofs is None][:1]
        if wrong:
            return _result(False, wrong)
        verification = self._opened(task.version, folder).verify(
            answer, request=task.body.encode(), most_new_tokens=task.most_new_tokens, proceed=proceed
        )
        if verification.rejected:
            return _result(False, list(_failures(verification)))
        if not verification.complete:
            return _result(None, [f"{one.check}: {one.note}" for one in verification.unknown])
        return _result(True, [])

    def _opened(self, version: Digest, folder: Path) -> AnswerVerifier:
        if self._open is None or self._open.digest != version:
            self.close()
            self._open = self._computation.open(folder)
        return self._open


def _failures(verification: Verification) -> Iterator[str]:
    for failed in verification.failed:
        for finding in failed.findings[:4]:
            place = "" if finding.row is None else f"choice {finding.row}: "
            yield f"{failed.check}: {place}{finding.what}"


def _result(valid: bool | None, reasons: Sequence[str]) -> VerificationResult:
    clean = [one.encode("utf-8", "replace").decode().replace("\0", "?") for one in reasons[:_MOST_REASONS]]
    return VerificationResult(valid=valid, reasons=tuple(one[:_LONGEST_REASON] for one in clean))


async def _within(call: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:
    """Returns the result of a call, which has `END_GRACE` left when `stop` is set.

    Raises:
        Unavailable: The call was not done in time.
    """
    running = asyncio.ensure_future(call)
    try:
        await wait_first(stop.wait(), tasks=[running])
        return await asyncio.wait_for(running, END_GRACE.total_seconds())
    except TimeoutError:
        raise Unavailable("the verifier was stopped before the gateway answered") from None
    finally:
        await cancel_all([running])


class GatewayVerifier:
    """Takes answers from a gateway until it is stopped.

    Args:
        client: Client of the gateway.
        judge: Judges the answers.
        clock: Clock of pauses and time limits.
    """

    def __init__(self, client: VerificationClient, judge: Judge, *, clock: Clock) -> None:
        self._client = client
        self._judge = judge
        self._clock = clock
        self._pause = GrowingPause(first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        self._open: OrderedDict[str, VerificationResult] = OrderedDict()
        self._working: threading.Thread | None = None
        self.judged = 0
        """Number of results that the gateway accepted."""

    @property
    def is_computing(self) -> bool:
        """Whether a computation still runs, which can't be interrupted; the process must then end without waiting."""
        return self._working is not None and self._working.is_alive()

    async def run(self, stop: asyncio.Event, *, on_start: Callable[[], None] = lambda: None) -> None:
        """Verifies answers until `stop` is set.

        Args:
            stop: Ends the verifier.
            on_start: Function that is called when the gateway has accepted the token.

        Raises:
            Unauthenticated: The token is not valid, at the start or later.
            Forbidden: The token is not a verifier's.
            Unavailable: The gateway can't be reached at the start. Later the verifier waits for it.
        """
        task = (await self._client.take(self._request(timedelta()))).verification
        on_start()
        while not stop.is_set():
            if task is not None:
                await self._verify(task, stop)
                task = None
                continue
            try:
                taken = await run_unless(stop, self._client.take(self._request(LONGEST_POLL)))
            except MusterError as error:
                await self._wait_for_gateway(error, stop)
                continue
            self._pause.succeeded()
            task = None if taken is None else taken.verification
        if self._working is not None:
            self._working.join(END_GRACE.total_seconds())
        if not self.is_computing:
            self._judge.close()

    def _request(self, wait: timedelta) -> TakeVerification:
        return TakeVerification(versions=self._judge.versions, wait_ms=round(wait.total_seconds() * 1000))

    async def _wait_for_gateway(self, error: MusterError, stop: asyncio.Event) -> None:
        if not error.retryable:
            raise error
        pause = max(self._pause.failed(), error.retry_after or timedelta())
        _log.warning("gateway-unavailable", error=error.detail, wait_s=round(pause.total_seconds(), 1))
        await sleep_or(self._clock, min(pause, 2 * LONGEST_PAUSE), stop)

    async def _verify(self, task: Task, stop: asyncio.Event) -> None:
        started = self._clock.monotonic()
        result = self._open.get(task.id) or await self._compute(task, stop)
        left = timedelta(milliseconds=task.ends_at_ms - self._clock.now().timestamp() * 1000)
        limit = END_GRACE if stop.is_set() else max(left, _LEAST_CALL)
        try:
            taken = await _within(self._client.judge(task.id, result, call_timeout=limit), stop)
        except Unavailable as error:
            _log.warning("result-lost", request=task.id, error=error.detail)
            return
        accepted = taken.accepted
        self.judged += accepted
        if task.id not in self._open:
            log = _log.info if result.valid else _log.warning
            log(
                "answer-verified",
                request=task.id,
                version=task.version,
                valid=result.valid,
                checks=sorted({reason.partition(":")[0] for reason in result.reasons}),
                accepted=accepted,
                seconds=round(self._clock.monotonic() - started, 3),
            )
        if result.valid is None:
            self._open[task.id] = result
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
            await sleep_or(self._clock, OPEN_PAUSE, stop)

    async def _compute(self, task: Task, stop: asyncio.Event) -> VerificationResult:
        """Judges an answer in a thread. The result is open if the verifier is stopped before.

        The thread is a daemon, because a computation can't be interrupted, and must not delay the end of the process.
        """
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        found: list[VerificationResult] = []

        def proceed() -> None:
            if stop.is_set() or self._clock.now().timestamp() * 1000 > task.ends_at_ms:
                raise _Ended

        def work() -> None:
            found.append(self._judge.judge(task, proceed=proceed))
            with suppress(RuntimeError):  # the loop is closed if the verifier has ended
                loop.call_soon_threadsafe(done.set)

        self._working = threading.Thread(target=work, name="verification", daemon=True)
        self._working.start()
        await wait_first(done.wait(), stop.wait())
        return found[0] if found else _result(None, ["the verifier is being stopped"])
