"""Sessions of engines: the answers of several jobs share one batch, and further jobs join as rows become free.

The computing thread polls the queue before every step. Other threads may add jobs at any time.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np

from protocol.errors import Conflict
from protocol.identifiers import Digest
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import Completion, DrawnToken, FinishReason, Job, SampleRequest, check_requests
from rollouts.models.facts import ModelFacts
from rollouts.sampling.parameters import SamplingParameters
from rollouts.toploc import PendingProofs, ProofBuilder


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

    @property
    def first_position(self) -> int:
        """Noise position of the answer's first token."""
        earlier = self.request.earlier
        return 0 if earlier is None else earlier.drawn

    @property
    def continues(self) -> bool:
        """Whether the answer continues a dialogue after its first turn."""
        return self.first_position > 0

    @property
    def states_before(self) -> int:
        """Number of earlier turns' states that belong to the first proof."""
        earlier = self.request.earlier
        return 0 if earlier is None else len(earlier.states)

    @property
    def most_new_tokens(self) -> int:
        """Limit of the answer's tokens."""
        return self.request.most_new_tokens(self.parameters)

    def begin_proofs(self, builder: ProofBuilder | None) -> None:
        """Begins the answer's proofs with the states of earlier turns, if it is a turn of a dialogue."""
        if builder is not None and self.request.earlier is not None:
            builder.begin(self.ticket, self.request.earlier.states)

    def finish_proofs(self, builder: ProofBuilder | None, *, tokens: int) -> PendingProofs | None:
        """Ends the answer's proofs; returns None if none are requested."""
        return None if builder is None else builder.finish(self.ticket, rows=self.states_before + tokens)

    def completion(
        self,
        *,
        tokens: tuple[int, ...],
        logprobs: Sequence[float],
        finish: FinishReason,
        proofs: PendingProofs | None,
        version: Digest,
    ) -> Completion:
        """Returns the answer; waits for its proofs.

        Raises:
            Unprovable: An interval has no valid proof in the format.
        """
        return Completion(
            sample=self.request.sample,
            tokens=tokens,
            logprobs=np.array(logprobs, dtype=np.float32),
            finish=finish,
            proofs=b"" if proofs is None else proofs.result(),
            version=version,
            states_left=None if proofs is None or self.request.earlier is None else proofs.left(),
        )

    def report(self, position: int, token: int, logprob: float) -> None:
        """Reports a drawn token to the job, if the job wants tokens."""
        if self.job.on_token is not None and self.job.failure is None:
            try:
                self.job.on_token(DrawnToken(self.request.sample, position, token, logprob))
            except Exception as error:  # noqa: BLE001 - a caller's error ends the caller's job only
                self.job.failure = error


def is_built(proofs: PendingProofs | None) -> bool:
    """Returns whether an answer's completion would not wait for its proofs; None means that it has none."""
    return proofs is None or proofs.done()


class RequestQueue:
    """The unanswered requests of a session.

    Only `add` and `unanswered` may be used by other threads than the computing one.
    """

    def __init__(self) -> None:
        self.waiting: deque[QueuedRequest] = deque()
        """Requests that are not in the batch: turns that continue a dialogue, so that few dialogues are open at a time,
        then the others. Of the latter, requests of a job with equal prompts are adjacent.
        """
        self.left: dict[int, QueuedRequest] = {}
        """Requests without an answer, by ticket, including those in the batch."""
        self._tickets = count()
        self._lock = threading.Lock()
        self._added: list[Job] = []
        self._jobs: dict[Job, int] = {}
        self._unanswered = 0
        self._closed = False

    @property
    def unanswered(self) -> int:
        """Number of requests without an answer."""
        return self._unanswered

    def add(self, job: Job) -> None:
        """Adds a job; its requests join at the next `poll`.

        Raises:
            Conflict: The queue is closed.
        """
        with self._lock:
            if self._closed:
                raise Conflict("the session is closed", hint="open another session")
            job.done.set_running_or_notify_cancel()  # so that nobody can cancel it
            if job.requests:
                self._added.append(job)
                self._unanswered += len(job.requests)
        if not job.requests:
            job.done.set_result(None)

    def poll(self) -> list[int]:
        """Takes added jobs, and drops the requests of stopped jobs.

        Returns:
            Tickets of the dropped requests. The engine removes those that are in its batch.
        """
        with self._lock:
            added, self._added = self._added, []
        for job in added:
            self._take(job)
        stopped = {job for job in self._jobs if _wants_to_stop(job)}
        return self._drop(stopped) if stopped else []

    def check(self) -> None:
        """Checks that a job wants to go on; called between two parts of a long step.

        Raises:
            GenerationStopped: All jobs want to stop; the next `poll` drops them.
        """
        if self._jobs and all(_wants_to_stop(job) for job in self._jobs):
            raise GenerationStopped("all jobs of the session were stopped")

    def answer(self, ticket: int, completion: Completion) -> None:
        """Passes a completion to its job."""
        job = self.left.pop(ticket).job
        with self._lock:
            self._unanswered -= 1
        self._jobs[job] -= 1
        try:
            job.on_answer(completion)
        except Exception as error:  # noqa: BLE001 - a caller's error ends the caller's job only
            job.failure = error
        if not self._jobs[job]:
            del self._jobs[job]
            if job.failure is None:
                job.done.set_result(None)
            else:
                job.done.set_exception(job.failure)

    def requeue(self) -> None:
        """Lets all unanswered requests wait again, after the batch was lost."""
        self.waiting = deque(sorted(self.left.values(), key=lambda queued: not queued.continues))

    def close(self) -> None:
        """Stops all jobs, and refuses further ones."""
        with self._lock:
            self._closed = True
        self.poll()
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
        continuing: list[QueuedRequest] = []
        for request in sorted(job.requests, key=lambda request: first_asked[request.prompt_tokens]):
            queued = QueuedRequest(next(self._tickets), request, job)
            self.left[queued.ticket] = queued
            (continuing if queued.continues else self.waiting).append(queued)
        self.waiting.extendleft(reversed(continuing))
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
            stopped = GenerationStopped(f"stopped with {missing} of {len(job.requests)} answers missing")
            job.done.set_exception(job.failure or stopped)
        return dropped


def _wants_to_stop(job: Job) -> bool:
    if job.failure is None:
        try:
            return job.should_stop()
        except Exception as error:  # noqa: BLE001 - a caller's error ends the caller's job only
            job.failure = error
    return True


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
    """

    def __init__(self, answers: Answers, facts: ModelFacts, version: Digest, *, with_proofs: bool) -> None:
        self._answers = answers
        self._facts = facts
        self._version = version
        self._queue = RequestQueue()
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
        check_requests(job.requests, job.parameters, vocabulary=self._facts.vocabulary, context=self._facts.context)
        self._queue.add(job)

    def completions(self) -> Iterator[Completion]:
        """Computes until no request is left: see `Session.completions`."""
        queue = self._queue
        queue.poll()
        try:
            while queue.left:
                self._computing = self._answers(self._facts, self._version, queue, self._builder)
                try:
                    for ticket, completion in self._computing:
                        queue.answer(ticket, completion)
                        yield completion
                except GenerationStopped:
                    pass  # all jobs of that moment were stopped; others may have been added since
                finally:
                    self._computing.close()
                    queue.requeue()
                queue.poll()
        except GeneratorExit:
            raise
        except BaseException as error:
            _free_frames(error)
            queue.fail(error)
            raise

    def close(self) -> None:
        """Stops all jobs and frees the engine: see `Session.close`."""
        if not self.closed:
            self.closed = True
            if self._computing is not None:
                self._computing.close()
            self._queue.close()
            self._stack.close()


def _free_frames(error: BaseException | None) -> None:
    """Drops the local variables of an error's frames, because callers may keep the error.

    They include the batch with its keys and values. No other thread has the error yet, so all its frames but this
    session's have ended.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
