"""Examples for the warm-up: no held-out prompt, every candidate once per epoch, and no malformed row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.environments import is_held_out, load_environment
from rollouts.environments.validation import CheckedEnvironment
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.recipe import EnvironmentChoice, LengthTargets, PromptRange, Recipe, SamplingChoice
from tests.trainer.conftest import character_model
from trainer.errors import BadExamples
from trainer.models.characters import END, write_character_tokenizer
from trainer.sft.example_files import FileCorpus
from trainer.sft.examples import EnvironmentCorpus, Example, ExampleStream, epoch_order

LETTERS = load_environment("letters")
RECIPE = Recipe(
    environment=EnvironmentChoice(name="letters", version="1"),
    sampling=SamplingChoice(max_new_tokens=10),
    group_size=4,
    held_out=0.3,
    prompts=PromptRange(count=100),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FolderTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_character_tokenizer(folder, "abcdefghijklmnopqrstuvwxyz0123456789:=.")
    return FolderTokenizer(folder)


def corpus(
    tokenizer: FolderTokenizer, *, recipe: Recipe = RECIPE, environment: CheckedEnvironment = LETTERS
) -> EnvironmentCorpus:
    return EnvironmentCorpus(
        environment, recipe, tokenizer=tokenizer, model=character_model(), end=END, indices=range(50, 250)
    )


def test_examples_are_demonstrations_of_prompts_that_are_not_held_out(tokenizer: FolderTokenizer) -> None:
    held_out = 0
    for place, index in enumerate(range(50, 250)):
        prompt = LETTERS.prompt(index)
        example = corpus(tokenizer).example(place)
        if is_held_out(prompt, 0.3):
            held_out += 1
            assert example is None
        else:
            assert example is not None
            assert tokenizer.decode(example.prompt) == prompt.text
            assert tokenizer.decode(example.completion) == LETTERS.demonstration(prompt)
            assert example.completion[-1] == END
    assert 30 < held_out < 90


def test_target_lengths_of_a_recipe_appear_in_the_learned_prompts(tokenizer: FolderTokenizer) -> None:
    length = LengthTargets(targets=(1, 3, 5), alpha=0.1, template="{target}{prompt}")
    of_targets = corpus(tokenizer, recipe=RECIPE.model_copy(update={"length": length, "held_out": 0.0}))
    plain = [LETTERS.prompt(index).text for index in range(50, 250)]
    found = [tokenizer.decode(one.prompt) for place in range(200) if (one := of_targets.example(place))]
    assert {text[0] for text in found} == {"1", "3", "5"}
    assert [text[1:] for text in found] == plain


def test_a_demonstration_follows_the_target_length_of_its_prompt(tokenizer: FolderTokenizer) -> None:
    filled = load_environment("letters", options={"filler": True})
    length = LengthTargets(targets=(1, 7), alpha=0.1, template="{target}{prompt}")
    recipe = RECIPE.model_copy(update={"length": length, "held_out": 0.0})
    shown = EnvironmentCorpus(filled, recipe, tokenizer=tokenizer, model=character_model(), end=END, indices=range(400))
    kept: Counter[tuple[str, bool]] = Counter()
    for place in range(400):
        example = shown.example(place)
        assert example is not None
        wanted, answer = tokenizer.decode(example.prompt)[0], tokenizer.decode(example.completion)
        kept[wanted, len(answer) - len(answer.lstrip(".")) == int(wanted)] += 1
    for wanted in ("1", "7"):
        assert 0.25 < kept[wanted, True] / (kept[wanted, True] + kept[wanted, False]) < 0.6


def test_a_demonstration_that_the_tokenizer_cannot_encode_is_an_error(tmp_path: Path) -> None:
    write_character_tokenizer(tmp_path, "revsot:=0123456789")
    with pytest.raises(BadExamples, match="can't write the demonstration of prompt"):
        ExampleStream(corpus(FolderTokenizer(tmp_path)), seed=1, longest=64).take(50)


@given(st.integers(1, 300), st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_an_epoch_contains_every_candidate_once(count: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(count, seed=seed, epoch=epoch)) == list(range(count))


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = {tuple(epoch_order(50, seed=seed, epoch=epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


class Words:
    """A corpus in which some candidates are unusable and some are long."""

    def __len__(self) -> int:
        return 20

    def example(self, place: int) -> Example | None:
        return None if place % 5 == 0 else Example((place,), (1,) * (9 if place % 5 == 1 else 2))


def test_a_stream_resumes_where_another_stopped() -> None:
    whole = ExampleStream(Words(), seed=7, longest=100)
    first = whole.take(13)
    rest = whole.take(40)
    assert first + rest == ExampleStream(Words(), seed=7, longest=100).take(53)
    half = ExampleStream(Words(), seed=7, longest=100)
    half.take(13)
    assert ExampleStream(Words(), seed=7, longest=100, position=half.position).take(40) == rest


def test_long_examples_are_left_out_and_counted() -> None:
    stream = ExampleStream(Words(), seed=7, longest=5)
    assert {len(example.tokens) for example in stream.take(37)} == {3}
    assert 12 <= stream.left_out <= 16, "four in each of three epochs, and some of the fourth"


def test_a_corpus_without_any_example_ends_in_words() -> None:
    with pytest.raises(BadExamples, match="none of 20 candidates can be trained on"):
        ExampleStream(Words(), seed=7, longest=2).take(1)


ROWS = [{"prompt": "rev:ab=", "completion": "ba", "more": 1}, {"prompt": "sort:21=", "completion": "12", "more": 2}]


def as_json(path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def as_parquet(path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize(("write", "name"), [(as_json, "a.jsonl"), (as_parquet, "a.parquet")])
def test_json_lines_and_parquet_give_the_same_examples(
    write: Callable[[Path], Path], name: str, tmp_path: Path, tokenizer: FolderTokenizer
) -> None:
    rows = FileCorpus(write(tmp_path / name), tokenizer=tokenizer, end=END)
    found = [rows.example(place) for place in range(len(rows))]
    assert [tokenizer.decode(one.prompt) for one in found] == ["rev:ab=", "sort:21="]
    assert [tokenizer.decode(one.completion) for one in found] == ["ba", "12"]
    assert [one.completion[-1] for one in found] == [END, END]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "has no rows"),
        ("a.jsonl", b'{"prompt": "a", "completion": "b"}\n{"prompt": "a"\n', "row 2 is not JSON"),
        ("a.jsonl", b'{"prompt": "a"}\n', "row 1 has no text for prompt and completion"),
        ("a.jsonl", b'{"prompt": "a", "completion": 3}\n', "row 1 has no text"),
        ("a.jsonl", b'["a", "b"]\n', "row 1 has no text"),
        ("a.jsonl", b'{"prompt": "\\ud800", "completion": "b"}\n', "row 1 has text that is not Unicode"),
        ("a.jsonl", b"\xff\xfe\n", "row 1 is not JSON"),
        ("a.parquet", b"PAR1 no", "not a Parquet file of examples"),
        ("missing.jsonl", None, "can't be read: No such file"),
    ],
)
def test_a_malformed_example_file_is_refused_with_the_row(
    name: str, content: bytes | None, message: str, tmp_path: Path, tokenizer: FolderTokenizer
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadExamples, match=message):
        FileCorpus(tmp_path / name, tokenizer=tokenizer, end=END)


def test_an_empty_prompt_is_refused_with_its_row(tmp_path: Path, tokenizer: FolderTokenizer) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "", "completion": "b"}\n')
    with pytest.raises(BadExamples, match="prompt of row 1 has no tokens"):
        FileCorpus(tmp_path / "a.jsonl", tokenizer=tokenizer, end=END).example(0)
