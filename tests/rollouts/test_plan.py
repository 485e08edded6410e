"""The plan of a slot: the same for whoever has its seed and the version's folder, and nothing in it is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rollouts.engines.interface import FinishReason
from rollouts.environments import load_environment
from rollouts.errors import BadVersionFolder
from rollouts.plan import SlotPlan, SlotPlanner
from rollouts.recipe import EnvironmentChoice, LengthTargets, PromptRange, Recipe, SamplingChoice

SEED = bytes(range(32))
TARGETS = LengthTargets(targets=(1, 3), alpha=0.1, template="{target}:{prompt}")


END = 256


class Bytes:
    """One token for each byte; a chat begins with an @."""

    def encode(self, text: str, *, chat: bool = False) -> Sequence[int]:
        return [*b"@" * chat, *text.encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()


def planner(*, length: LengthTargets | None = None, longest: int = 100, eligible: range = range(50)) -> SlotPlanner:
    recipe = Recipe(
        environment=EnvironmentChoice(name="letters", version="1"),
        sampling=SamplingChoice(max_new_tokens=8),
        group_size=4,
        max_prompt_tokens=longest,
        length=length,
        prompts=PromptRange(count=len(eligible)),
    )
    return SlotPlanner(recipe=recipe, eligible=eligible, environment=load_environment("letters"), tokenizer=Bytes())


def facts(plan: SlotPlan) -> list[tuple[int, str, int | None]]:
    return [(group.prompt.index, group.prompt.text, group.prompt.target_length) for group in plan.groups]


def test_equal_seeds_plan_equally_and_others_do_not() -> None:
    assert facts(planner().plan(SEED, groups=6)) == facts(planner().plan(SEED, groups=6))
    assert facts(planner().plan(SEED, groups=6)) != facts(planner().plan(SEED[::-1], groups=6))


def test_a_smaller_slot_is_the_beginning_of_a_larger_one() -> None:
    assert facts(planner(length=TARGETS).plan(SEED, groups=6))[:4] == facts(
        planner(length=TARGETS).plan(SEED, groups=4)
    )


def test_samples_are_numbered_through_the_slot() -> None:
    plan = planner().plan(SEED, groups=3)
    assert [request.sample for request in plan.requests()] == list(range(12))
    assert [request.prompt_tokens for request in plan.requests()][4:8] == [plan.groups[1].tokens] * 4


def test_the_prompt_tells_its_target() -> None:
    for group in planner(length=TARGETS).plan(SEED, groups=8).groups:
        plain = load_environment("letters").prompt(group.prompt.index)
        assert group.prompt.target_length in TARGETS.targets
        assert group.prompt.text == f"{group.prompt.target_length}:{plain.text}"
        assert bytes(group.tokens).decode() == group.prompt.text


def test_an_answer_earns_its_score_less_what_its_length_costs() -> None:
    group = planner(length=TARGETS).plan(SEED, groups=1).groups[0]
    target = group.prompt.target_length
    assert target is not None
    reward = planner(length=TARGETS).reward(group.prompt, [63] * (target + 2), FinishReason.LENGTH)
    assert reward.task == 0.0
    assert reward.total == pytest.approx(-0.2)


def test_the_end_token_is_no_part_of_the_answer() -> None:
    prompt = planner().plan(SEED, groups=1).groups[0].prompt
    right = str(prompt.data["answer"]).encode()
    assert planner().reward(prompt, [*right, END], FinishReason.EOS).total == 1
    assert planner().reward(prompt, [*right], FinishReason.LENGTH).total == 0


@pytest.mark.parametrize(("longest", "eligible"), [(3, range(50)), (100, range(2**63, 2**63 + 5))])
def test_a_version_that_lists_what_can_not_be_asked_is_refused(longest: int, eligible: range) -> None:
    with pytest.raises(BadVersionFolder):
        planner(longest=longest, eligible=eligible).plan(SEED, groups=5)
