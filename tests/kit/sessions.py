"""Drives a session of an engine through a fixed plan, for tests of all engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import Completion, DrawnToken, Job, SampleRequest, SessionEngine
from rollouts.sampling.parameters import SamplingParameters


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job of a plan.

    Args:
        requests: The requests.
        parameters: Sampling parameters.
        after: Completions of other jobs before this job is added.
        stop_after: Tokens of this job after which it is stopped; None if it is not stopped.
    """

    requests: Sequence[SampleRequest]
    parameters: SamplingParameters
    after: int = 0
    stop_after: int | None = None


@dataclass(slots=True)
class JobResult:
    """Outcome of a job: its completions and drawn tokens, and whether it was stopped."""

    completions: list[Completion] = field(default_factory=list)
    tokens: list[DrawnToken] = field(default_factory=list)
    stopped: bool = False


def drive(engine: SessionEngine, plan: Sequence[PlannedJob], *, with_proofs: bool = True) -> list[JobResult]:
    """Adds the jobs of a plan to one session, computes all answers, and returns the outcome of each job."""
    session = engine.open(with_proofs=with_proofs)
    results = [JobResult() for _ in plan]
    jobs: dict[int, Job] = {}
    finished = 0

    def add() -> None:
        for at, one in enumerate(plan):
            if at in jobs or one.after > finished:
                continue
            result = results[at]
            jobs[at] = job = Job(requests=tuple(one.requests), parameters=one.parameters)
            job.on_answer, job.on_token = result.completions.append, result.tokens.append
            if one.stop_after is not None:
                job.should_stop = partial(_has_tokens, result, one.stop_after)
            session.add(job)

    add()
    while session.unanswered:
        for _ in session.completions():
            finished += 1
            add()
    session.close()
    for at, job in jobs.items():
        results[at].stopped = isinstance(job.done.exception(timeout=0), GenerationStopped)
    return results


def _has_tokens(result: JobResult, count: int) -> bool:
    return len(result.tokens) >= count
