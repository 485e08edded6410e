"""Dialogues of tiny models with random weights, whose messages mean nothing: an environment that always replies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protocol.identifiers import ZERO_DIGEST, address, digest
from rollouts.checks.evidence import Draws, gather
from rollouts.dialogue.formats import FormatName
from rollouts.dialogue.play import Dialogue, PlayedDialogue
from rollouts.environments.dialogue import Episode, GivenMessage, ModelMessage, Reply, Role, Tool, score_of_one
from rollouts.environments.interface import Prompt, Score
from rollouts.environments.validation import CheckedEnvironment
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.models.facts import read_model
from rollouts.models.policy import load_policy
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlanner
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recipe import DialogueChoice, EnvironmentChoice, PromptRange, Recipe, SamplingChoice
from rollouts.turns import drawn_places
from tests.kit.tiny_model import END, tiny_folder

SEED = b"\x61" * 32
VERSION = digest(b"\x01" * 32)
ENDS = [END, 5, 11, 17, 23]
"""So many end tokens that messages of random weights are short."""


class Replies:
    """Replies to each message with its number and the beginning of its text; a message with `z` ends the dialogue."""

    name = "lookup"  # recipes name an environment that exists
    version = "1"

    def size(self) -> int | None:
        return None

    def prompt(self, index: int) -> Prompt:
        return Prompt(index=index, text=f"rev:{index}=")

    def begin(self, prompt: Prompt) -> Episode:
        return _Replying(prompt)

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        return score_of_one(self, prompt, completion, finished=finished)

    def demonstration(self, prompt: Prompt) -> str | None:
        del prompt
        return None

    def demonstration_turns(self, prompt: Prompt) -> Sequence[str] | None:
        del prompt
        return None


class _Replying:
    def __init__(self, prompt: Prompt) -> None:
        self.opening = [GivenMessage(role=Role.USER, text=prompt.text)]
        self.tools: Sequence[Tool] = ()
        self._heard: list[ModelMessage] = []

    def reply(self, message: ModelMessage) -> Reply:
        self._heard.append(message)
        text = f"({len(self._heard)}:{message.text[:6]})"
        return Reply(messages=[GivenMessage(role=Role.USER, text=text)], done="z" in message.text)

    def score(self) -> Score:
        return Score(task=float(len(self._heard) % 2), parts={"messages": float(len(self._heard))})


REPLIES = CheckedEnvironment("lookup", "1", Replies())
"""`Replies`, as `load_environment` returns environments."""


def talking_folder(folder: Path, **config: Any) -> Path:
    """Writes a tiny model that often ends its messages; `config` changes its config."""
    return tiny_folder(folder, eos_token_id=ENDS, **config)


def dialogue_recipe(*, turns: int = 6, new_tokens: int = 120, each: int = 4, reply_tokens: int = 16) -> Recipe:
    """A recipe of dialogues."""
    return Recipe(
        environment=EnvironmentChoice(name="lookup", version="1"),
        sampling=SamplingChoice(max_new_tokens=new_tokens),
        group_size=each,
        prompts=PromptRange(count=100),
        max_prompt_tokens=32,
        dialogue=DialogueChoice(format=FormatName.PLAIN, turns=turns, reply_tokens=reply_tokens),
    )


def replying_planner(recipe: Recipe, folder: Path) -> SlotPlanner:
    """Plans slots of `Replies`."""
    tokenizer = FolderTokenizer(folder)
    return SlotPlanner(
        recipe=recipe,
        eligible=range(100),
        environment=REPLIES,
        tokenizer=tokenizer,
    )


def replying_dialogues(folder: Path, recipe: Recipe, *, groups: int = 3) -> list[Dialogue]:
    """The dialogues of a slot of `Replies`, to be played."""
    planner, facts = replying_planner(recipe, folder), read_model(folder)
    plan = planner.plan(SEED, groups=groups)
    return [planner.dialogue(group, sample, seed=SEED, model=facts) for sample, group in plan.group_of_sample().items()]


def file_of(dialogues: Sequence[PlayedDialogue], folder: Path, recipe: Recipe) -> RolloutFile:
    """The dialogues as a rollout file, as the task writes it."""
    plan = replying_planner(recipe, folder).plan(SEED, groups=len(dialogues) // recipe.group_size)
    groups = plan.group_of_sample()
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
        for one in dialogues
    ]
    header = SlotHeader(
        run=ZERO_DIGEST,
        step=0,
        index=0,
        node=address("0x" + "a1" * 20),
        checkpoint=VERSION,
        environment="lookup",
        environment_version="1",
        arithmetic=Arithmetic(engine=EngineName.TORCH, dtype=Dtype.FLOAT32),
    )
    return RolloutFile(header, tuple(samples))


def check_by_prefill(file: RolloutFile, folder: Path, recipe: Recipe) -> None:
    """Checks draws, log-probabilities and proofs of dialogues by one prefill of each, as a validator does.

    Noise that restarts in a turn would give other draws.
    """
    policy = load_policy(folder, dtype=Dtype.FLOAT32, device=torch.device("cpu"))
    rows = [*range(len(file.samples))]
    evidence = gather(policy, file, dict.fromkeys(rows, Draws(seed=SEED, parameters=recipe.sampling.parameters)))
    for row in rows:
        found, sample = evidence[row], file.samples[row]
        assert found.gaps is not None
        assert not found.gaps.mismatches.any()
        np.testing.assert_allclose(sample.logprobs, found.logprobs, atol=1e-4)
        assert len(found.proofs) == -(-len(sample.output_tokens) // 32)
        for proof in found.proofs:
            assert proof.malformed is None
            assert not proof.exponent_mismatches
            assert proof.mantissa_median <= 1
        places = drawn_places(sample.turns, drawn=len(sample.output_tokens))
        np.testing.assert_array_equal(sample.tokens_after_prompt[places], sample.output_tokens)
