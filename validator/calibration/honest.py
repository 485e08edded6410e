"""Generates rollout files of a version as honest nodes do, with seeds that no slot has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from rollouts.checks import CheckedVersion
from rollouts.engines.interface import Completion, Engine
from rollouts.files.samples import RolloutFile
from rollouts.files.synthetic_files import unleased_header, unrewarded_sample
from rollouts.plan import SlotPlan
from rollouts.precision import Arithmetic

_TAG = b"muster-calibration-v2"
"""Domain separation tag of calibration seeds, which keeps them different from the seeds of slots."""


def seed_of(way: str, number: int) -> bytes:
    """Returns the seed of a file, 32 bytes. No slot has this seed, and a repeated measurement uses the same seed.

    Args:
        way: Version, engine, data type and batch size as text. Each combination has its own seeds: with shared seeds,
            the same near-ties would repeat in each combination, so the measurements would not be independent.
        number: Number of the file, from 0.
    """
    return hashlib.sha256(_TAG + number.to_bytes(8, "big") + way.encode()).digest()


def honest_files(
    version: CheckedVersion, engine: Engine, *, way: str, files: int, groups: int
) -> Iterator[tuple[bytes, RolloutFile]]:
    """Generates rollout files without rewards, and yields each file with its seed.

    Args:
        version: The measured version.
        engine: Engine that has loaded the version.
        way: Engine, data type and batch size as text, which become part of the seeds.
        files: Number of files.
        groups: Number of groups of each file.

    Raises:
        MusterError: The engine failed, or the version can't be sampled.
    """
    for number in range(files):
        plan = version.planner.plan(seed_of(f"{version.digest}, {way}", number), groups=groups)
        drawn = engine.generate(plan.requests(), version.recipe.sampling.parameters)
        arithmetic = Arithmetic(engine=engine.name, dtype=engine.dtype)
        yield plan.seed, file_of(version, arithmetic, plan, {one.sample: one for one in drawn})


def file_of(
    version: CheckedVersion, arithmetic: Arithmetic, plan: SlotPlan, drawn: Mapping[int, Completion]
) -> RolloutFile:
    """Builds the rollout file of one slot from generated completions.

    Args:
        version: The measured version.
        arithmetic: Arithmetic that generated the completions; the header names it.
        plan: Plan of the slot: its groups and prompts.
        drawn: Completions by sample number.
    """
    header = unleased_header(
        arithmetic=arithmetic,
        checkpoint=version.digest,
        environment=version.recipe.environment.name,
        environment_version=version.environment.version,
    )
    rows = [
        unrewarded_sample(
            drawn[number],
            prompt=group.tokens,
            group=group.group,
            prompt_index=group.prompt.index,
            target_length=group.prompt.target_length,
        )
        for group in plan.groups
        for number in group.samples
    ]
    return RolloutFile(header, tuple(rows))
