"""Runs examinations in processes on this machine. The death of such a process never counts against a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Self

from protocol.errors import MusterError
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.scratch_folders import remove_abandoned
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import cancel_all
from rollouts.errors import BadVersionFolder
from rollouts.recompute.place import MODEL_FOLDERS
from rollouts.task.fetching import RelayFetch
from rollouts.task.policies import Fetch, PolicyStore
from validator.examination.channel import Order
from validator.examination.child import ExaminerDied, ExaminerProcess, ExaminerUnavailable
from validator.examination.interface import Conclusion, Examination, IsCopy, NotJudged
from validator.examination.numerics import VerifiableClasses
from validator.examination.settings import ExaminerSettings
from validator.examination.versions import VersionFolders

MOST_DEATHS = 3
"""Number of examiner processes that may die over one file; the result is then a `NotJudged` without retry."""

TRY_OUT_WITHIN = timedelta(seconds=60)
"""Timeout of the self-test, which takes less than a second, or some seconds if a sandbox must be started."""

_log = get_logger(__name__)


class LocalExaminer:
    """Examines files in processes that run on this machine while the async context is entered.

    Any number of `examine` calls may run concurrently; they share the processes.

    Args:
        settings: Settings of examinations.
        clock: Clock of version downloads.
        fetch: Downloads versions; None to download them from SHARDCAST relays.
    """

    def __init__(self, settings: ExaminerSettings, *, clock: Clock, fetch: Fetch | None = None) -> None:
        self._settings = settings
        fetch = fetch or RelayFetch(clock=clock, allow_plain_http=settings.allow_plain_http)
        store = PolicyStore(settings.home, fetch=fetch, clock=clock, keep=settings.keep)
        self._versions = VersionFolders(store, policies=settings.policies, keep=settings.keep)
        self._processes = [ExaminerProcess(settings) for _ in range(settings.processes)]
        self._free: asyncio.LifoQueue[ExaminerProcess] = asyncio.LifoQueue()
        self._starting: list[asyncio.Task[None]] = []
        self._classes = VerifiableClasses(settings.vllm, clock=clock)

    async def __aenter__(self) -> Self:
        if removed := await run_in_thread(remove_abandoned, MODEL_FOLDERS):
            _log.info("abandoned-folders-removed", folders=removed, prefix=MODEL_FOLDERS)
        for process in self._processes:
            self._free.put_nowait(process)
            self._starting.append(asyncio.create_task(process.warm_up()))
        await self._classes.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._classes.__aexit__(*error)
        await cancel_all(self._starting)
        await asyncio.gather(*(process.end() for process in self._processes))
        self._versions.close()

    async def examine(self, examination: Examination, *, is_copy: IsCopy) -> Conclusion | NotJudged:
        """Runs all checks, the cheapest first, and returns the conclusion; see `Examiner`.

        Exceptions that `is_copy` raises pass through this method.
        """
        async with AsyncExitStack() as stack:
            try:
                folder = await stack.enter_async_context(self._folder(examination))
            except BadVersionFolder as error:
                return NotJudged(code=error.code, why=error.detail, retryable=False, hint=error.hint)
            except MusterError as error:
                return NotJudged(code="no-policy", why=error.detail, retryable=True, hint=error.hint)
            except TimeoutError:
                return NotJudged(code="no-policy", why="the download of the version takes too long", retryable=True)
            except OSError as error:
                return NotJudged(code="disk-trouble", why=str(error), retryable=True)
            order = Order(facts=examination.facts, file=examination.file, folder=folder, draw=examination.draw)
            found = await self._examine(order, is_copy)
        if isinstance(found, NotJudged) and found.failed_class:
            self._classes.failed(found.failed_class, why=found.why)
        return found

    async def try_out(self) -> NotJudged | None:
        """Runs the self-test of a free process; returns None if it passes or if all processes are busy."""
        try:
            process = self._free.get_nowait()
        except asyncio.QueueEmpty:
            return None
        try:
            return await process.try_out(within=TRY_OUT_WITHIN)
        except (ExaminerDied, ExaminerUnavailable) as error:
            return NotJudged(code=error.code, why=error.detail, retryable=True, hint=error.hint)
        finally:
            self._free.put_nowait(process)

    def numerics(self) -> tuple[str, ...]:
        """Returns the numerics classes that this machine can verify."""
        return self._classes.names()

    @asynccontextmanager
    async def _folder(self, examination: Examination) -> AsyncIterator[Path]:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._settings.fetch_within.total_seconds()):
                held = self._versions.folder(examination.facts.work.run, examination.checkpoint)
                folder = await stack.enter_async_context(held)
            yield folder

    async def _examine(self, order: Order, is_copy: IsCopy) -> Conclusion | NotJudged:
        for _ in range(MOST_DEATHS):
            process = await self._free.get()
            try:
                return await process.examine(order, is_copy=is_copy, within=self._settings.deadline)
            except ExaminerDied as error:
                _log.warning("examiner-died", work=order.facts.work.key, why=error.detail)
            except ExaminerUnavailable as error:
                return NotJudged(code=error.code, why=error.detail, retryable=True, hint=error.hint)
            finally:
                self._free.put_nowait(process)
        return NotJudged(
            code="examiner-died",
            why=f"{MOST_DEATHS} examiner processes died while they examined this file",
            retryable=False,
            hint="look at the validator's log and at the machine's memory; then retry the work",
        )
