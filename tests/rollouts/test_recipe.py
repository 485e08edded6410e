"""A version's recipe: generator and validator read the same values, or it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from rollouts.errors import BadVersionFolder
from rollouts.precision import Arithmetic
from rollouts.recipe import (
    PAIRS,
    PROMPTS_FILE,
    RECIPE_FILE,
    EnvironmentChoice,
    LengthTargets,
    PromptRange,
    PromptTable,
    Recipe,
    SamplingChoice,
    eligible_prompts,
    read_recipe,
    write_recipe,
)

BEFORE = """{
  "format": 2,
  "environment": {
    "name": "letters",
    "version": "1",
    "options": {}
  },
  "sampling": {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "max_new_tokens": 16
  },
  "group_size": 4,
  "max_prompt_tokens": 4096,
  "chat": false,
  "length": null,
  "held_out": 0.0,
  "prompts": {
    "kind": "range",
    "first": 10,
    "count": 5
  }
}
"""
"""A recipe as written before recipes could name an arithmetic."""


def recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "environment": EnvironmentChoice(name="letters", version="1"),
        "sampling": SamplingChoice(max_new_tokens=16),
        "group_size": 4,
        "prompts": PromptRange(first=10, count=5),
    }
    return Recipe(**{**values, **changes})


def test_a_recipe_is_read_back_as_written(tmp_path: Path) -> None:
    written = recipe(length=LengthTargets(targets=(1, 3), alpha=0.1, template="{prompt} in {target}"))
    write_recipe(tmp_path, written)
    assert read_recipe(tmp_path) == written
    assert list(eligible_prompts(tmp_path, written)) == [10, 11, 12, 13, 14]
    assert written.units_per_group == 64


@given(indices=st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=50))
def test_a_prompt_table_is_read_back_as_written(tmp_path_factory: pytest.TempPathFactory, indices: set[int]) -> None:
    folder = tmp_path_factory.mktemp("version")
    written = recipe(prompts=PromptTable(count=len(indices)))
    write_recipe(folder, written, eligible=sorted(indices))
    assert list(eligible_prompts(folder, read_recipe(folder))) == sorted(indices)


def test_a_prompt_table_in_memory_does_not_change_with_the_file(tmp_path: Path) -> None:
    """Other tasks can write to the shared volume; a mapped table would change, or end the process when truncated."""
    written = recipe(prompts=PromptTable(count=3))
    write_recipe(tmp_path, written, eligible=(1, 2, 3))
    eligible = eligible_prompts(tmp_path, written)
    (tmp_path / PROMPTS_FILE).write_bytes(b"\xff" * 8)
    assert list(eligible) == [1, 2, 3]


@pytest.mark.parametrize("eligible", [(), (1,), (2, 1), (1, 1), (1, 2, 3)])
def test_an_inconsistent_prompt_table_is_not_written(tmp_path: Path, eligible: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput):
        write_recipe(tmp_path, recipe(prompts=PromptTable(count=2)), eligible=eligible)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "table",
    [
        None,
        b"",
        b"\1" * 15,
        b"\1" * 24,
        (2).to_bytes(8, "little") + (1).to_bytes(8, "little"),
        b"\0" * 16,
        b"\xff" * 16,
    ],
)
def test_a_broken_prompt_table_is_refused(tmp_path: Path, table: bytes | None) -> None:
    if table is not None:
        (tmp_path / PROMPTS_FILE).write_bytes(table)
    with pytest.raises(BadVersionFolder):
        eligible_prompts(tmp_path, recipe(prompts=PromptTable(count=2)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        " " * 300_000,
        recipe().model_dump_json().replace('"format":2', '"format":3'),
        recipe(held_out=0.5).model_dump_json().replace('"held_out":0.5', '"held_out":0.995'),
        recipe().model_dump_json().replace('"temperature":1.0', '"temperature":0'),
        recipe().model_dump_json().replace('"temperature":1.0', '"temperature":NaN'),
        recipe().model_dump_json().replace('"top_p":1.0', '"top_p":1.5'),
        recipe().model_dump_json().replace('"group_size":4', '"group_size":0'),
        recipe().model_dump_json().replace('"group_size":4', '"group_size":4,"min_tokens":3'),
        recipe().model_dump_json().replace('"first":10', '"first":9223372036854775807'),
    ],
)
def test_a_broken_recipe_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / RECIPE_FILE).write_text(text)
    with pytest.raises(BadVersionFolder, match="recipe"):
        read_recipe(tmp_path)


def test_a_recipe_of_format_1_is_refused_with_instructions(tmp_path: Path) -> None:
    """Its slots drew other prompts: under the rules of format 2, honest work would look forged."""
    (tmp_path / RECIPE_FILE).write_text(BEFORE.replace('"format": 2', '"format": 1'))
    with pytest.raises(BadVersionFolder, match="format") as refused:
        read_recipe(tmp_path)
    assert "set format to 2" in str(refused.value.hint)


def test_the_arithmetic_of_a_recipe_is_kept_and_decides_which_pairs_are_paid(tmp_path: Path) -> None:
    written = recipe(arithmetic=("torch/float32", "vllm/bfloat16"))
    write_recipe(tmp_path, written)
    assert read_recipe(tmp_path) == written
    assert [name for name in PAIRS if written.takes(Arithmetic.parse(name))] == ["torch/float32", "vllm/bfloat16"]


def test_without_arithmetic_a_recipe_takes_float32_and_its_bytes_are_unchanged(tmp_path: Path) -> None:
    """The version's digest is on ledgers, so a field without a value must not change it."""
    write_recipe(tmp_path, recipe())
    text = (tmp_path / RECIPE_FILE).read_text()
    assert "arithmetic" not in text
    assert text == BEFORE
    read = read_recipe(tmp_path)
    assert (
        [name for name in PAIRS if read.takes(Arithmetic.parse(name))]
        == list(read.taken)
        == ["torch/float32", "vllm/float32"]
    )


@pytest.mark.parametrize(
    ("arithmetic", "words"),
    [
        ('["torch/float16"]', "dtype: Input should be 'float32' or 'bfloat16'"),
        ('["torch"]', "is neither ENGINE/TYPE nor a numerics class"),
        ('["torch/float32", "torch/float32"]', "named twice"),
        ('"torch/float32"', "valid array"),
        ('["' + "x" * 100 + '"]', "at most 64"),
    ],
    ids=["unknown type", "no type", "twice", "no list", "long"],
)
def test_an_unknown_arithmetic_is_refused(tmp_path: Path, arithmetic: str, words: str) -> None:
    """A misspelt name would otherwise pay for no work."""
    text = recipe().model_dump_json().replace('"group_size":4', f'"group_size":4,"arithmetic":{arithmetic}')
    (tmp_path / RECIPE_FILE).write_text(text)
    with pytest.raises(BadVersionFolder, match=words):
        read_recipe(tmp_path)


def test_a_folder_without_a_recipe_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadVersionFolder, match="No such file"):
        read_recipe(tmp_path)
