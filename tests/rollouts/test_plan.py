"""The plan of a slot: determined by its seed and the version's folder, without any choice of the node."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.errors import InvalidInput, MusterError
from rollouts.engines.interface import FinishReason
from rollouts.environments import Prompt, is_held_out, load_environment
from rollouts.environments.errors import BadDataset, EnvironmentFault
from rollouts.environments.validation import CheckedEnvironment
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat
from rollouts.plan import SlotPlan, SlotPlanner
from rollouts.recipe import EnvironmentChoice, LengthTargets, PromptRange, Recipe, SamplingChoice
from rollouts.sandbox import SandboxUnavailable

SEED = bytes(range(32))
TARGETS = LengthTargets(targets=(1, 3), alpha=0.1, template="{target}:{prompt}")


END = 256


class Bytes:
    """A tokenizer with one token for each byte; a chat begins with an @."""

    def encode(self, text: str, *, chat: bool | ChatFormat = False) -> Sequence[int]:
        return [*b"@" * bool(chat), *text.encode()]

    def encode_answer(self, text: str) -> Sequence[int]:
        return [*text.encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()


def planner(
    *,
    length: LengthTargets | None = None,
    longest: int = 100,
    eligible: Sequence[int] = range(50),
    held_out: float = 0.0,
) -> SlotPlanner:
    recipe = Recipe(
        environment=EnvironmentChoice(name="letters", version="1"),
        sampling=SamplingChoice(max_new_tokens=8),
        group_size=4,
        max_prompt_tokens=longest,
        length=length,
        held_out=held_out,
        prompts=PromptRange(count=len(eligible)),
    )
    return SlotPlanner(recipe=recipe, eligible=eligible, environment=load_environment("letters"), tokenizer=Bytes())


def facts(plan: SlotPlan) -> list[tuple[int, str, int | None]]:
    return [(group.prompt.index, group.prompt.text, group.prompt.target_length) for group in plan.groups]


def test_equal_seeds_give_equal_plans_and_other_seeds_do_not() -> None:
    assert facts(planner().plan(SEED, groups=6)) == facts(planner().plan(SEED, groups=6))
    assert facts(planner().plan(SEED, groups=6)) != facts(planner().plan(SEED[::-1], groups=6))


def test_a_smaller_slot_is_a_prefix_of_a_larger_one() -> None:
    assert facts(planner(length=TARGETS).plan(SEED, groups=6))[:4] == facts(
        planner(length=TARGETS).plan(SEED, groups=4)
    )


@pytest.mark.parametrize("eligible", [range(40), range(2**63 - 41, 2**63 - 1), [3, 5, 8, *range(100, 137)]])
def test_held_out_prompts_are_skipped_in_the_order_of_the_draw(eligible: Sequence[int]) -> None:
    """The other prompts keep the order in which the same seed draws them where no prompt is held out."""
    drawn = [group.prompt for group in planner(eligible=eligible).plan(SEED, groups=len(eligible)).groups]
    expected = [prompt.index for prompt in drawn if not is_held_out(prompt, 0.3)]
    assert 0 < len(expected) < len(eligible)
    plan = planner(eligible=eligible, held_out=0.3).plan(SEED, groups=len(expected))
    assert [group.prompt.index for group in plan.groups] == expected
    more = planner(eligible=eligible, held_out=0.3).plan(SEED, groups=2 * len(expected))
    assert sorted(group.prompt.index for group in more.groups) == sorted(expected * 2), "another permutation follows"


def test_a_version_with_all_prompts_held_out_is_refused_after_bounded_work() -> None:
    held_out = [index for index in range(60) if is_held_out(load_environment("letters").prompt(index), 0.5)]
    for eligible in (held_out, held_out[:1] * 20_000):
        with pytest.raises(BadVersionFolder, match=f"^{10_201} of {10_201} drawn prompts are held out"):
            planner(eligible=eligible, held_out=0.5).plan(SEED, groups=1)


def test_held_out_prompts_at_the_end_of_one_permutation_and_the_start_of_the_next_are_skipped() -> None:
    """Two held-out prompts may end one permutation and two begin the next: four in a row, of a table of four."""
    letters = load_environment("letters")
    held_out = [index for index in range(60) if is_held_out(letters.prompt(index), 0.5)][:2]
    others = [index for index in range(60) if not is_held_out(letters.prompt(index), 0.5)][:2]
    slots = planner(eligible=[*held_out, *others], held_out=0.5)
    for number in range(200):
        plan = slots.plan(number.to_bytes(32, "big"), groups=8)
        assert sorted(group.prompt.index for group in plan.groups) == sorted(others * 4)


@pytest.mark.parametrize("length", [None, TARGETS])
@pytest.mark.parametrize("groups", [-1, 0, (1 << 20) + 1])
def test_a_slot_with_no_groups_or_too_many_is_refused(groups: int, length: LengthTargets | None) -> None:
    with pytest.raises(InvalidInput, match=f"^a slot can't have {groups} groups"):
        planner(length=length).plan(SEED, groups=groups)


def test_samples_are_numbered_across_the_slot() -> None:
    plan = planner().plan(SEED, groups=3)
    assert [request.sample for request in plan.requests()] == list(range(12))
    assert [request.prompt_tokens for request in plan.requests()][4:8] == [plan.groups[1].tokens] * 4


def test_the_prompt_states_its_target_length() -> None:
    for group in planner(length=TARGETS).plan(SEED, groups=8).groups:
        plain = load_environment("letters").prompt(group.prompt.index)
        assert group.prompt.target_length in TARGETS.targets
        assert group.prompt.text == f"{group.prompt.target_length}:{plain.text}"
        assert bytes(group.tokens).decode() == group.prompt.text


def test_a_reward_is_the_score_minus_the_length_penalty() -> None:
    group = planner(length=TARGETS).plan(SEED, groups=1).groups[0]
    target = group.prompt.target_length
    assert target is not None
    reward = planner(length=TARGETS).reward(group.prompt, [63] * (target + 2), FinishReason.LENGTH)
    assert reward.task == 0.0
    assert reward.total == pytest.approx(-0.2)


def test_the_end_token_is_not_part_of_the_answer() -> None:
    prompt = planner().plan(SEED, groups=1).groups[0].prompt
    right = str(prompt.data["answer"]).encode()
    assert planner().reward(prompt, [*right, END], FinishReason.EOS).total == 1
    assert planner().reward(prompt, [*right], FinishReason.LENGTH).total == 0


@pytest.mark.parametrize(("longest", "eligible"), [(3, range(50)), (100, range(2**63, 2**63 + 5))])
def test_a_version_with_unusable_prompts_is_refused(longest: int, eligible: range) -> None:
    with pytest.raises(BadVersionFolder):
        planner(longest=longest, eligible=eligible).plan(SEED, groups=5)


@pytest.mark.parametrize("error", [SandboxUnavailable("it ended"), EnvironmentFault("raised"), BadDataset("changed")])
def test_a_prompt_that_this_machine_can_not_make_is_no_fault_of_the_version(
    error: MusterError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_environment: object, _index: int) -> Prompt:
        raise error

    monkeypatch.setattr(CheckedEnvironment, "prompt", fail)
    with pytest.raises(type(error)):
        planner().ask(3, None)
