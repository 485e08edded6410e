"""One examiner process from the service's side: started on demand, ended when its state is unknown."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel, ValidationError

from protocol.errors import Unavailable
from validator.examination.channel import (
    ExaminationReply,
    ExaminerInput,
    ExaminerReady,
    Order,
    Question,
    Reply,
    StartExaminer,
    TryOut,
    receive,
    send,
)
from validator.examination.interface import Conclusion, IsCopy, NotJudged
from validator.examination.settings import ExaminerSettings

START_WITHIN = timedelta(seconds=120)
"""Timeout of a start; torch takes about four seconds on an idle machine."""

PROGRAM = (sys.executable, "-m", "validator.examination.process")

_END_WITHIN = timedelta(seconds=2)
_ROOT = Path(__file__).parents[2]
_PASSED_ON = frozenset({"PATH", "HOME", "LANG", "TMPDIR", "TZ", "MUSTER_LOG", "MUSTER_DATASETS"})
_PASSED_ON_FROM = ("LC_", "LD_", "PYTHON", "OMP_", "MKL_", "CUDA_", "NVIDIA_", "HF_", "MUSTER_SANDBOX_")
"""Prefixes of environment variables that the process gets. The others may hold passwords of keys."""


class ExaminerUnavailable(Unavailable):
    """The process can't be started."""

    code = "examiner-unavailable"
    default_hint = "look at the validator's log: the process says there why it ended"


class ExaminerDied(Unavailable):
    """The process ended before it answered."""

    code = "examiner-died"


class ExaminerProcess:
    """A process that makes one examination at a time.

    Args:
        settings: Settings of the examiner.
    """

    def __init__(self, settings: ExaminerSettings) -> None:
        self._settings = settings
        self._child: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Process id, if it runs."""
        return None if self._child is None or self._child.returncode is not None else self._child.pid

    async def warm_up(self) -> None:
        """Starts the process; an error is reported by the first examination."""
        with suppress(ExaminerUnavailable):
            await self._started()

    async def examine(self, order: Order, *, is_copy: IsCopy, within: timedelta) -> Conclusion | NotJudged:
        """Runs one examination. An error in the middle ends the process; the next examination starts another one.

        Raises:
            ExaminerUnavailable: No process can be started.
            ExaminerDied: The process ended.
        """
        child = await self._started()
        try:
            async with asyncio.timeout(within.total_seconds()) as deadline:
                answer, failed = await self._ask(child, order, is_copy)
        except TimeoutError:
            self._kill()
            if not deadline.expired():
                raise
            return NotJudged(
                code="took-too-long",
                why=f"an examination takes longer than {within.total_seconds():g} s",
                retryable=True,
                hint="raise the deadline, or give the validator a faster machine",
            )
        except BaseException:
            self._kill()
            raise
        if answer.ends:
            self._kill()
        if failed is not None:
            raise failed
        if answer.conclusion is not None:
            return answer.conclusion
        return answer.not_judged or NotJudged(code="examiner-failed", why="it gave no answer", retryable=True)

    async def try_out(self, *, within: timedelta) -> NotJudged | None:
        """Runs the self-test of the examiner process; returns None if it passes.

        Raises:
            ExaminerUnavailable: No process can be started.
            ExaminerDied: The process ended during the self-test.
        """
        child = await self._started()
        try:
            async with asyncio.timeout(within.total_seconds()):
                await _tell(child, ExaminerInput(order=TryOut()))
                report = await _hear(child)
        except TimeoutError:
            self._kill()
            return NotJudged(
                code="took-too-long",
                why=f"an examiner tries itself for longer than {within.total_seconds():g} s",
                retryable=True,
                hint="this machine does more than it can",
            )
        except BaseException:
            self._kill()
            raise
        return report.not_judged if isinstance(report, ExaminationReply) else None

    async def end(self) -> None:
        """Ends the process."""
        child = self._child
        if child is None or child.returncode is not None:
            return
        if child.stdin is not None:
            child.stdin.close()
        try:
            async with asyncio.timeout(_END_WITHIN.total_seconds()):
                await child.wait()
        except TimeoutError:
            self._kill()
            await child.wait()

    async def _ask(
        self, child: asyncio.subprocess.Process, order: Order, is_copy: IsCopy
    ) -> tuple[ExaminationReply, Exception | None]:
        """Returns the reply, and an error of the service while it waited."""
        await _tell(child, ExaminerInput(order=order))
        failed: Exception | None = None
        while True:
            report = await _hear(child)
            if isinstance(report, Question):
                copy_found: bool | None = None
                try:
                    copy_found = await is_copy(report.fingerprint)
                except Exception as error:  # noqa: BLE001 - raised when the process is free again
                    failed = error
                await _tell(child, Reply(copy_found=copy_found))
            elif isinstance(report, ExaminationReply):
                return report, failed

    async def _started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._child is not None and self._child.returncode is None:
                return self._child
            try:
                self._child = child = await asyncio.create_subprocess_exec(
                    *PROGRAM,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env=_environment(),
                    start_new_session=True,
                )
            except OSError as error:
                raise ExaminerUnavailable(f"no examiner can be started: {error}") from error
            try:
                async with asyncio.timeout(START_WITHIN.total_seconds()):
                    await _tell(child, StartExaminer(settings=self._settings))
                    await _hear(child)
            except (ExaminerDied, TimeoutError) as error:
                self._kill()
                raise ExaminerUnavailable("an examiner ended before it was ready, or took too long") from error
            except BaseException:
                self._kill()
                raise
            return child

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_FROM)}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH"))))
    return kept


async def _tell(child: asyncio.subprocess.Process, message: BaseModel) -> None:
    if child.stdin is None:
        raise ExaminerDied("the process has no input")
    try:
        await send(child.stdin, message)
    except (ConnectionError, RuntimeError) as error:
        raise ExaminerDied(f"the process has ended: {error}") from error


async def _hear(child: asyncio.subprocess.Process) -> ExaminerReady | Question | ExaminationReply:
    if child.stdout is None:
        raise ExaminerDied("the process has no output")
    try:
        return await receive(child.stdout)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise ExaminerDied(f"the process has ended with {child.returncode}") from error
    except ValidationError as error:
        raise ExaminerDied("the process speaks another language") from error
