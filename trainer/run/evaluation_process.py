"""Evaluates versions in a separate process, so that training does not wait.

The process is `python -m trainer.run.evaluation_worker`. It reads one JSON object per line from its standard input and
answers each with a line of JSON on its standard output. It ends at end of input, so it does not outlive the trainer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import trainer
from protocol.errors import MusterError
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.wire.runs import MOST_ANSWER_CHARACTERS, MOST_ANSWERS, NewAnswers, SampledAnswer
from trainer.run.progress import ProgressLog
from trainer.run.settings import TrainerSettings

_log = get_logger(__name__)

LAST_PATIENCE = timedelta(minutes=10)
"""Maximum wait for the last evaluations at the end of a run."""
_LONGEST_ANSWER = 1 << 20
"""Maximum bytes of a line from the evaluation process."""


class EvaluationProcess:
    """Evaluates versions one at a time.

    Only the newest version waits; it replaces an older version that waits.

    Args:
        settings: Number of prompts and samples, device and dtype.
        progress: Receives the results.
        clock: Clock of the run.
        show: Sends answers to the orchestrator, for the pool's page; a failure is only logged.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        progress: ProgressLog,
        clock: Clock,
        show: Callable[[NewAnswers], Awaitable[object]] | None = None,
    ) -> None:
        self._settings = settings
        self._show = show
        self._progress = progress
        self._clock = clock
        self._waiting: tuple[int, Path] | None = None
        self._evaluated: int | None = None
        self._working: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def used(self) -> set[int]:
        """Versions whose folders are still needed.

        These are the version under evaluation and the version that waits.
        """
        return {each for each in (self._evaluated, self._waiting and self._waiting[0]) if each is not None}

    def ask(self, version: int, folder: Path) -> None:
        """Queues a version for evaluation, in place of an older version that still waits."""
        if self._waiting is not None:
            _log.info("evaluation-left-out", version=self._waiting[0], why="a newer version waits")
        self._waiting = (version, folder)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())

    async def drain(self) -> None:
        """Waits until queued evaluations are finished, at most `LAST_PATIENCE`."""
        if self._working is not None:
            await asyncio.wait({self._working}, timeout=LAST_PATIENCE.total_seconds())

    async def aclose(self) -> None:
        """Cancels the current evaluation and ends the process."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        await self._end()

    async def _work(self) -> None:
        while self._waiting is not None:
            (version, folder), self._waiting = self._waiting, None
            self._evaluated = version
            try:
                found = await self._answer(version, folder)
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                _log.warning("not-evaluated", version=version, why=str(error) or type(error).__name__)
                await self._end()
            else:
                self._progress.record("evaluation", version=version, **found)
                await self._show_answers(version, found)
            finally:
                self._evaluated = None

    async def _show_answers(self, version: int, found: Mapping[str, Any]) -> None:
        if self._show is None:
            return
        answers = tuple(
            SampledAnswer(
                prompt=str(one["prompt"])[:MOST_ANSWER_CHARACTERS],
                answer=str(one["answer"])[:MOST_ANSWER_CHARACTERS],
                correct=bool(one["correct"]),
            )
            for one in found.get("examples", ())[:MOST_ANSWERS]
        )
        try:
            await self._show(NewAnswers(version=version, answers=answers))
        except MusterError as error:  # an older orchestrator has no such route
            _log.info("answers-not-shown", version=version, why=error.detail)

    async def _answer(self, version: int, folder: Path) -> dict[str, Any]:
        process = self._process = self._process or await self._start()
        if process.stdin is None or process.stdout is None:
            raise OSError("the evaluation process has no pipes")
        process.stdin.write((json.dumps({"version": version, "folder": str(folder)}) + "\n").encode())
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            raise OSError("the evaluation process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ValueError(str(answer["error"]))
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        root = str(Path(trainer.__file__).parents[1])
        inherited = os.environ.get("PYTHONPATH")
        settings = self._settings
        options = {
            "prompts": settings.evaluation_prompts,
            "samples": settings.evaluation_samples,
            "dtype": settings.dtype.value,
            "device": settings.device,
        }
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "trainer.run.evaluation_worker",
            json.dumps(options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_ANSWER,
            env={**_own_environment(), "PYTHONPATH": root if not inherited else f"{root}{os.pathsep}{inherited}"},
            start_new_session=True,  # Ctrl-C must reach only the trainer, which then ends this process
        )

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _own_environment() -> dict[str, str]:
    """Returns the environment without torchrun's variables: the evaluation process is not part of the mesh."""
    of_torchrun = ("TORCHELASTIC_", "GROUP_", "LOCAL_", "MASTER_", "RANK", "ROLE_", "WORLD_SIZE")
    return {name: value for name, value in os.environ.items() if not name.startswith(of_torchrun)}
