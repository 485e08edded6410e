"""The engine behind the service: admission of requests, pauses and weight updates.

An answer uses one version from its first token to its last. A weight update therefore waits until the answers in
progress have ended; requests that arrive meanwhile wait for the new version (decision 91).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

from protocol.errors import MusterError
from protocol.identifiers import Digest
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import SampleRequest, SessionEngine
from rollouts.engines.shared import SharedEngine
from rollouts.precision import Arithmetic
from rollouts.sampling.parameters import SamplingParameters
from rollouts.serving.errors import NotServing, TooManyAnswers
from rollouts.serving.generation import Generation, Mailbox
from rollouts.serving.limits import RequestLimits
from rollouts.serving.version import ServedVersion

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Samples that the engine draws for one HTTP request.

    Args:
        requests: One request for each choice.
        parameters: Sampling parameters.
        streamed: Whether tokens are reported as they are drawn.
    """

    requests: tuple[SampleRequest, ...]
    parameters: SamplingParameters
    streamed: bool = False


class Backend:
    """One engine that serves one version at a time; an async context manager. To be used in one event loop.

    Args:
        engine: The engine, without weights or with any.
        folder: Folder of the first version.
        limits: Bounds.
        with_proofs: Whether answers have proofs.
    """

    def __init__(
        self, engine: SessionEngine, folder: Path, *, limits: RequestLimits | None = None, with_proofs: bool = True
    ) -> None:
        self.limits = limits or RequestLimits()
        self.with_proofs = with_proofs
        self.engine = engine
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="muster-engine")
        self._shared = SharedEngine(engine, thread=self._thread, with_proofs=with_proofs)
        self._version: ServedVersion | None = None
        self._running: set[Generation] = set()
        self._answers = 0
        self._paused = False
        self._loading = True
        self._failure: MusterError | None = None
        self._gate = asyncio.Event()
        """Set while requests may enter the engine."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._updates = asyncio.Lock()
        self._recovery: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Hashes and loads the first version.

        Raises:
            MusterError: The version can't be loaded.
        """
        self._mailbox = Mailbox(asyncio.get_running_loop())
        try:
            version = await run_in_thread(ServedVersion.open, self._folder)
            await self._load(version)
        except BaseException:
            await self._close()
            raise
        self._loading = False
        self._set_gate()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops all answers and closes the engine."""
        self._failure = NotServing("the service is stopping")
        self._set_gate()
        if self._recovery is not None:
            self._recovery.cancel()
        for generation in self._running:
            generation.abort(self._failure)
        await self._close()

    @property
    def version(self) -> ServedVersion:
        """The version that answers new requests."""
        if self._version is None:
            raise NotServing("no version is loaded")
        return self._version

    @property
    def arithmetic(self) -> Arithmetic:
        """The engine's arithmetic; its numerics class if it has one."""
        return self.engine.arithmetics[0]

    @property
    def answers(self) -> int:
        """Number of answers in the engine or waiting for it."""
        return self._answers

    @property
    def unanswered(self) -> int:
        """Number of answers in the engine."""
        return self._shared.unanswered

    @property
    def paused(self) -> bool:
        """Whether requests wait for `resume`."""
        return self._paused

    async def check(self) -> None:
        """Checks that the engine works.

        Raises:
            MusterError: It failed, and could not load its version again.
        """
        if self._failure is not None:
            raise self._failure
        self.version  # noqa: B018 - raises if there is none

    async def generate(self, count: int, make: Callable[[ServedVersion], Awaitable[Work]]) -> Generation:
        """Gives a request to the engine; the caller enters the result as a context.

        Args:
            count: Number of answers.
            make: Encodes the request for a version. It is called again if the version changed meanwhile.

        Raises:
            TooManyAnswers: Too many answers are waiting.
            NotServing: The service was paused for too long, is stopping or failed.
            InvalidInput: The request can't be answered.
        """
        most = self.limits.answers
        if self._answers + count > most:
            raise TooManyAnswers(
                f"{self._answers} answers are in progress or waiting and this request adds {count}; the limit is {most}"
            )
        self._answers += count
        try:
            while True:
                version = await self._until_open()
                work = await make(version)
                if self._is_open and self._version is version:
                    break
            generation = Generation(
                work.requests,
                work.parameters,
                mailbox=self._mailbox,
                streamed=work.streamed,
                limits=self.limits,
            )
            self._shared.add(generation.job)
        except BaseException:
            self._answers -= count
            raise
        self._running.add(generation)
        self._idle.clear()
        generation.job.done.add_done_callback(lambda _: self._mailbox.post(lambda: self._finish(generation)))
        return generation

    async def pause(self, *, abort: bool = False) -> None:
        """Lets new requests wait, and waits until the answers in progress have ended.

        Args:
            abort: Stop the answers in progress instead of waiting for them.

        Raises:
            NotServing: Answers were still in progress after `limits.drain`. The service stays paused.
        """
        self._paused = True
        self._set_gate()
        if abort:
            for generation in self._running:
                generation.abort(NotServing("the service was paused, which stopped the answer"))
        await self._drain()

    def resume(self) -> None:
        """Lets requests enter the engine again."""
        self._paused = False
        self._set_gate()

    async def update(self, folder: Path, *, digest: Digest | None = None) -> ServedVersion:
        """Replaces the weights after the answers in progress have ended; returns the served version.

        After an error, the service goes on with its former version.

        Args:
            folder: Folder of the new version.
            digest: Its expected digest; None to accept any.

        Raises:
            WrongDigest: The folder has another digest, or changed while it was read.
            BadVersionFolder: The folder is not a usable version.
            NotServing: Answers were still in progress after `limits.drain`.
            OutOfMemory: The weights do not fit.
        """
        async with self._updates:
            new = await run_in_thread(ServedVersion.open, folder, digest=digest)
            former = self._version
            if former is not None and former.digest == new.digest and self._failure is None:
                return former
            self._loading = True
            self._set_gate()
            try:
                await self._drain()
                try:
                    await self._load(new)
                except Exception:
                    if former is not None:
                        await self._restore(former)
                    raise
                self._failure = None
            finally:
                self._loading = False
                self._set_gate()
            _log.info("weights-updated", version=new.digest, former=None if former is None else former.digest)
            return new

    async def _load(self, version: ServedVersion) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, lambda: self._shared.load(version.folder, version=version.digest))
        await run_in_thread(version.check_unchanged)
        self._version = version

    async def _restore(self, version: ServedVersion) -> None:
        """Loads a version again after the engine lost it; without success, the service refuses requests."""
        try:
            await run_in_thread(version.check_unchanged)
            await self._load(version)
            self._failure = None
        except Exception as error:  # noqa: BLE001 - whatever the cause, the service has no version now
            _log.error("version-lost", version=version.digest, exc_info=error)
            why = error.detail if isinstance(error, MusterError) else type(error).__name__
            self._failure = NotServing(
                f"the engine can't load its version again: {why}", hint="update the weights, or restart"
            )

    async def _recover(self) -> None:
        """Loads the version again after the engine failed, because an engine that failed may hold broken state."""
        async with self._updates:
            self._loading = True
            self._set_gate()
            try:
                await self._drain()
                await self._restore(self.version)
            finally:
                self._loading = False
                self._set_gate()

    async def _until_open(self) -> ServedVersion:
        if not self._gate.is_set() and self._failure is None:
            try:
                async with asyncio.timeout(self.limits.pause.total_seconds()):
                    await self._gate.wait()
            except TimeoutError:
                raise NotServing(
                    f"the service was paused for more than {_seconds(self.limits.pause)}", hint="try again later"
                ) from None
        if self._failure is not None:
            raise self._failure
        return self.version

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self.limits.drain.total_seconds()):
                await self._idle.wait()
        except TimeoutError:
            raise NotServing(
                f"{self.unanswered} answers were still in progress after {_seconds(self.limits.drain)}",
                hint="try again, or pause with mode=abort",
            ) from None

    @property
    def _is_open(self) -> bool:
        return self._failure is None and not self._paused and not self._loading

    def _set_gate(self) -> None:
        if self._is_open or self._failure is not None:
            self._gate.set()  # after a failure, waiting requests learn of it
        else:
            self._gate.clear()

    def _finish(self, generation: Generation) -> None:
        self._running.discard(generation)
        self._answers -= len(generation.requests)
        if not self._running:
            self._idle.set()
        error = generation.job.done.exception()
        if error is None or isinstance(error, GenerationStopped) or error is generation.job.failure:
            return
        if self._recovery is None or self._recovery.done():
            _log.error("engine-failed", exc_info=error)
            self._recovery = asyncio.create_task(self._recover())

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self.engine.close)
        await run_in_thread(self._thread.shutdown)


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():.0f} s"
