"""Sessions of engines: the answers of several jobs share one batch, and further jobs join as rows become free.

The computing thread polls the queue before every step. Other threads may add jobs at any time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from protocol.errors import Conflict
from protocol.identifiers import Digest
from rollouts.engines.batch_usage import BatchUsage
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import Completion, DrawnToken, Job, SampleRequest, check_requests
from rollouts.models.facts import ModelFacts
from rollouts.sampling.parameters import SamplingParameters
from rollouts.toploc import ProofBuilder


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """A request of a job.

    Args:
        ticket: Identifies the request in its session; sample numbers are unique within a job only.
        request: The request.
        job: The request's job.
    """

    ticket: int
    request: SampleRequest
    job: Job

    @property
    def parameters(self) -> SamplingParameters:
        """The job's sampling parameters."""
        return self.job.parameters

    def report(self, position: int, token: int, logprob: float) -> None:
        """Reports a drawn token to the job, if the job wants tokens."""
        if self.job.on_token is not None:
            self.job.on_token(DrawnToken(self.request.sample, position, token, logprob))


class RequestQueue:
    """The unanswered requests of a session.

    Only `add` and `unanswered` may be used by other threads than the computing one.

    Args:
        usage: Receives the size of the batch before every step.
    """

    def __init__(self, usage: BatchUsage) -> None:
        self.waiting: deque[QueuedRequest] = deque()
        """Requests that are not in the batch; requests of a job with equal prompts are adjacent."""
        self.left: dict[int, QueuedRequest] = {}
        """Requests without an answer, by ticket, including those in the batch."""
        self._usage = usage
        self._tickets = count()
        self._lock = threading.Lock()
        self._added: list[Job] = []
        self._jobs: dict[Job, int] = {}
        self._unanswered = 0

    @property
    def unanswered(self) -> int:
        """Number of requests without an answer."""
        return self._unanswered

    def add(self, job: Job) -> None:
        """Adds a job; its requests join at the next `poll`."""
        if not job.requests:
            job.done.set_result(None)
            return
        with self._lock:
            self._added.append(job)
            self._unanswered += len(job.requests)

    def poll(self, growing: int) -> list[int]:
        """Takes added jobs, and drops the requests of stopped jobs.

        Args:
            growing: Number of answers in the batch.

        Returns:
            Tickets of the dropped requests. The engine removes those that are in its batch.
        """
        self._usage.note(growing)
        with self._lock:
            added, self._added = self._added, []
        for job in added:
            self._take(job)
        stopped = {job for job in self._jobs if job.should_stop()}
        return self._drop(stopped) if stopped else []

    def check(self) -> None:
        """Checks that a job wants to go on; called between two parts of a long step.

        Raises:
            GenerationStopped: All jobs want to stop.
        """
        if self._jobs and all(job.should_stop() for job in self._jobs):
            raise GenerationStopped("all jobs of the session were stopped")

    def answer(self, ticket: int, completion: Completion) -> None:
        """Passes a completion to its job."""
        job = self.left.pop(ticket).job
        with self._lock:
            self._unanswered -= 1
        self._jobs[job] -= 1
        job.on_answer(completion)
        if not self._jobs[job]:
            del self._jobs[job]
            job.done.set_result(None)

    def requeue(self) -> None:
        """Lets all unanswered requests wait again, after the batch was lost."""
        self.waiting = deque(self.left.values())

    def stop(self) -> None:
        """Stops all jobs."""
        self.poll(0)
        self._drop(set(self._jobs))

    def fail(self, error: BaseException) -> None:
        """Ends all jobs with an error of the engine."""
        with self._lock:
            jobs, self._added, self._unanswered = [*self._jobs, *self._added], [], 0
        self._jobs.clear()
        self.left.clear()
        self.waiting.clear()
        for job in jobs:
            job.done.set_exception(error)

    def _take(self, job: Job) -> None:
        first_asked: dict[tuple[int, ...], int] = {}
        for place, request in enumerate(job.requests):
            first_asked.setdefault(request.prompt_tokens, place)
        for request in sorted(job.requests, key=lambda request: first_asked[request.prompt_tokens]):
            queued = QueuedRequest(next(self._tickets), request, job)
            self.left[queued.ticket] = queued
            self.waiting.append(queued)
        self._jobs[job] = len(job.requests)

    def _drop(self, jobs: set[Job]) -> list[int]:
        dropped = [ticket for ticket, queued in self.left.items() if queued.job in jobs]
        for ticket in dropped:
            del self.left[ticket]
        self.waiting = deque(queued for queued in self.waiting if queued.job not in jobs)
        with self._lock:
            self._unanswered -= len(dropped)
        for job in jobs:
            missing = self._jobs.pop(job)
            job.done.set_exception(GenerationStopped(f"stopped with {missing} of {len(job.requests)} answers missing"))
        return dropped


class Answers(Protocol):
    """The part of an engine that computes a session's answers."""

    def __call__(
        self, facts: ModelFacts, version: Digest, queue: RequestQueue, builder: ProofBuilder | None
    ) -> Generator[tuple[int, Completion]]:
        """Yields tickets and completions until no request is left.

        Args:
            facts: Facts of the loaded model.
            version: The version digest of the loaded model.
            queue: The requests; the engine calls `poll` before every step.
            builder: Builds proofs; None if none are requested.
        """


class EngineSession:
    """A `Session` on an engine's loaded version.

    Args:
        answers: Computes the answers.
        facts: Facts of the loaded model.
        version: The version digest of the loaded model.
        with_proofs: Whether to build proofs.
        usage: Receives the size of the batch.
    """

    def __init__(
        self, answers: Answers, facts: ModelFacts, version: Digest, *, with_proofs: bool, usage: BatchUsage
    ) -> None:
        self._answers = answers
        self._facts = facts
        self._version = version
        self._queue = RequestQueue(usage)
        self._usage = usage
        self._stack = ExitStack()
        self._builder = self._stack.enter_context(ProofBuilder()) if with_proofs else None
        self._computing: Generator[tuple[int, Completion]] | None = None
        self.closed = False

    @property
    def unanswered(self) -> int:
        """Number of requests without an answer; may be read by any thread."""
        return self._queue.unanswered

    def add(self, job: Job) -> None:
        """Adds requests: see `Session.add`."""
        if self.closed:
            raise Conflict("the session is closed", hint="open another session")
        check_requests(job.requests, job.parameters, vocabulary=self._facts.vocabulary, context=self._facts.context)
        self._queue.add(job)

    def completions(self) -> Iterator[Completion]:
        """Computes until no request is left: see `Session.completions`."""
        queue = self._queue
        try:
            queue.poll(0)
            while queue.left:
                self._computing = self._answers(self._facts, self._version, queue, self._builder)
                for ticket, completion in self._computing:
                    queue.answer(ticket, completion)
                    yield completion
                queue.poll(0)
        except GenerationStopped:
            queue.stop()
        except GeneratorExit:
            raise
        except BaseException as error:
            queue.fail(error)
            raise
        finally:
            self._usage.note(0)
            if self._computing is not None:
                self._computing.close()
            queue.requeue()

    def close(self) -> None:
        """Stops all jobs and frees the engine: see `Session.close`."""
        if not self.closed:
            self.closed = True
            if self._computing is not None:
                self._computing.close()
            self._queue.stop()
            self._stack.close()
