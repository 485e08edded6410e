"""Makes a policy version and an honest rollout file of it within a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from protocol.identifiers import Digest, address, digest, run_id
from rollouts.checks import (
    CheckedVersion,
    SeedParts,
    SlotFacts,
    open_version,
)
from rollouts.engines.interface import Completion, SampleRequest
from rollouts.engines.torch.engine import TorchEngine
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.precision import Arithmetic, Dtype
from rollouts.recipe import EnvironmentChoice, LengthTargets, PromptRange, Recipe, SamplingChoice, write_recipe
from rollouts.sampling.parameters import SamplingParameters
from tests.kit.tiny_model import tiny_folder

RUN, STEP, INDEX = run_id("vectors"), 3, 1
NODE = address("0x" + "a1" * 20)
BEACON: Digest = digest(b"\7" * 32)
SALT: Digest = digest(b"\5" * 32)
CHAIN, POOL = 31337, 1
PARTS = SeedParts(chain_id=CHAIN, pool_id=POOL, beacon=BEACON, salt=SALT)
GROUPS, EACH, LIMIT = 3, 4, 40

Generate = Callable[[Sequence[SampleRequest], SamplingParameters], Mapping[int, Completion]]
"""Generates the answers to requests, by sample number."""

RECIPE = Recipe(
    environment=EnvironmentChoice(name="letters", version="1"),
    sampling=SamplingChoice(max_new_tokens=LIMIT),
    group_size=EACH,
    length=LengthTargets(targets=(1, 3, 5), alpha=0.01, template="{target} {prompt}"),
    prompts=PromptRange(count=100),
)


def as_version(folder: Path, recipe: Recipe = RECIPE) -> CheckedVersion:
    """Makes a model's folder a version."""
    write_recipe(folder, recipe)
    return open_version(folder)


def facts_of(version: CheckedVersion, *, groups: int = GROUPS) -> SlotFacts:
    """The slot that the file is of."""
    return SlotFacts(
        run=RUN,
        step=STEP,
        index=INDEX,
        node=NODE,
        digest=version.digest,
        groups=groups,
        max_units=groups * version.recipe.units_per_group,
        parts=PARTS,
    )


def make(
    version: CheckedVersion,
    *,
    facts: SlotFacts,
    weights: Path | None = None,
    dtype: Dtype = Dtype.FLOAT32,
    recipe: Recipe | None = None,
    seed: bytes | None = None,
    batch: int = 8,
    generate: Generate | None = None,
    arithmetic: Arithmetic | None = None,
) -> RolloutFile:
    """The slot's file.

    Args:
        version: That the slot was leased for.
        facts: Of the slot.
        weights: Another folder to generate with, as a cheat does.
        dtype: What to generate in.
        recipe: Another recipe to sample by.
        seed: Another seed to sample with.
        batch: The most answers that grow at once.
        generate: Generates the answers in place of torch; the other choices of the engine then have no effect.
        arithmetic: What the header claims; None for torch and the data type.
    """
    assert facts.seed is not None
    plan = version.planner.plan(facts.seed, groups=facts.groups)
    requests = [replace(one, seed=seed or one.seed) for one in plan.requests()]
    parameters = (recipe or version.recipe).sampling.parameters
    if generate is not None:
        drawn = generate(requests, parameters)
    else:
        engine = TorchEngine(dtype=dtype, max_batch=batch)
        engine.load(weights or version.folder, version=version.digest)
        drawn = {one.sample: one for one in engine.generate(requests, parameters)}
        engine.close()
    samples = []
    for group in plan.groups:
        for number in group.samples:
            one = drawn[number]
            reward = version.planner.reward(group.prompt, one.tokens, one.finish)
            samples.append(
                Sample(
                    group=group.group,
                    sample=number,
                    prompt_index=group.prompt.index,
                    prompt_tokens=np.array(group.tokens, np.int32),
                    output_tokens=np.array(one.tokens, np.int32),
                    logprobs=one.logprobs,
                    finish=one.finish,
                    task_reward=reward.task,
                    length_penalty=reward.length_penalty,
                    reward=reward.total,
                    target_length=reward.target,
                    proofs=one.proofs,
                )
            )
    header = header_of(version, facts, dtype)
    return RolloutFile(header if arithmetic is None else replace(header, arithmetic=arithmetic), tuple(samples))


def header_of(version: CheckedVersion, facts: SlotFacts, dtype: Dtype = Dtype.FLOAT32) -> SlotHeader:
    """What an honest node writes above its samples."""
    return SlotHeader(
        run=facts.run,
        step=facts.step,
        index=facts.index,
        node=facts.node,
        checkpoint=version.digest,
        environment=version.recipe.environment.name,
        environment_version=version.environment.version,
        arithmetic=Arithmetic(engine=TorchEngine.name, dtype=dtype),
    )


def sharpened(folder: Path, factor: float) -> Path:
    """The same model with sharp attention: query and key weights times a factor. Rounding moves its tokens far."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name in weights:
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weights[name] = weights[name] * factor
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def with_row(file: RolloutFile, row: int, sample: Sample) -> RolloutFile:
    """The file with another sample in one row."""
    return with_rows(file, [*file.samples[:row], sample, *file.samples[row + 1 :]])


def with_rows(file: RolloutFile, samples: Sequence[Sample]) -> RolloutFile:
    """The file with other rows."""
    return RolloutFile(file.header, tuple(samples))


def changed_weights(folder: Path, kind: str) -> Path:
    """The same model one small step earlier, or in eight bits."""
    path = tiny_folder(folder / kind) / "model.safetensors"
    weights = load_file(path)
    torch.manual_seed(3)
    for name, weight in weights.items():
        if kind == "older":
            weights[name] = weight + 1e-4 * torch.randn_like(weight).sign()
        elif weight.ndim == 2:
            scale = weight.abs().amax() / 127
            weights[name] = (weight / scale).round() * scale
    save_file(weights, path, metadata={"format": "pt"})
    return path.parent
