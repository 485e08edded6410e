"""Compares files that vLLM generates in a numerics class with their recomputation by another process, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import InvalidInput
from rollouts.checks import CheckedVersion, Draws, open_version
from rollouts.files.samples import RolloutFile
from rollouts.precision import EXAMPLE, Arithmetic
from rollouts.recompute.place import VllmPlace
from rollouts.recompute.reference import difference, prove
from rollouts.recompute.vllm_process import VllmProcess
from validator.calibration.honest import file_of, seed_of
from validator.calibration.measuring import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMeasurement:
    """Parameters of a measurement.

    Args:
        model: Folder of a version, with its recipe; files are generated from its prompts.
        classes: The numerics classes.
        place: The vLLM installation.
        batches: Batch sizes: maximum numbers of concurrent completions.
        files: Number of files for each class and batch size.
        groups: Number of groups of each file.
    """

    model: Path
    classes: tuple[Arithmetic, ...]
    place: VllmPlace
    batches: tuple[int, ...] = (64, 1)
    files: int = 32
    groups: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredClass:
    """Measurement of one class and batch size.

    Args:
        arithmetic: The numerics class.
        batch: Maximum number of concurrent completions of the generating process.
        files: Number of files.
        rows: Number of rows of all files.
        tokens: Number of generated tokens of all files.
        longest: Tokens of prompt and answer of the longest row.
        differing: Number of rows that differ.
        first: The first difference, with file and row; empty if there is none.
    """

    arithmetic: Arithmetic
    batch: int
    files: int
    rows: int
    tokens: int
    longest: int
    differing: int
    first: str


def class_named(name: str) -> Arithmetic:
    """Returns the numerics class with this name.

    Raises:
        InvalidInput: The name is no numerics class.
    """
    try:
        found = Arithmetic.parse(name)
    except ValueError as error:
        raise InvalidInput(str(error), hint="`muster validator numerics` lists the classes of this machine") from error
    if not found.is_class:
        raise InvalidInput(f"{name} is no numerics class", hint=f"name engine, version, type and device: {EXAMPLE}")
    return found


def measure_classes(wanted: ClassMeasurement, *, progress: Progress) -> Iterator[MeasuredClass]:
    """Yields a measurement per class and batch size.

    One process generates all files of a measurement; then another one recomputes them. Both reproduce the recording of
    the class first.

    Args:
        wanted: Parameters of the measurement.
        progress: Called with a line of text after each step.

    Raises:
        InvalidInput: This machine can't compute in a class, or the parameters leave nothing to measure.
        ClassNotReproduced: A process differs from the recording of the class.
        NotFound: vLLM is not installed at the given place.
        MusterError: The version can't be used, or vLLM failed.
    """
    if not wanted.classes or not wanted.batches or wanted.files < 1:
        raise InvalidInput("the parameters leave nothing to measure", hint="give a class, a batch size and a file")
    version = open_version(wanted.model)
    for arithmetic in wanted.classes:
        for batch in wanted.batches:
            files = _generated(wanted, version, arithmetic, batch)
            progress(f"{arithmetic}, batch {batch}: {len(files)} files generated")
            yield _compared(wanted, version, arithmetic, batch, files)


def _generated(
    wanted: ClassMeasurement, version: CheckedVersion, arithmetic: Arithmetic, batch: int
) -> list[tuple[bytes, RolloutFile]]:
    """Generates files, and returns each with its seed."""
    files = []
    with VllmProcess(wanted.place, arithmetic, batch=batch) as process:
        prove(process)
        process.load(version.folder, version=version.digest)
        for number in range(wanted.files):
            seed = seed_of(f"{version.digest}, {arithmetic}, batch {batch}", number)
            plan = version.planner.plan(seed, groups=wanted.groups)
            drawn = process.generate(plan.requests(), version.recipe.sampling.parameters)
            files.append((plan.seed, file_of(version, arithmetic, plan, drawn)))
    return files


def _compared(
    wanted: ClassMeasurement,
    version: CheckedVersion,
    arithmetic: Arithmetic,
    batch: int,
    files: list[tuple[bytes, RolloutFile]],
) -> MeasuredClass:
    """Recomputes files in another process, and returns the figures with the first difference."""
    differing: list[str] = []
    parameters = version.recipe.sampling.parameters
    with VllmProcess(wanted.place, arithmetic) as process:
        prove(process)
        process.load(version.folder, version=version.digest)
        for number, (seed, file) in enumerate(files):
            draws = Draws(seed=seed, parameters=parameters)
            evidence = process.compare(file, dict.fromkeys(range(len(file.samples)), draws))
            differing += [
                f"file {number}, {text}" for row, one in evidence.items() if (text := difference(file, row, one))
            ]
    rows = [row for _, file in files for row in file.samples]
    return MeasuredClass(
        arithmetic=arithmetic,
        batch=batch,
        files=len(files),
        rows=len(rows),
        tokens=sum(len(row.output_tokens) for row in rows),
        longest=max(len(row.prompt_tokens) + len(row.output_tokens) for row in rows),
        differing=len(differing),
        first=differing[0] if differing else "",
    )
