"""Measures one policy version: generates honest files by each engine, data type and batch size, and prefills them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import InvalidInput
from rollouts.calibration.limits import CheckLimits, model_names
from rollouts.checks import CheckedVersion, Draws, gather, open_version
from rollouts.engines.opening import engine_class, open_engine
from rollouts.models.devices import find_device
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import Dtype, EngineName
from validator.calibration.figures import CalibrationFigures
from validator.calibration.honest import honest_files
from validator.calibration.limits import HEADROOM, ArithmeticPair, limits_around

Progress = Callable[[str], None]
"""Called with a line of text about the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Parameters of a measurement.

    Args:
        model: Folder of a version, with its recipe; files are generated from its prompts.
        engines: Engines that generate files.
        dtypes: Data types in which files are generated. Each file is prefilled in the same data type and in float32.
        batches: Batch sizes: maximum numbers of concurrent completions. Several batch sizes are measured, because
            honest nodes have machines of all sizes.
        files: Number of files for each engine, data type and batch size.
        groups: Number of groups of each file.
        headroom: Factor from the largest measurement to the limit.
        device: Torch device of generation and prefill; None for an accelerator if this machine has one, else the CPU.
    """

    model: Path
    engines: tuple[EngineName, ...] = (EngineName.TORCH,)
    dtypes: tuple[Dtype, ...] = (Dtype.FLOAT32, Dtype.BFLOAT16)
    batches: tuple[int, ...] = (64, 1)
    files: int = 32
    groups: int = 4
    headroom: float = HEADROOM
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One combination of engine, data type and batch size in which files are generated."""

    engine: EngineName
    dtype: Dtype
    batch: int

    def __str__(self) -> str:
        return f"{self.engine.value} in {self.dtype.value}, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class MeasuredEntry:
    """One calibration entry with the measurements from which it was derived."""

    limits: CheckLimits
    figures: CalibrationFigures


def measure(wanted: Measurement, *, progress: Progress) -> list[MeasuredEntry]:
    """Generates files, prefills them, and derives the limits for each pair of arithmetics.

    Args:
        wanted: Parameters of the measurement.
        progress: Called with a line of text after the first, each eighth and the last file of each combination.

    Raises:
        InvalidInput: The parameters leave nothing to measure.
        NotFound: An engine is not installed here.
        MusterError: The version can't be used, or memory runs out.
    """
    if not wanted.engines or not wanted.dtypes or not wanted.batches or wanted.files < 1:
        raise InvalidInput(
            "the parameters leave nothing to measure",
            hint="give at least one engine, one type, one batch size and one file",
        )
    for engine in wanted.engines:
        engine_class(engine)  # a missing engine is reported before another one is measured for hours
    version = open_version(wanted.model)
    name = model_names(version.model, digest=version.digest)[1]
    figures: defaultdict[ArithmeticPair, CalibrationFigures] = defaultdict(CalibrationFigures)
    for engine in wanted.engines:
        for dtype in wanted.dtypes:
            for batch in wanted.batches:
                way = Way(engine=engine, dtype=dtype, batch=batch)
                for pair, found in _of_way(wanted, version, way, progress):
                    figures[pair].extend(found)
    return [
        MeasuredEntry(limits_around(found, model=name, pair=pair, headroom=wanted.headroom), found)
        for pair, found in figures.items()
    ]


def _of_way(
    wanted: Measurement, version: CheckedVersion, way: Way, progress: Progress
) -> Iterator[tuple[ArithmeticPair, CalibrationFigures]]:
    """Returns the measurements of one combination, for each data type of the prefill."""
    pairs = [ArithmeticPair.of(way.engine, way.dtype, verified_in=checked) for checked in _checked_in(way.dtype)]
    found = {pair: CalibrationFigures() for pair in pairs}
    policies = {pair: _policy(version, pair.verifier.dtype, wanted.device) for pair in pairs}
    engine = open_engine(way.engine, dtype=way.dtype, device=wanted.device, max_batch=way.batch)
    try:
        engine.load(version.folder, version=version.digest)
        files = honest_files(version, engine, way=str(way), files=wanted.files, groups=wanted.groups)
        for number, (seed, file) in enumerate(files, start=1):
            draws = Draws(seed=seed, parameters=version.recipe.sampling.parameters)
            rows = dict.fromkeys(range(len(file.samples)), draws)
            for pair in pairs:
                found[pair].add(file, gather(policies[pair], file, rows))
            if number in {1, wanted.files} or number % 8 == 0:
                progress(f"{way}: {number} of {wanted.files} files")
    finally:
        engine.close()
    yield from found.items()


def _checked_in(dtype: Dtype) -> Sequence[Dtype]:
    return (dtype,) if dtype is Dtype.FLOAT32 else (dtype, Dtype.FLOAT32)


def _policy(version: CheckedVersion, dtype: Dtype, device: str | None) -> Policy:
    return load_policy(version.folder, dtype=dtype, device=find_device(device))
