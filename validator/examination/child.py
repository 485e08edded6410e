"""An examiner process as the service sees it: started on demand, and killed when its state is unknown."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
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
    Progress,
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
"""Timeout of a process start; importing torch takes about four seconds on an idle machine."""

PROGRAM = (sys.executable, "-m", "validator.examination.process")
"""Command that starts an examiner process."""

_END_WITHIN = timedelta(seconds=2)
"""Time that a process has to end after its input was closed; after this time the process is killed."""
_ROOT = Path(__file__).parents[2]
_PASSED_ON = frozenset({"PATH", "HOME", "LANG", "TMPDIR", "TZ", "MUSTER_LOG", "MUSTER_DATASETS"})
"""Environment variables that the process inherits."""
_PASSED_ON_FROM = ("LC_", "LD_", "PYTHON", "OMP_", "MKL_", "CUDA_", "NVIDIA_", "HF_", "MALLOC_", "MUSTER_SANDBOX_")
"""Prefixes of further environment variables that the process inherits. Other variables may hold keys and passwords."""


class ExaminerUnavailable(Unavailable):
    """No examiner process can be started."""

    code = "examiner-unavailable"
    default_hint = "look at the validator's log for the output of the examiner process"


class ExaminerDied(Unavailable):
    """The examiner process ended before it sent its result."""

    code = "examiner-died"


class ExaminerProcess:
    """An examiner process, which makes one examination at a time; if it has ended, the next call starts another one.

    Args:
        settings: Settings of the examiner.
    """

    def __init__(self, settings: ExaminerSettings) -> None:
        self._settings = settings
        self._child: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Operating system's id of the process; None while the process does not run."""
        return None if self._child is None or self._child.returncode is not None else self._child.pid

    async def warm_up(self) -> None:
        """Starts the process before its first use.

        If this start fails, the first examination tries again, and reports the error if its own start fails, too.
        """
        with suppress(ExaminerUnavailable):
            await self._started()

    async def examine(self, order: Order, *, is_copy: IsCopy, within: timedelta) -> Conclusion | NotJudged:
        """Runs one examination.

        If the call fails, times out or is cancelled before the reply, the process is killed, and the next examination
        starts another one.

        Args:
            order: The examination.
            is_copy: Returns True if another submission has the given fingerprint.
            within: Time limit between two reports of progress, after which the process is killed and the result is
                `NotJudged`. An examination reports after each stage and after each piece of a recomputation, whose
                tokens are bounded. So the time of a whole examination is bounded by the size of its file, and a large
                file is judged on a slow machine, too.

        Raises:
            ExaminerUnavailable: No process can be started.
            ExaminerDied: The process ended before it sent its result.
        """
        child = await self._started()
        try:
            async with asyncio.timeout(within.total_seconds()) as deadline:
                answer, failed = await self._ask(child, order, is_copy, _extension(deadline, within))
        except TimeoutError:
            self._kill()
            if not deadline.expired():
                raise
            return NotJudged(
                code="took-too-long",
                why=f"the examination made no progress for {within.total_seconds():g} s",
                retryable=True,
                hint="raise the validator's setting examination_s, or use a faster machine",
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
        return answer.not_judged or NotJudged(
            code="examiner-failed", why="the examiner process sent no result", retryable=True
        )

    async def try_out(self, *, within: timedelta) -> NotJudged | None:
        """Runs the self-test of the examiner process; returns None if it passes, else the error.

        Args:
            within: Time limit, after which the process is killed and the result is `NotJudged`.

        Raises:
            ExaminerUnavailable: No process can be started.
            ExaminerDied: The process ended during the self-test.
        """
        child = await self._started()
        try:
            async with asyncio.timeout(within.total_seconds()):
                await _send(child, ExaminerInput(order=TryOut()))
                report = await _receive(child)
        except TimeoutError:
            self._kill()
            return NotJudged(
                code="took-too-long",
                why=f"the self-test of an examiner process took longer than {within.total_seconds():g} s",
                retryable=True,
                hint="this machine is overloaded: lower the setting workers, or stop other programs",
            )
        except BaseException:
            self._kill()
            raise
        return report.not_judged if isinstance(report, ExaminationReply) else None

    async def end(self) -> None:
        """Ends the process: closes its input, and kills it if it still runs after two seconds."""
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
        self, child: asyncio.subprocess.Process, order: Order, is_copy: IsCopy, extend: Callable[[], None]
    ) -> tuple[ExaminationReply, Exception | None]:
        """Returns the reply, and the exception that `is_copy` raised, if any."""
        await _send(child, ExaminerInput(order=order))
        failed: Exception | None = None
        while True:
            report = await _receive(child)
            if isinstance(report, Question):
                copy_found: bool | None = None
                try:
                    copy_found = await is_copy(report.fingerprint)
                except Exception as error:  # noqa: BLE001 - raised by `examine`, after the process has answered
                    failed = error
                await _send(child, Reply(copy_found=copy_found))
            elif isinstance(report, Progress):
                extend()
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
                raise ExaminerUnavailable(f"no examiner process can be started: {error}") from error
            try:
                async with asyncio.timeout(START_WITHIN.total_seconds()):
                    await _send(child, StartExaminer(settings=self._settings))
                    await _receive(child)
            except (ExaminerDied, TimeoutError) as error:
                self._kill()
                seconds = START_WITHIN.total_seconds()
                raise ExaminerUnavailable(
                    f"the examiner process ended during its start, or was not ready within {seconds:g} s"
                ) from error
            except BaseException:
                self._kill()
                raise
            return child

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()


def _extension(deadline: asyncio.Timeout, within: timedelta) -> Callable[[], None]:
    """Returns a function that restarts a time limit."""

    def extend() -> None:
        deadline.reschedule(asyncio.get_running_loop().time() + within.total_seconds())

    return extend


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_FROM)}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH"))))
    return kept


async def _send(child: asyncio.subprocess.Process, message: BaseModel) -> None:
    if child.stdin is None:
        raise ExaminerDied("the examiner process has no input pipe")
    try:
        await send(child.stdin, message)
    except (ConnectionError, RuntimeError) as error:
        raise ExaminerDied(f"the examiner process has ended: {error}") from error


async def _receive(child: asyncio.subprocess.Process) -> ExaminerReady | Question | Progress | ExaminationReply:
    if child.stdout is None:
        raise ExaminerDied("the examiner process has no output pipe")
    try:
        return await receive(child.stdout)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise ExaminerDied(f"the examiner process has ended with exit status {child.returncode}") from error
    except ValidationError as error:
        raise ExaminerDied("the examiner process sent a message in an unknown format") from error
