"""A slot in an environment of another library: a model that memorised its dialogues, its file, checks and reading."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protocol.identifiers import digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease
from protocol.wire.leases import SignedLease
from protocol.wire.slots import SlotGrant
from rollouts.checks import CheckedVersion
from rollouts.dialogue.formats import FormatName
from rollouts.dialogue.play import play
from rollouts.engines.torch.engine import TorchEngine
from rollouts.environments import Prompt, load_environment
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.files.schema import write_rollouts
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlanner
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recipe import DialogueChoice, EnvironmentChoice, PromptRange, Recipe, SamplingChoice
from rollouts.verify.files import Verification, verify_file
from tests.kit.memorised_model import memorise
from tests.kit.rollout_files import PARTS, as_version, facts_of
from tests.kit.tiny_model import VOCABULARY, tiny_folder
from tests.kit.trained_pool import audit_of, decoder
from trainer.run.gathering.rollout_files import FileRules, read_accepted
from trainer.run.state.journal import JournalFile

EACH, GROUPS, CONTEXT = 4, 2, 768


def memorised_version(
    home: Path, name: str, options: dict[str, Any], script: Callable[[Prompt], Sequence[str]], *, prompts: int = 4
) -> CheckedVersion:
    """Makes a version whose model says the messages of `script` to the first prompts."""
    environment = load_environment(name, options=options)
    count = min(prompts, environment.size() or 0)
    recipe = Recipe(
        environment=EnvironmentChoice(name=name, version=environment.version, options=options),
        sampling=SamplingChoice(max_new_tokens=160, temperature=0.2),
        group_size=EACH,
        prompts=PromptRange(count=count),
        max_prompt_tokens=400,
        dialogue=DialogueChoice(format=FormatName.PLAIN, turns=4, reply_tokens=128),
    )
    folder = tiny_folder(home / "model", max_position_embeddings=CONTEXT)
    planner = SlotPlanner(
        recipe=recipe, eligible=range(count), environment=environment, tokenizer=FolderTokenizer(folder)
    )
    memorise(folder, planner, [(index, script(environment.prompt(index))) for index in range(count)])
    return as_version(folder, recipe)


def played_file(version: CheckedVersion) -> RolloutFile:
    """A slot, played by a real engine and written as the task writes it."""
    facts = facts_of(version, groups=GROUPS)
    assert facts.seed is not None
    plan = version.planner.plan(facts.seed, groups=GROUPS)
    groups = plan.group_of_sample()
    dialogues = [
        version.planner.dialogue(group, sample, seed=facts.seed, model=version.model)
        for sample, group in groups.items()
    ]
    engine = TorchEngine(dtype=Dtype.FLOAT32, device=torch.device("cpu"))
    engine.load(version.folder, version=version.digest)
    with ThreadPoolExecutor(1) as replies:
        found = sorted(
            play(engine, dialogues, version.recipe.sampling.parameters, replies=replies), key=lambda one: one.sample
        )
    samples = [
        Sample(
            group=groups[one.sample].group,
            sample=one.sample,
            prompt_index=groups[one.sample].prompt.index,
            prompt_tokens=np.array(groups[one.sample].tokens, np.int32),
            output_tokens=np.array(one.drawn.tokens, np.int32),
            logprobs=one.drawn.logprobs,
            finish=one.drawn.finish,
            task_reward=one.reward.task,
            length_penalty=one.reward.length_penalty,
            reward=one.reward.total,
            target_length=None,
            proofs=one.drawn.proofs,
            turns=one.turns,
        )
        for one in found
    ]
    header = SlotHeader(
        run=facts.run,
        step=facts.step,
        index=facts.index,
        node=facts.node,
        checkpoint=version.digest,
        environment=version.recipe.environment.name,
        environment_version=version.recipe.environment.version,
        arithmetic=Arithmetic(engine=EngineName.TORCH, dtype=Dtype.FLOAT32),
    )
    return RolloutFile(header, tuple(samples))


def verified(file: RolloutFile, version: CheckedVersion, home: Path) -> Verification:
    path = home / "file.parquet"
    write_rollouts(path, file)
    facts = replace(facts_of(version, groups=GROUPS), units=file.units)
    return verify_file(path, version, facts=facts, parts=PARTS, device=torch.device("cpu"))


def read_by_trainer(file: RolloutFile, version: CheckedVersion, home: Path) -> list[float]:
    """Returns the rewards that a trainer learns from."""
    node, validator, orchestrator = Key.generate(), Key.generate(), Key.generate()
    file = RolloutFile(replace(file.header, node=node.address), file.samples)
    lease = Lease(
        pool_id=1,
        run=file.header.run,
        step=file.header.step,
        index=file.header.index,
        node=node.address,
        version=1,
        digest=version.digest,
        beacon_block=1,
        salt=digest(b"\x05" * 32),
        groups=GROUPS,
        max_units=10_000,
        expiry=1 << 40,
    )
    domain = SigningDomain(1, node.address)
    signed = SignedLease.of(lease, domain=domain, signature=lease.sign(orchestrator, domain))
    grant = SlotGrant(lease=signed, beacon=digest(b"\0" * 32))
    path, audit_path = home / "accepted", home / "audit"
    write_rollouts(path, file)
    sha256 = digest(hashlib.sha256(path.read_bytes()).digest())
    audit = audit_of(
        grant,
        file,
        sha256,
        validator,
        lambda _step, _index, group: [one.reward for one in file.samples if one.group == group],
    )
    content = audit.encode()
    audit_path.write_bytes(content)
    entry = JournalFile(
        key=lease.key.hash,
        sha256=sha256,
        audit=digest(hashlib.sha256(content).digest()),
        node=node.address,
        index=lease.index,
        version=lease.version,
        checkpoint=lease.digest,
        groups=GROUPS,
    )
    rules = FileRules(run=lease.run, recipe=version.recipe, vocabulary=VOCABULARY, context=CONTEXT, most_bytes=1 << 20)
    seen = read_accepted(path, audit_path, entry=entry, step=lease.step, rules=rules, decoder=decoder())
    groups = [one.group for one in seen.groups if one.group is not None]
    assert all(sample.turns for group in groups for sample in group.samples)
    return [sample.reward for group in groups for sample in group.samples]
