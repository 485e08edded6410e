"""Derives limits of the statistical checks from measurements of honest files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollouts.calibration.limits import CheckLimits, LogprobLimits, RolloutCalibration, SamplingLimits, float32_limits
from rollouts.calibration.noise_model import HonestNoise
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.toploc import TOPLOC, Thresholds
from validator.calibration.figures import CalibrationFigures

HEADROOM = 2.0
"""Factor from the largest honest measurement to the limit.

After n honest files, the next honest file exceeds the largest measurement with probability 1 / (n + 1). It exceeds
twice that measurement far more rarely.
"""

ENOUGH_FILES = 32
"""Minimum number of files for a calibration; the largest measurement of fewer files is too uncertain."""

MEDIAN = 1.0
"""Minimum limit of the median mantissa difference if generator or verifier rounds to bfloat16, in last-place units.

The median is a multiple of 1/2, and usually 0. The headroom is a factor, so a measured median of 0 would give a limit
of 0, which the next honest sample may exceed.
"""


@dataclass(frozen=True, slots=True)
class ArithmeticPair:
    """Arithmetic, that is engine and data type, of the generator (`prover`) and of the verifier."""

    prover: Arithmetic
    verifier: Arithmetic

    @property
    def exact(self) -> bool:
        """True if generator and verifier compute in float32, where honest differences are nearly 0."""
        return self.prover.dtype is self.verifier.dtype is Dtype.FLOAT32

    @classmethod
    def of(cls, engine: EngineName, dtype: Dtype, *, verified_in: Dtype) -> ArithmeticPair:
        """Returns the pair of a generator and a torch verifier that computes in `verified_in`."""
        verifier = Arithmetic(engine=EngineName.TORCH, dtype=verified_in)
        return cls(Arithmetic(engine=engine, dtype=dtype), verifier)


def limits_around(
    honest: CalibrationFigures, *, model: str, pair: ArithmeticPair, headroom: float = HEADROOM
) -> CheckLimits:
    """Returns the limits for one pair of arithmetics: the largest honest measurements times `headroom`.

    A measured limit below that of float32 is replaced by that of float32.

    Args:
        honest: Measurements of honest files.
        model: Name of the model to which the limits apply.
        pair: Arithmetic of the generator and of the verifier.
        headroom: Factor from the largest measurement to the limit.

    Raises:
        InvalidInput: There are no files, or a proof in them is malformed.
    """
    floor = float32_limits((model,))
    least = floor.sample.model_copy(update={"mantissa_median": 0.0 if pair.exact else MEDIAN})
    return CheckLimits(
        model=model,
        codec=TOPLOC.name,
        prover=pair.prover,
        verifier=pair.verifier,
        sample=_at_least(Thresholds.around(honest.samples, headroom=headroom), least),
        file=_at_least(
            Thresholds.around(honest.files, headroom=headroom),
            floor.file.model_copy(update={"mantissa_median": least.mantissa_median}),
        ),
        samples=len(honest.samples),
        files=len(honest.files),
        sampling=SamplingLimits.around(honest.replays, headroom=headroom),
        logprobs=LogprobLimits(
            mean=max(floor.logprobs.mean, headroom * max(float(one.mean()) for one in honest.errors)),
            largest=max(floor.logprobs.largest, headroom * honest.largest_error),
        ),
        headroom=headroom,
        scatter=None if pair.exact else HonestNoise.around(honest.groups),
    )


def merged(
    before: RolloutCalibration | None, entries: Iterable[CheckLimits], *, widen: bool = False
) -> RolloutCalibration:
    """Returns a calibration with the new entries and the entries of an earlier calibration.

    Args:
        before: The earlier calibration; None if there is none.
        entries: New entries. Each new entry replaces an earlier entry of the same model and arithmetic.
        widen: True to combine two entries of the same model and arithmetic: each limit of the result is the wider one
            of the two entries. Use this for policies that were measured at several steps of a training or on several
            machines. If one of the two entries has no model of honest noise (`scatter`), the result has none.
    """
    every = {_key(one): one for one in (() if before is None else before.entries)}
    for one in entries:
        other = every.get(_key(one))
        every[_key(one)] = _widest(one, other) if widen and other is not None else one
    return RolloutCalibration(entries=tuple(every[key] for key in sorted(every)))


def _widest(one: CheckLimits, other: CheckLimits) -> CheckLimits:
    """Returns an entry that has, for each limit, the larger value of the two entries."""
    changes: dict[str, object] = {
        name: getattr(one, name).model_copy(
            update={figure: max(value, getattr(getattr(other, name), figure)) for figure, value in getattr(one, name)}
        )
        for name in ("sample", "file", "sampling", "logprobs")
    }
    changes |= {"samples": one.samples + other.samples, "files": one.files + other.files}
    changes["scatter"] = None if one.scatter is None or other.scatter is None else one.scatter.widest(other.scatter)
    return one.model_copy(update=changes | {"headroom": min(one.headroom, other.headroom)})


def _key(one: CheckLimits) -> tuple[str, ...]:
    return one.model, one.codec, one.prover.engine, one.prover.dtype, one.verifier.engine, one.verifier.dtype


def _at_least(measured: Thresholds, floor: Thresholds) -> Thresholds:
    """Returns the larger of the two values of each limit, because a measurement of few files may be 0 by chance."""
    return Thresholds(**{name: max(value, getattr(floor, name)) for name, value in measured})
