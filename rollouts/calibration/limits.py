"""Limits for whole files: what honest work shows, for a model, an engine and type that generates, and one that checks.

The file is that of `rollouts.toploc.calibration`, and each entry says besides what replay and log-probabilities may
show. What has no entry can't be judged statistically, with one exception: float32 on both sides, see `FLOAT32`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from rollouts.calibration.noise_model import HonestNoise
from rollouts.models.facts import ModelFacts
from rollouts.precision import (
    Dtype,
    EngineName,
)
from rollouts.sampling.replay import Replay
from rollouts.toploc import TOPLOC, Arithmetic, Calibration, CalibrationEntry, Thresholds

_Limit = Annotated[float, Field(ge=0, le=1e9)]


class _LimitsModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_MOST_SPARE = 1024
SPARE = 3
"""Mismatches of a file beside its share, where honest files have any. Each at most `largest` apart, they steer
little."""


class SamplingLimits(_LimitsModel):
    """The most that replay may show."""

    mismatch_share: Annotated[float, Field(ge=0, le=1)]
    """Of all tokens of a file."""
    spare: Annotated[int, Field(ge=1, le=_MOST_SPARE)] = 1
    """Mismatches that any file may have beside its share, if it may have any: short files have few tokens, and a share
    of them is less than the two or three that chance puts into one of a hundred."""
    largest: _Limit
    """One token's deviation, in scaled logits."""
    largest_sum: _Limit
    """One sample's deviations together, so that near-ties can't be steered."""

    def mismatches(self, tokens: int) -> int:
        """How many of a file's tokens may differ."""
        return math.floor(self.mismatch_share * tokens) + (self.spare if self.mismatch_share else 0)

    @classmethod
    def around(cls, honest: list[Replay], *, headroom: float) -> Self:
        """The largest figures of honest files, times a headroom, and never less than for float32 on both sides."""
        floor = FLOAT32_SAMPLING
        return cls(
            mismatch_share=min(1.0, max(floor.mismatch_share, headroom * max(one.mismatch_share for one in honest))),
            spare=SPARE if any(one.mismatches for one in honest) else floor.spare,
            largest=max(floor.largest, headroom * max(one.largest for one in honest)),
            largest_sum=max(floor.largest_sum, headroom * max(one.largest_sum for one in honest)),
        )

    def widened(self, factor: float) -> Self:
        """The same limits, `factor` times as wide."""
        return type(self)(
            mismatch_share=min(1.0, factor * self.mismatch_share),
            spare=min(_MOST_SPARE, math.ceil(factor * self.spare)),
            largest=factor * self.largest,
            largest_sum=factor * self.largest_sum,
        )


class LogprobLimits(_LimitsModel):
    """The most by which recorded log-probabilities may be off."""

    mean: _Limit
    """Over all tokens of a file."""
    largest: _Limit
    """At one token."""


class CheckLimits(CalibrationEntry):
    """What passes for one model, prover and verifier."""

    sampling: SamplingLimits
    logprobs: LogprobLimits
    headroom: Annotated[float, Field(ge=1)]
    """What the largest honest figures were multiplied with."""
    scatter: HonestNoise | None = None
    """Limits of whole files by their size, beside the largest; None where they were not measured, or where both sides
    agree to the bit."""

    @property
    def rows(self) -> float:
        """Of each file that was measured, on average."""
        return self.samples / self.files

    def file_of(self, rows: int) -> Thresholds:
        """What the proofs of so many rows together may show.

        Honest figures scatter, and means of few rows scatter more, as 1/√rows: from the limits of one sample down to
        those of a file, which a file of as many rows as were measured in one has, and a larger one too.
        """
        if not 0 < rows < self.rows:
            return self.file
        weight = (rows**-0.5 - self.rows**-0.5) / (1 - self.rows**-0.5)
        return Thresholds(
            **{name: value + weight * max(0.0, getattr(self.sample, name) - value) for name, value in self.file}
        )

    def logprob_mean_of(self, rows: int) -> float:
        """The most that log-probabilities of so many rows may be off on average; scattered likewise."""
        return self.logprobs.mean * math.sqrt(max(1.0, self.rows / max(1, rows)))

    def widened(self, factor: float) -> Self:
        """What is beyond these, too, is beyond doubt: every limit `factor` times as wide.

        Args:
            factor: 1 or more.
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
    """Limits for all that a pool allows.

    Entries of format 1 know no scatter: such a file is read, and judges as it did. Software from before it refuses
    format 2 instead of ignoring half of its limits.
    """

    format: Literal[1, 2] = 2
    entries: Annotated[tuple[CheckLimits, ...], Field(max_length=4096)]

    @classmethod
    def shipped(cls) -> Self:
        """What was measured for small models with this release; a pool measures its own."""
        return cls.read(Path(__file__).with_name("calibrations.json"))

    def limits_for(self, models: tuple[str, ...], *, prover: Arithmetic, verifier: Arithmetic) -> CheckLimits | None:
        """The first entry for one of these names, if there is one."""
        for model in models:
            for one in self.entries:
                if (one.model, one.codec, one.prover, one.verifier) == (model, TOPLOC.name, prover, verifier):
                    return one
        return None


FLOAT32_SAMPLING = SamplingLimits(mismatch_share=1e-3, largest=1e-3, largest_sum=2e-3)
"""In float32 two honest sides' logits differ by about 1e-5, so only ties closer than that are drawn differently: about
one token in 100,000. A hundred times as much is let through, and moves no policy."""

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
    """The limits for float32 on both sides, whatever the model.

    Differences of 1e-6 move a value across bfloat16's rounding once in several thousand, and then by one unit; so of
    the 128 points of a proof none or one is off, and hardly ever more. int8 weights show a mean of 0.28 and more,
    weights rounded to bfloat16 0.13, and one step at a rate of 2e-4 0.55.
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


def model_names(model: ModelFacts, *, digest: str) -> tuple[str, ...]:
    """The names under which a model's limits are looked up: of this very version, and of its architecture."""
    config = model.config
    kind = "".join(each if each.isalnum() else "-" for each in str(config.get("model_type", "model")).lower())[:32]
    layers = config.get("num_hidden_layers", 0)
    return digest[2:34], f"{kind.strip('-')}-h{model.hidden}-l{layers}-v{model.vocabulary}"
