"""The environment `mixture`: proportions, sizes, versions, errors, and the parts of any recipe."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from protocol.errors import MusterError
from rollouts.environments import Rewards, load_environment
from rollouts.environments import letters as letters_module
from rollouts.environments.dialogue import ModelMessage, Reply
from rollouts.environments.errors import BadDataset, BadOptions, NoSuchPrompt, UnknownEnvironmentVersion
from rollouts.environments.mixture import Parts, parts_of
from rollouts.recipe import EnvironmentChoice
from tests.rollouts.environments.conftest import WriteRows, row

WEIGHTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def mixed(*environments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {"environments": [*environments]}


LETTERS: dict[str, JsonValue] = {"name": "letters"}
LETTERS_AND_SUMS = mixed({"name": "letters", "weight": 2}, {"name": "arithmetic", "options": {"digits": 1}})


def parts(weights: list[int]) -> Parts:
    return Parts.of([f"part{number}" for number in range(len(weights))], weights)


@given(weights=WEIGHTS, cycle=st.integers(0, 1000))
def test_every_cycle_has_each_part_as_often_as_its_weight(weights: list[int], cycle: int) -> None:
    found, total = parts(weights), sum(weights)
    assert found.cycle == total
    counts = Counter(found.part(index) for index in range(cycle * total, (cycle + 1) * total))
    assert [counts[part] for part in range(len(weights))] == weights


@given(weights=WEIGHTS)
def test_places_are_evenly_spread(weights: list[int]) -> None:
    """The k-th of w places, from 0, is sorted by (2k + 1) / 2w, exactly."""
    found = parts(weights)
    order = [
        (Fraction(2 * rank + 1, 2 * weight), part) for part, weight in enumerate(weights) for rank in range(weight)
    ]
    assert [found.part(index) for index in range(found.cycle)] == [part for _, part in sorted(order)]


def test_the_table_of_places_is_computed_once() -> None:
    weights = [*range(985, 1001)]
    assert parts(weights)._cycle is parts(weights)._cycle
    assert parts(weights).cycle == sum(weights)


@given(weights=WEIGHTS, count=st.integers(1, 300))
def test_each_part_gives_its_prompts_in_order_without_gaps(weights: list[int], count: int) -> None:
    found = parts(weights)
    own: dict[int, list[int]] = {}
    for index in range(count):
        own.setdefault(found.part(index), []).append(found.own_index(index))
    assert all(indices == list(range(len(indices))) for indices in own.values())


@given(weights=WEIGHTS, start=st.integers(0, 500), count=st.integers(1, 200))
def test_any_stretch_of_indices_is_close_to_the_weights(weights: list[int], start: int, count: int) -> None:
    found = parts(weights)
    counts = Counter(found.part(index) for index in range(start, start + count))
    for part, weight in enumerate(weights):
        assert abs(counts[part] - count * weight / sum(weights)) <= 2


@given(weights=WEIGHTS, first=st.integers(0, 2**40), count=st.integers(1, 10_000), most=st.integers(8, 300))
def test_a_sample_of_a_range_covers_every_part_that_has_indices(
    weights: list[int], first: int, count: int, most: int
) -> None:
    found = parts(weights)
    sample = found.sample(first, count, most=most)
    assert sample == sorted(set(sample))
    assert first <= sample[0] <= sample[-1] < first + count
    present = {found.part(index) for index in range(first, first + min(count, found.cycle))}
    assert {found.part(index) for index in sample} == present
    assert len(sample) <= max(most, len(weights))


def test_a_sample_of_another_environment_is_evenly_spread() -> None:
    assert parts_of("letters", {}).sample(10, 100, most=10) == list(range(10, 110, 10))


def test_prompts_scores_and_demonstrations_are_those_of_the_parts() -> None:
    mixture = load_environment("mixture", options=LETTERS_AND_SUMS)
    letters, sums = load_environment("letters"), load_environment("arithmetic", options={"digits": 1})
    prompts = [mixture.prompt(index) for index in range(6)]
    own = [letters.prompt(0), sums.prompt(0), letters.prompt(1), letters.prompt(2), sums.prompt(1), letters.prompt(3)]
    assert [prompt.text for prompt in prompts] == [prompt.text for prompt in own]
    assert [prompt.data["environment"] for prompt in prompts[:3]] == ["letters", "arithmetic", "letters"]
    assert [mixture.demonstration(prompt) for prompt in prompts] == [
        (sums if index % 3 == 1 else letters).demonstration(prompt) for index, prompt in enumerate(own)
    ]
    for prompt, inner in zip(prompts, own, strict=True):
        score = mixture.score(prompt, str(inner.data["answer"]), finished=True)
        assert (score.task, score.parts) == (1.0, {"exact": 1.0, "finished": 1.0})
        assert mixture.score(prompt, "x", finished=True).task == 0.0


@pytest.mark.parametrize(
    ("sizes", "weights", "size"),
    [((3, 2), (1, 1), 6), ((3, 2), (2, 1), 6), ((10, 3), (1, 3), 40), ((4,), (1,), 4)],
)
def test_the_size_is_the_cycles_in_which_every_prompt_occurs(
    sizes: tuple[int, ...], weights: tuple[int, ...], size: int, write_rows: WriteRows
) -> None:
    environments: list[dict[str, JsonValue]] = [
        {
            "name": "math",
            "weight": weight,
            "options": write_rows([row({"ground_truth": "1"}, prompt=f"{part}.{n}") for n in range(of)]),
        }
        for part, (of, weight) in enumerate(zip(sizes, weights, strict=True))
    ]
    mixture = load_environment("mixture", options=mixed(*environments))
    assert mixture.size() == size
    texts = Counter(mixture.prompt(index).text for index in range(size))
    assert len(texts) == sum(sizes)
    for part, weight in enumerate(weights):
        given_prompts = sum(count for text, count in texts.items() if text.startswith(f"{part}."))
        assert given_prompts == size * weight // sum(weights)
    with pytest.raises(NoSuchPrompt, match=f"from 0 to {size - 1}"):
        mixture.prompt(size)


def test_a_mixture_with_an_endless_part_is_endless_and_its_files_begin_again(write_rows: WriteRows) -> None:
    options = write_rows([row({"ground_truth": "7"}, prompt=text) for text in ("a?", "b?")])
    mixture = load_environment("mixture", options=mixed({"name": "letters"}, {"name": "math", "options": options}))
    assert mixture.size() is None
    assert [mixture.prompt(index).text for index in (1, 3, 5, 7)] == ["a?", "b?", "a?", "b?"]
    assert mixture.prompt(2**63 - 1).index == 2**63 - 1


def version_of(*environments: dict[str, JsonValue]) -> str:
    return load_environment("mixture", options=mixed(*environments)).version


def test_the_version_covers_names_options_weights_and_order() -> None:
    letters: dict[str, JsonValue] = {"name": "letters"}
    sums: dict[str, JsonValue] = {"name": "arithmetic", "options": {"digits": 2}}
    same = version_of(letters, sums)
    assert same == version_of({**letters, "version": "1", "weight": 1, "options": {"filler": False}}, sums)
    others = {
        version_of(sums, letters),
        version_of({**letters, "weight": 2}, sums),
        version_of({**letters, "options": {"filler": True}}, sums),
        version_of(letters),
    }
    assert len(others - {same}) == 4


def test_the_version_covers_a_files_content_and_not_its_path(write_rows: WriteRows, tmp_path: Path) -> None:
    options = write_rows([row({"ground_truth": "7"})])
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(Path(str(options["path"])).read_bytes())
    part: dict[str, JsonValue] = {"name": "math", "options": options}
    moved: dict[str, JsonValue] = {"name": "math", "options": {**options, "path": str(copy)}}
    other: dict[str, JsonValue] = {"name": "math", "options": write_rows([row({"ground_truth": "8"})])}
    before = version_of(part)
    assert version_of(moved) == before != version_of(other)
    assert before.startswith("1+mv"), "it names the library that scores"
    assert EnvironmentChoice(name="mixture", version=before).version == before, "a recipe can name it"


def test_long_dependencies_are_in_the_digest_only(monkeypatch: pytest.MonkeyPatch) -> None:
    before = version_of({"name": "letters"})
    versions = []
    for dependency in ("x" * 40, "x" * 41, "y" * 41):
        changed = replace(letters_module.family, depends_on=partial(str, dependency))
        monkeypatch.setattr(letters_module, "family", changed)
        versions.append(version_of({"name": "letters"}))
    assert len({before, *versions}) == 4
    assert [len(version) for version in versions] == [2 + 40 + 1 + 16, 2 + 16, 2 + 16]


def test_rewards_are_unit_if_those_of_any_part_are() -> None:
    partial: dict[str, JsonValue] = {"name": "letters", "options": {"partial": True}}
    assert load_environment("mixture", options=LETTERS_AND_SUMS).rewards is Rewards.BINARY
    mixture = load_environment("mixture", options=mixed({"name": "arithmetic"}, partial))
    assert mixture.rewards is Rewards.UNIT
    assert mixture.score(mixture.prompt(1), "4690", finished=True).task == 0.75


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, BadOptions, "environments: Field required"),
        (mixed(), BadOptions, "at least 1 item"),
        (mixed({"name": "mixture"}), BadOptions, "can't be part of a mixture: list its environments here"),
        (
            mixed({"name": "letters", "weight": 0}),
            BadOptions,
            r"environments\.0\.weight: .* greater than or equal to 1",
        ),
        (mixed({"name": "letters", "weight": 1.5}), BadOptions, r"environments\.0\.weight"),
        (mixed({"name": "letters", "wieght": 2}), BadOptions, r"environments\.0\.wieght"),
        (mixed(*[LETTERS] * 17), BadOptions, "at most 16 items"),
        (mixed({"name": "letters"}, {"name": "leters"}), MusterError, r"part 2 \(leters\): there is no environment"),
        (
            mixed({"name": "letters", "options": {"colour": 1}}),
            BadOptions,
            r"part 1 \(letters\): environment letters: colour",
        ),
        (
            mixed({"name": "arithmetic"}, {"name": "letters", "version": "9"}),
            UnknownEnvironmentVersion,
            r"part 2 \(letters\): environment letters has no version '9' here",
        ),
        (
            mixed({"name": "math", "options": {"path": "/nowhere", "sha256": "0" * 64}}),
            BadDataset,
            r"part 1 \(math\): there is no data set /nowhere",
        ),
    ],
)
def test_a_part_that_can_not_be_loaded_is_named(
    options: dict[str, JsonValue], error: type[MusterError], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        load_environment("mixture", options=options)
    assert raised.value.hint
    assert str(raised.value) == raised.value.detail


def test_a_changed_part_refuses_the_recipes_version(write_rows: WriteRows) -> None:
    options = write_rows([row({"ground_truth": "7"})])
    version = version_of({"name": "math", "options": options})
    other = write_rows([row({"ground_truth": "8"})])
    with pytest.raises(UnknownEnvironmentVersion, match="was requested, but 1\\+mv"):
        load_environment("mixture", version=version, options=mixed({"name": "math", "options": other}))


def test_a_single_answer_beside_dialogues_is_a_dialogue_of_one_message() -> None:
    environment = load_environment("mixture", options=mixed({"name": "lookup"}, {"name": "letters"}))
    assert environment.is_dialogue
    assert not load_environment("mixture", options=LETTERS_AND_SUMS).is_dialogue
    lookup, letters = environment.prompt(0), environment.prompt(1)
    turns = environment.demonstration_turns(lookup) or ()
    assert len(turns) > 1
    assert turns == load_environment("lookup").demonstration_turns(load_environment("lookup").prompt(0))
    assert [tool.name for tool in environment.begin(lookup).tools] == ["get"]
    assert environment.demonstration_turns(letters) == [environment.demonstration(letters)]
    answer = load_environment("letters").prompt(0)
    right = "".join(sorted(answer.text[5:-1]))
    assert answer.text == letters.text == "sort:9694="
    for text, finished, task in [(right, True, 1.0), (right, False, 0.0), ("", True, 0.0)]:
        episode = environment.begin(letters)
        assert ([message.text for message in episode.opening], episode.tools) == ([letters.text], ())
        assert episode.reply(ModelMessage(text=text, finished=finished)) == Reply(done=True)
        assert episode.score().task == environment.score(letters, text, finished=finished).task == task


def test_several_parts_of_one_family_have_numbered_labels() -> None:
    found = parts_of("mixture", mixed({"name": "letters"}, {"name": "arithmetic"}, {"name": "letters"}))
    assert found.labels == ("letters-1", "arithmetic", "letters-2")
    assert found.names == ("letters", "arithmetic", "letters")


def test_another_environment_has_one_part() -> None:
    found = parts_of("letters", {"filler": True})
    assert (found.labels, found.part(12345), found.own_index(12345)) == (("letters",), 0, 12345)


def test_the_parts_of_a_recipe_are_known_without_its_data() -> None:
    digest = hashlib.sha256(b"a file that is not here").hexdigest()
    missing: dict[str, JsonValue] = {"name": "math", "options": {"path": "/nowhere", "sha256": digest}, "weight": 3}
    assert parts_of("mixture", mixed({"name": "letters"}, missing)).labels == ("letters", "math")
    with pytest.raises(BadOptions, match="environments: Field required"):
        parts_of("mixture", {})
