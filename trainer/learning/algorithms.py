"""Published algorithms as presets of the loss's parts; `{ name = "dapo", kl = 1e-3 }` is a preset with one change.

docs/learning.md lists the papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer.learning.losses import (
    OF_WHOLE_BATCH,
    Advantage,
    Aggregation,
    Distance,
    Importance,
    clipped_term,
    masked_term,
    truncated_term,
)

_Ratio = Annotated[float, Field(ge=0, le=1e6)]
_Coefficient = Annotated[float, Field(ge=0, le=1e3)]


class LearningModel(BaseModel):
    """Base class of the `learning` settings: immutable, and rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ClippedTerm(LearningModel):
    """PPO's clipped surrogate; may bound the ratio of tokens with a negative advantage."""

    kind: Literal["clipped"] = "clipped"
    low: Annotated[float, Field(ge=0, lt=1)] = 0.2
    high: _Ratio = 0.2
    cap: Annotated[float, Field(gt=1, le=1e6)] | None = 4.0
    """Maximum ratio of tokens with a negative advantage; None for no maximum, as in PPO."""

    def of(
        self, *, ratio_n: torch.Tensor, logprob_n: torch.Tensor, advantage_n: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each token's loss term and a mask of the tokens whose ratio was clipped, both [N]."""
        del logprob_n
        return clipped_term(ratio_n=ratio_n, advantage_n=advantage_n, low=self.low, high=self.high, cap=self.cap)


class TruncatedTerm(LearningModel):
    """Policy gradient with a bounded importance weight."""

    kind: Literal["truncated"] = "truncated"
    low: _Ratio = 0.0
    high: _Ratio = 8.0

    def of(
        self, *, ratio_n: torch.Tensor, logprob_n: torch.Tensor, advantage_n: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each token's loss term and a mask of tokens whose weight was clipped, both [N]."""
        return truncated_term(
            ratio_n=ratio_n, logprob_n=logprob_n, advantage_n=advantage_n, low=self.low, high=self.high
        )


class MaskedTerm(LearningModel):
    """Policy gradient that masks tokens whose trainer and sampler probabilities differ too much."""

    kind: Literal["masked"] = "masked"
    low: _Ratio = 0.5
    high: _Ratio = 5.0

    def of(
        self, *, ratio_n: torch.Tensor, logprob_n: torch.Tensor, advantage_n: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each token's loss term and a mask of the tokens that the loss omits, both [N]."""
        del logprob_n
        return masked_term(ratio_n=ratio_n, advantage_n=advantage_n, low=self.low, high=self.high)


NAMED: dict[str, dict[str, Any]] = {
    "grpo": {},
    "intellect-2": {"entropy": 1e-4, "kl": 1e-3},
    "dapo": {"term": {"kind": "clipped", "low": 0.2, "high": 0.28, "cap": None}},
    "dr-grpo": {
        "aggregation": "constant",
        "advantage": "group-mean",
        "term": {"kind": "clipped", "low": 0.2, "high": 0.2, "cap": None},
    },
    "rloo": {
        "aggregation": "sequences",
        "importance": "none",
        "advantage": "leave-one-out",
        "term": {"kind": "truncated", "low": 0.0, "high": 1.0},
    },
    "reinforce++": {
        "aggregation": "answers",
        "advantage": "batch",
        "term": {"kind": "clipped", "low": 0.2, "high": 0.2, "cap": None},
    },
    "reinforce++-baseline": {
        "aggregation": "answers",
        "advantage": "group-mean-batch",
        "term": {"kind": "clipped", "low": 0.2, "high": 0.2, "cap": None},
    },
    "aipo": {"advantage": "group-mean", "term": {"kind": "truncated", "low": 0.0, "high": 8.0}},
    "cispo": {"term": {"kind": "truncated", "low": 0.0, "high": 5.0}},
    "gspo": {
        "aggregation": "answers",
        "importance": "sequence",
        "term": {"kind": "clipped", "low": 3e-4, "high": 4e-4, "cap": None},
    },
    "icepop": {
        "advantage": "group-mean",
        "rollout_floor": 1e-5,
        "term": {"kind": "masked", "low": 0.5, "high": 5.0},
    },
}
"""Named algorithms, as differences from the defaults of `Algorithm`. The defaults are the algorithm `grpo`."""


class Algorithm(LearningModel):
    """The parts of a loss. Omitted fields have the values of the algorithm that `name` selects."""

    name: str = "grpo"
    aggregation: Aggregation = Aggregation.TOKENS
    fixed_length: Annotated[int, Field(ge=1, le=2**20)] = 1024
    """Divisor of the aggregation `constant`. Dr. GRPO uses the maximum answer length."""
    importance: Importance = Importance.TOKEN
    rollout_floor: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The loss omits the term of answers with a token whose importance ratio is below this floor; 0 disables it."""
    advantage: Advantage = Advantage.GROUP
    term: Annotated[ClippedTerm | TruncatedTerm | MaskedTerm, Field(discriminator="kind")] = ClippedTerm()
    kl: _Coefficient = 0.0
    """Weight of the KL distance to the reference model; with 0, no reference model is needed."""
    distance: Distance = Distance.K3
    entropy: _Coefficient = 0.0
    """Weight of the entropy bonus."""

    @model_validator(mode="before")
    @classmethod
    def _start_from_named(cls, given: object) -> object:
        if isinstance(given, str):
            given = {"name": given}
        if not isinstance(given, Mapping):
            return given
        named = NAMED.get(str(given.get("name", "grpo")))
        if named is None:
            raise ValueError(f"there is no algorithm {given.get('name')!r}; choose one of {', '.join(NAMED)}")
        return {**named, **given, **_merged_term(named.get("term"), given.get("term"))}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.term, TruncatedTerm | MaskedTerm) and self.term.low > self.term.high:
            raise ValueError(f"the term's low ratio {self.term.low} is above its high ratio {self.term.high}")
        if self.kl and self.distance == Distance.K1:
            raise ValueError("k1 as a loss has no gradient in expectation; use k2 or k3")
        return self

    @property
    def needs_whole_batch(self) -> bool:
        """Returns whether advantages need all answers of a step, which rules out streaming."""
        return self.advantage in OF_WHOLE_BATCH


def _merged_term(named: Mapping[str, Any] | None, given: object) -> dict[str, object]:
    """Merges the given term's bounds with the bounds of the named algorithm.

    A term of another kind than the named algorithm's uses its own defaults.
    """
    if not isinstance(given, Mapping):
        return {}
    of = {"kind": "clipped"} if named is None else named
    return {"term": {**of, **given} if given.get("kind", of["kind"]) == of["kind"] else dict(given)}
