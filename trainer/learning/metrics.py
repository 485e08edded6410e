"""Metrics of an optimiser step: sums over its rows, and the report at its end."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

import numpy as np
import torch

from trainer.learning.batch import Counts
from trainer.learning.losses import MOST_LOG_RATIO, Distance, distances
from trainer.learning.objective import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedStep:
    """Result of one optimiser step, performed or skipped.

    Args:
        step: Number of the step.
        bad: Whether the step was skipped, because loss or gradient was NaN, infinite or too large. A skipped step
            leaves the weights unchanged.
        loss: Loss over the global batch.
        reward_mean: Mean reward of all answers.
        reward_std: Population standard deviation of the rewards of all answers.
        entropy: Mean entropy over tokens, in nats.
        kl: Mean estimate of the distance to the reference, in nats per token; None without a reference.
        clip_fraction: Share of tokens whose term of the loss was clipped, bounded or omitted.
        masked_answers: Number of answers whose terms were all omitted, because of `Algorithm.rollout_floor`.
        ratio_mean: Mean importance weight.
        ratio_max: Largest importance weight.
        sampler_gap: Mean of |log pi - log mu|, where log pi is the trainer's log-probability of a token and log mu the
            sampler's.
        sampler_kl: Estimate of KL(mu || pi) from the same log-probabilities, in nats per token.
        gradient_norm: Norm of the gradient before clipping.
        learning_rate: Learning rate of the step.
        groups: Number of groups of the global batch.
        answers: Number of answers of the global batch.
        tokens: Number of answer tokens of the global batch.
        length_mean: Mean number of tokens of an answer.
        length_max: Number of tokens of the longest answer.
        rows_tokens: Number of positions in rows that went through the model, including padding.
        seconds: Time spent on computing, without the time spent waiting for groups.
    """

    step: int
    bad: bool
    loss: float
    reward_mean: float
    reward_std: float
    entropy: float
    kl: float | None
    clip_fraction: float
    masked_answers: int
    ratio_mean: float
    ratio_max: float
    sampler_gap: float
    sampler_kl: float
    gradient_norm: float
    learning_rate: float
    groups: int
    answers: int
    tokens: int
    length_mean: float
    length_max: int
    rows_tokens: int
    seconds: float

    @property
    def figures(self) -> dict[str, float]:
        """Returns loss, reward, entropy and other metrics for the progress log, by name."""
        return {name: value for name, value in asdict(self).items() if name not in _COUNTS and value is not None}

    @property
    def tokens_per_second(self) -> float:
        """Returns the number of answer tokens trained on per second."""
        return self.tokens / self.seconds if self.seconds else math.inf


_COUNTS = {"step", "bad", "groups", "answers", "seconds"}
"""Fields of `LearnedStep` that `figures` omits."""

_SUMMED = (
    "objective",
    "entropy",
    "distance",
    "stopped",
    "masked_answers",
    "ratio",
    "gap",
    "divergence",
    "rows_tokens",
)
"""Fields of `MetricSums` that are added up, in the order of the values in `MetricSums.add`."""


@dataclass(slots=True)
class MetricSums:
    """Sums over the tokens that one process has trained on."""

    objective: float = 0.0
    entropy: float = 0.0
    distance: float = 0.0
    stopped: float = 0.0
    masked_answers: float = 0.0
    ratio: float = 0.0
    gap: float = 0.0
    divergence: float = 0.0
    rows_tokens: float = 0.0
    largest_ratio: float = 0.0
    watches_distance: bool = False
    rewards: list[float] = field(default_factory=list)
    longest: int = 0

    def add(self, found: Objective, *, sampler_n: torch.Tensor, rows_tokens: int) -> None:
        """Adds the values of some rows.

        All values come from the accelerator in one transfer, for speed.
        """
        with torch.no_grad():
            log_ratio_n = (found.logprob_n - sampler_n).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)
            nothing = torch.zeros_like(log_ratio_n)
            read = torch.stack(
                [
                    found.total.detach(),
                    found.entropy_n.sum(),
                    (nothing if found.distance_n is None else found.distance_n).sum(),
                    found.stopped_n.sum().float(),
                    (~found.kept_s).sum().float(),
                    found.ratio_n.sum(),
                    log_ratio_n.abs().sum(),
                    distances(Distance.K3, logprob_n=-log_ratio_n, reference_n=nothing).sum(),
                    found.ratio_n.max(),
                ]
            ).tolist()
        self.watches_distance |= found.distance_n is not None
        for name, value in zip(_SUMMED, [*read[:-1], rows_tokens], strict=True):
            setattr(self, name, getattr(self, name) + value)
        self.largest_ratio = max(self.largest_ratio, read[-1])

    def all_reduce(self, device: torch.device) -> None:
        """Adds up the sums of all processes.

        Rewards and lengths are left as they are, because every process has those of the global batch.
        """
        values = torch.tensor([getattr(self, name) for name in _SUMMED], dtype=torch.float64, device=device)
        largest = torch.tensor(self.largest_ratio, dtype=torch.float64, device=device)
        torch.distributed.all_reduce(values)
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        for name, value in zip(_SUMMED, values.tolist(), strict=True):
            setattr(self, name, value)
        self.largest_ratio = largest.item()

    def report(
        self,
        *,
        counts: Counts,
        step: int,
        bad: bool,
        loss: float,
        gradient_norm: float,
        learning_rate: float,
        seconds: float,
    ) -> LearnedStep:
        """Returns the metrics of the step."""
        rewards = np.array(self.rewards, dtype=np.float64)
        return LearnedStep(
            step=step,
            bad=bad,
            loss=loss,
            reward_mean=float(rewards.mean()),
            reward_std=float(rewards.std()),
            entropy=self.entropy / counts.tokens,
            kl=self.distance / counts.tokens if self.watches_distance else None,
            clip_fraction=self.stopped / counts.tokens,
            masked_answers=round(self.masked_answers),
            ratio_mean=self.ratio / counts.tokens,
            ratio_max=self.largest_ratio,
            sampler_gap=self.gap / counts.tokens,
            sampler_kl=self.divergence / counts.tokens,
            gradient_norm=gradient_norm,
            learning_rate=learning_rate,
            groups=counts.groups,
            answers=counts.answers,
            tokens=counts.tokens,
            length_mean=counts.tokens / counts.answers,
            length_max=self.longest,
            rows_tokens=round(self.rows_tokens),
            seconds=seconds,
        )
