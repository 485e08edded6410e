"""Sends metrics and sampled rollouts of learned steps to the orchestrator, for the pool's page."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from protocol.errors import MusterError, NotFound
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import cancel_all
from protocol.wire.runs import MOST_SAMPLE_CHARACTERS, NewTrainedStep, SampledRollout
from rollouts.dialogue.formats import DialogueTokenizer
from rollouts.dialogue.transcript import transcript
from trainer.learning.groups import TrainingGroup, TrainingSample

MOST_WAITING = 64
"""Maximum number of steps that wait to be sent; further ones replace the oldest."""
LAST_PATIENCE = timedelta(seconds=5)
"""Maximum wait for the last steps at the end of a run."""
SAMPLED_GROUPS = 2
"""Number of prompts of a step whose best and worst rollouts are sent."""
_MOST_TOKENS = 1024
"""Maximum number of tokens of a prompt or single answer that are decoded; the texts are cut further."""
_FIGURES = ("loss", "entropy", "kl", "sampler_kl", "gradient_norm")
"""Metrics of the optimiser step, by their names in the facts of a `step` line and in `TrainedStep`."""
_LARGEST = 1e300

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownStep:
    """A learned step that waits to be sent.

    Args:
        facts: Content of the step's line in `progress.jsonl` (`step_facts`).
        groups: The step's groups, in the random order of the batch.
        at_ms: Time at which the step ended, in Unix milliseconds.
    """

    facts: Mapping[str, Any]
    groups: Sequence[TrainingGroup]
    at_ms: int


class CurvePublisher:
    """Sends steps in the background, one at a time, so that training never waits for the orchestrator.

    A failure is only logged, because the values are for display only.

    Args:
        send: Sends one step to the orchestrator.
        tokenizer: Tokenizer of the run's model.
    """

    def __init__(self, send: Callable[[NewTrainedStep], Awaitable[object]], *, tokenizer: DialogueTokenizer) -> None:
        self._send = send
        self._tokenizer = tokenizer
        self._waiting: deque[ShownStep] = deque(maxlen=MOST_WAITING)
        self._working: asyncio.Task[None] | None = None
        self._unknown_route = False

    def show(self, step: ShownStep) -> None:
        """Queues a step."""
        if self._unknown_route:
            return
        self._waiting.append(step)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())

    async def drain(self) -> None:
        """Waits until the queued steps are sent, at most `LAST_PATIENCE`."""
        if self._working is not None:
            await asyncio.wait({self._working}, timeout=LAST_PATIENCE.total_seconds())

    async def aclose(self) -> None:
        """Drops the steps that still wait."""
        if self._working is not None:
            await cancel_all([self._working])

    async def _work(self) -> None:
        while self._waiting:
            step = self._waiting.popleft()
            try:
                await self._send(await run_in_thread(trained_step, step, self._tokenizer))
            except NotFound:  # an older orchestrator has no such route
                _log.info("curves-not-shown", why="the orchestrator is of an older release")
                self._unknown_route = True
                self._waiting.clear()
            except MusterError as error:
                _log.info("curves-not-shown", step=step.facts["step"], why=error.detail)


def trained_step(step: ShownStep, tokenizer: DialogueTokenizer) -> NewTrainedStep:
    """Returns metrics and samples of a step for the orchestrator; values that are not finite are left out."""
    facts, figures = step.facts, step.facts["figures"]
    staleness: Mapping[int, int] = facts["staleness"]
    groups = sum(staleness.values())
    metrics = {name: figures.get(name) for name in _FIGURES} | {
        "reward": facts["reward"],
        "length": facts["length"],
        "tokens_per_second": facts["tokens_per_second"],
        "staleness": sum(behind * count for behind, count in staleness.items()) / groups if groups else None,
    }
    finite = {name: value for name, value in metrics.items() if value is not None and abs(value) <= _LARGEST}
    return NewTrainedStep(
        step=facts["step"], at_ms=step.at_ms, samples=tuple(_samples(step.groups, tokenizer)), **finite
    )


def _samples(groups: Sequence[TrainingGroup], tokenizer: DialogueTokenizer) -> list[SampledRollout]:
    """Returns the best and the worst rollout of the first groups."""
    found = []
    for group in groups[:SAMPLED_GROUPS]:
        best = max(group.samples, key=lambda one: one.reward)
        worst = min(group.samples, key=lambda one: one.reward)
        shown = (best, worst) if best is not worst else (best,)
        prompt = cut(tokenizer.decode(group.prompt_tokens[:_MOST_TOKENS].tolist()))
        found += [
            SampledRollout(
                key=group.work,
                group=group.group,
                version=group.version,
                prompt=prompt,
                answer=cut(_answer(sample, tokenizer)),
                tokens=len(sample.output_tokens),
                reward=sample.reward,
            )
            for sample in shown
        ]
    return found


def _answer(sample: TrainingSample, tokenizer: DialogueTokenizer) -> str:
    if sample.turns:
        return transcript(sample.output_tokens.tolist(), sample.turns, tokenizer)
    return tokenizer.decode(sample.output_tokens[:_MOST_TOKENS].tolist())


def cut(text: str) -> str:
    """Returns the beginning of a text, with an ellipsis if it is cut."""
    return text if len(text) <= MOST_SAMPLE_CHARACTERS else f"{text[: MOST_SAMPLE_CHARACTERS - 1]}…"
