"""Limits of the statistical checks for one model, one prover and one verifier.

The prover and the verifier are each given by an arithmetic: an engine and a data type. The JSON file has the format of
`rollouts.toploc.calibration`; each entry adds limits for replay and log-probabilities. Without an entry for its model,
prover and verifier, a rollout file can't be judged statistically. Two exceptions need no entry: float32 on both sides
(`float32_limits`), and one numerics class on both sides (`class_limits`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from rollouts.calibration.noise_model import HonestNoise
from rollouts.models.facts import ModelFacts
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.sampling.replay import Replay
from rollouts.toploc import TOPLOC, Calibration, CalibrationEntry, Thresholds

_Limit = Annotated[float, Field(ge=0, le=1e9)]


class _LimitsModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_MOST_SPARE = 1024
SPARE = 3
"""Number of mismatches that a file may have beyond the allowed share, if the measured honest files have mismatches.

A mismatch is a token that replay draws differently. `SamplingLimits.largest` bounds the deviation of each mismatch, so
a node can hardly steer its samples with three more of them.
"""


class SamplingLimits(_LimitsModel):
    """Limits of the replay's deviations."""

    mismatch_share: Annotated[float, Field(ge=0, le=1)]
    """Maximum share of mismatches among all tokens of a file."""
    spare: Annotated[int, Field(ge=1, le=_MOST_SPARE)] = 1
    """Mismatches allowed beyond the share, unless the share is 0. With the share alone, about one in a hundred short
    honest files would be rejected, because two or three mismatches occur in such a file by chance.
    """
    largest: _Limit
    """Maximum deviation of one token, in scaled logits."""
    largest_sum: _Limit
    """Maximum sum of one sample's deviations, so that a node can't choose its preferred token at many near-ties."""

    def mismatches(self, tokens: int) -> int:
        """Returns the maximum mismatches of a file with this many tokens."""
        return math.floor(self.mismatch_share * tokens) + (self.spare if self.mismatch_share else 0)

    @classmethod
    def around(cls, honest: list[Replay], *, headroom: float) -> Self:
        """Returns the maxima of honest files times `headroom`, but at least `FLOAT32_SAMPLING`."""
        floor = FLOAT32_SAMPLING
        return cls(
            mismatch_share=min(1.0, max(floor.mismatch_share, headroom * max(one.mismatch_share for one in honest))),
            spare=SPARE if any(one.mismatches for one in honest) else floor.spare,
            largest=max(floor.largest, headroom * max(one.largest for one in honest)),
            largest_sum=max(floor.largest_sum, headroom * max(one.largest_sum for one in honest)),
        )

    def widened(self, factor: float) -> Self:
        """Returns these limits multiplied by `factor`."""
        return type(self)(
            mismatch_share=min(1.0, factor * self.mismatch_share),
            spare=min(_MOST_SPARE, math.ceil(factor * self.spare)),
            largest=factor * self.largest,
            largest_sum=factor * self.largest_sum,
        )


class LogprobLimits(_LimitsModel):
    """Limits of the errors of recorded log-probabilities."""

    mean: _Limit
    """Maximum mean error over all tokens of a file."""
    largest: _Limit
    """Maximum error of one token."""


class CheckLimits(CalibrationEntry):
    """Limits for one model, prover arithmetic and verifier arithmetic."""

    sampling: SamplingLimits
    logprobs: LogprobLimits
    headroom: Annotated[float, Field(ge=1)]
    """Factor by which the maxima of honest files were multiplied."""
    scatter: HonestNoise | None = None
    """Parameters for limits that depend on a file's size; None if they were not measured, or if prover and verifier
    compute identical bits."""

    @property
    def rows(self) -> float:
        """Mean number of rows per measured file."""
        return self.samples / self.files

    def file_of(self, rows: int) -> Thresholds:
        """Returns the limits for the proofs of `rows` rows taken together.

        Means over few rows scatter more, in proportion to 1/√rows. One row has the limits of a sample. The limits
        decrease with the number of rows, until they reach the limits of a file at the mean number of rows of the
        measured files.
        """
        if not 0 < rows < self.rows:
            return self.file
        weight = (rows**-0.5 - self.rows**-0.5) / (1 - self.rows**-0.5)
        return Thresholds(
            **{name: value + weight * max(0.0, getattr(self.sample, name) - value) for name, value in self.file}
        )

    def logprob_mean_of(self, rows: int) -> float:
        """Returns the limit of the mean log-probability error over `rows` rows; it scales as 1/√rows."""
        return self.logprobs.mean * math.sqrt(max(1.0, self.rows / max(1, rows)))

    def widened(self, factor: float) -> Self:
        """Returns all limits multiplied by `factor`; no honest file exceeds the widened limits.

        Args:
            factor: At least 1.
        """
        changes = {
            "sample": self.sample.widened(factor),
            "file": self.file.widened(factor),
            "sampling": self.sampling.widened(factor),
            "logprobs": LogprobLimits(mean=factor * self.logprobs.mean, largest=factor * self.logprobs.largest),
            "scatter": None if self.scatter is None else self.scatter.widened(factor),
        }
        return self.model_copy(update=changes)


class RolloutCalibration(Calibration):
    """Calibrated limits of all combinations that a pool allows.

    Entries of format 1 have no `scatter`; they are read and applied without it. The format number makes older software
    refuse a file of format 2 instead of ignoring `scatter`.
    """

    format: Literal[1, 2] = 2
    entries: Annotated[tuple[CheckLimits, ...], Field(max_length=4096)]

    @classmethod
    def shipped(cls) -> Self:
        """Returns the limits shipped with this release, measured for small models; pools measure their own."""
        return cls.read(Path(__file__).with_name("calibrations.json"))

    def limits_for(self, models: tuple[str, ...], *, prover: Arithmetic, verifier: Arithmetic) -> CheckLimits | None:
        """Returns the first entry for one of these model names; None if there is none."""
        for model in models:
            for one in self.entries:
                if (one.model, one.codec, one.prover, one.verifier) == (model, TOPLOC.name, prover, verifier):
                    return one
        return None


FLOAT32_SAMPLING = SamplingLimits(mismatch_share=1e-3, largest=1e-3, largest_sum=2e-3)
"""In float32 the logits of two honest machines differ by about 1e-5. So the machines draw different tokens only at
near-ties closer than this: about one token in 100,000. The limits allow a hundred times as many such tokens, which are
still too few to steer a policy."""

_ONE_PROOF = Thresholds(
    exponent_mismatches=0.05,
    sign_mismatches=0.0,
    mantissa_mean=0.06,
    mantissa_median=0.0,
    distance_mean=0.06,
    distance_worst=0.06,
)
_FILE = _ONE_PROOF.model_copy(update={"exponent_mismatches": 0.01, "mantissa_mean": 0.02, "distance_mean": 0.02})


def float32_limits(models: tuple[str, ...]) -> CheckLimits:
    """Returns the limits for float32 on both sides, for any model.

    Two honest float32 computations differ by about 1e-6. This difference changes the bfloat16 rounding of one value in
    several thousand, by one unit of the last place. So usually at most one of a proof's 128 points differs. For
    comparison, the mean distance (in units of the last place) is at least 0.28 with int8 weights, 0.13 with weights
    rounded to bfloat16, and 0.55 with weights after one more training step at a learning rate of 2e-4.
    """
    either = Arithmetic(engine=EngineName.TORCH, dtype=Dtype.FLOAT32)
    return CheckLimits(
        model=models[0],
        codec=TOPLOC.name,
        prover=either,
        verifier=either,
        sample=_ONE_PROOF,
        file=_FILE,
        samples=1,
        files=1,
        sampling=FLOAT32_SAMPLING,
        logprobs=LogprobLimits(mean=1e-4, largest=1e-3),
        headroom=1,
    )


def class_limits(models: tuple[str, ...], arithmetic: Arithmetic) -> CheckLimits:
    """Returns the limits for a prover and a verifier of the same numerics class, for any model.

    Honest files have no differences at all. The limits are those of float32, which every known attack exceeds.
    """
    return float32_limits(models).model_copy(update={"prover": arithmetic, "verifier": arithmetic})


def model_names(model: ModelFacts, *, digest: str) -> tuple[str, ...]:
    """Returns the keys of a model's limits: first for this exact version, then for its architecture."""
    config = model.config
    kind = "".join(each if each.isalnum() else "-" for each in str(config.get("model_type", "model")).lower())[:32]
    layers = config.get("num_hidden_layers", 0)
    return digest[2:34], f"{kind.strip('-')}-h{model.hidden}-l{layers}-v{model.vocabulary}"
