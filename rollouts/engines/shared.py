"""Lets several threads generate with one engine: their answers share a session's batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from queue import SimpleQueue

from protocol.identifiers import Digest
from rollouts.engines.interface import Completion, Job, SampleRequest, Session, SessionEngine
from rollouts.precision import Arithmetic
from rollouts.sampling.parameters import SamplingParameters


class SharedEngine:
    """Generates for several threads with the version that an engine has loaded.

    A session is open while answers are missing. The engine computes on its own thread.

    Args:
        engine: The engine; while a session is open, only this object may use it.
        thread: Executor with one thread, the engine's.
        with_proofs: Whether to build proofs.
    """

    def __init__(self, engine: SessionEngine, *, thread: Executor, with_proofs: bool = True) -> None:
        self._engine = engine
        self._with_proofs = with_proofs
        self._thread = thread
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._failure: BaseException | None = None

    @property
    def arithmetics(self) -> tuple[Arithmetic, ...]:
        """The engine's arithmetics."""
        return self._engine.arithmetics

    @property
    def has_room(self) -> bool:
        """Whether fewer answers are missing than the batch holds."""
        return self.unanswered < self._engine.max_batch

    @property
    def unanswered(self) -> int:
        """Number of requests without an answer."""
        session = self._session
        return 0 if session is None else session.unanswered

    def load(self, folder: Path, *, version: Digest) -> None:
        """Loads a version while no answer is missing: see `Engine.load`. To be called on the engine's thread."""
        self._engine.load(folder, version=version)
        self._failure = None

    def generate(
        self,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        *,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Completion]:
        """Adds a job, and returns an iterator over its completions, with proofs: see `Engine.generate`.

        An error of the engine is raised in all threads that wait for answers.
        """
        given_up = threading.Event()
        answers: SimpleQueue[Completion | None] = SimpleQueue()

        def stopped() -> bool:
            return given_up.is_set() or (should_stop is not None and should_stop())

        job = Job(requests=tuple(requests), parameters=parameters, should_stop=stopped, on_answer=answers.put)
        job.done.add_done_callback(lambda _: answers.put(None))
        self.add(job)

        def wait() -> Iterator[Completion]:
            try:
                while (completion := answers.get()) is not None:
                    yield completion
            finally:
                given_up.set()
            job.done.result()

        return wait()

    def add(self, job: Job) -> None:
        """Adds requests; see `Session.add`.

        Raises:
            InvalidInput: A request can't be answered.
            NothingLoaded: No weights are loaded.
            EngineBusy: A session of somebody else is open.
            Exception: The engine failed with this error since the last `load`.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._session is not None:
                self._session.add(job)
                return
            session = self._engine.open(with_proofs=self._with_proofs)
            try:
                session.add(job)
            except BaseException:
                session.close()
                raise
            self._session = session
        self._thread.submit(self._compute, session)

    def _compute(self, session: Session) -> None:
        try:
            while True:
                for _ in session.completions():
                    pass
                with self._lock:
                    if not session.unanswered:
                        self._session = None
                        session.close()
                        return
        except BaseException as error:  # the session has passed the error to its jobs
            with self._lock:
                self._session, self._failure = None, error
                session.close()
            raise
