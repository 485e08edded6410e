"""The difficulty filter: the prompts it keeps, resuming after a kill, and separate measurements."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from protocol.errors import Conflict, InvalidInput
from protocol.identifiers import digest
from rollouts.authoring.difficulty_filter import Bounds, DifficultyFilter, write_eligible
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import Engine
from rollouts.engines.torch.engine import TorchEngine
from rollouts.environments import Prompt, Score, load_environment
from rollouts.environments.pass_rate_journal import PassJournal, PromptPasses
from rollouts.environments.validation import CheckedEnvironment
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype
from rollouts.recipe import EnvironmentChoice, PromptRange, Recipe, SamplingChoice, eligible_prompts, read_recipe
from tests.kit.dialogues import REPLIES, dialogue_recipe, talking_folder

RECIPE = Recipe(
    environment=EnvironmentChoice(name="arithmetic", version="1", options={"digits": 1, "operations": ["+"]}),
    sampling=SamplingChoice(max_new_tokens=2),
    group_size=2,
    max_prompt_tokens=16,
    prompts=PromptRange(count=50),
)
CANDIDATES = range(10)


@pytest.fixture(scope="module")
def engine(qwen2: Path) -> Engine:
    """Returns a tiny model, loaded once."""
    found = TorchEngine(dtype=Dtype.FLOAT32)
    found.load(qwen2, version=digest(bytes(32)))
    return found


@pytest.fixture
def of_letters(engine: Engine, qwen2: Path) -> DifficultyFilter:
    """Returns a filter with two answers to each prompt, four prompts at a time."""
    choice = RECIPE.environment
    environment = load_environment(choice.name, version=choice.version, options=choice.options)
    return DifficultyFilter(
        environment=environment, engine=engine, tokenizer=FolderTokenizer(qwen2), recipe=RECIPE, samples=2, block=4
    )


def test_an_interrupted_and_resumed_run_gives_the_same_journal(of_letters: DifficultyFilter, tmp_path: Path) -> None:
    whole = PassJournal(tmp_path / "whole", of_letters.measured(CANDIDATES))
    list(of_letters.run(CANDIDATES, whole))
    assert [each.prompt for each in whole.passes] == list(CANDIDATES)

    path = tmp_path / "parts"
    first = PassJournal(path, of_letters.measured(CANDIDATES))
    next(of_letters.run(CANDIDATES, first))
    first.close()
    with path.open("ab") as file:
        file.write(b'{"block":1,"passes":[{"prompt":4,')  # killed in the middle of a line
    second = PassJournal(path, of_letters.measured(CANDIDATES))
    assert [each.prompt for each in second.passes] == [0, 1, 2, 3]
    list(of_letters.run(CANDIDATES, second))
    assert second.passes == whole.passes
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


def test_dialogues_are_measured_alike_in_any_batch(tmp_path: Path) -> None:
    folder = talking_folder(tmp_path / "model")
    found = []
    for max_batch in (64, 3):
        engine = TorchEngine(dtype=Dtype.FLOAT32, max_batch=max_batch)
        engine.load(folder, version=digest(bytes(32)))
        measuring = DifficultyFilter(
            environment=REPLIES,
            engine=engine,
            tokenizer=FolderTokenizer(folder),
            recipe=dialogue_recipe(),
            samples=4,
            block=4,
        )
        journal = PassJournal(tmp_path / str(max_batch), measuring.measured(range(8)))
        list(measuring.run(range(8), journal))
        found.append(journal.passes)
    assert found[0] == found[1]
    assert {each.samples for each in found[0]} == {4}
    assert 0 < sum(each.solved for each in found[0]) < 32


class EvenLengths:
    """An environment solved by any answer with an even number of characters, which random weights sometimes give."""

    name, version = "even-lengths", "1"

    def size(self) -> int | None:
        return None

    def prompt(self, index: int) -> Prompt:
        return Prompt(index=index, text=f"{index}=")

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        return Score(task=float(len(completion) % 2 == 0), parts={"undecided": float(len(completion) == 1)})

    def demonstration(self, prompt: Prompt) -> str | None:
        return None


def test_the_filter_counts_answers_that_solve_the_prompt(engine: Engine, qwen2: Path, tmp_path: Path) -> None:
    recipe = RECIPE.model_copy(update={"sampling": SamplingChoice(max_new_tokens=3)})
    counting = DifficultyFilter(
        environment=CheckedEnvironment("even-lengths", "1", EvenLengths()),
        engine=engine,
        tokenizer=FolderTokenizer(qwen2),
        recipe=recipe,
        samples=16,
        block=2,
    )
    journal = PassJournal(tmp_path / "journal", counting.measured([5, 90]))
    list(counting.run([5, 90], journal))
    assert [each.prompt for each in journal.passes] == [5, 90]
    assert all(0 < each.solved < each.samples == 16 for each in journal.passes)
    assert all(0 < each.undecided <= each.samples - each.solved for each in journal.passes)


def test_a_prompt_that_is_too_long_is_noted_and_the_others_are_measured(
    engine: Engine, qwen2: Path, tmp_path: Path
) -> None:
    recipe = RECIPE.model_copy(update={"max_prompt_tokens": 4})
    environment = load_environment("arithmetic", options={"digits": 2})
    short = DifficultyFilter(
        environment=environment, engine=engine, tokenizer=FolderTokenizer(qwen2), recipe=recipe, samples=1, block=8
    )
    journal = PassJournal(tmp_path / "journal", short.measured(range(8)))
    list(short.run(range(8), journal))
    lengths = [len(environment.prompt(index).text) for index in range(8)]
    assert [each.samples for each in journal.passes] == [int(length <= 4) for length in lengths]
    assert len(set(lengths)) > 1
    assert all(each.rate is None for each in journal.passes if each.samples == 0)


def test_a_prompt_beyond_the_models_context_does_not_stop_the_block(
    engine: Engine, qwen2: Path, tmp_path: Path
) -> None:
    recipe = RECIPE.model_copy(update={"sampling": SamplingChoice(max_new_tokens=251), "max_prompt_tokens": 64})
    environment = load_environment("arithmetic", options={"digits": 2})
    near = DifficultyFilter(
        environment=environment, engine=engine, tokenizer=FolderTokenizer(qwen2), recipe=recipe, samples=1, block=3
    )
    lengths = [len(environment.prompt(index).text) for index in range(3)]
    journal = PassJournal(tmp_path / "journal", near.measured(range(3)))
    list(near.run(range(3), journal))
    assert [each.samples for each in journal.passes] == [int(length + 251 <= 256) for length in lengths]


def test_a_stopped_filter_keeps_only_complete_blocks(
    engine: Engine, qwen2: Path, tmp_path: Path, of_letters: DifficultyFilter
) -> None:
    stopping = DifficultyFilter(
        environment=of_letters.environment,
        engine=engine,
        tokenizer=FolderTokenizer(qwen2),
        recipe=RECIPE,
        should_stop=lambda: True,
    )
    journal = PassJournal(tmp_path / "journal", stopping.measured(CANDIDATES))
    with pytest.raises(GenerationStopped):
        list(stopping.run(CANDIDATES, journal))
    assert journal.passes == []


def test_a_journal_of_another_measurement_is_refused(of_letters: DifficultyFilter, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    measured = of_letters.measured(CANDIDATES)
    PassJournal(path, measured).close()
    with pytest.raises(Conflict, match="candidates differs"):
        PassJournal(path, of_letters.measured(range(11)))
    with pytest.raises(Conflict, match="model, samples differs"):
        PassJournal(path, measured.model_copy(update={"model": "0x01", "samples": 3}))
    assert measured.arithmetic == "torch/float32"
    with pytest.raises(Conflict, match="arithmetic differs"):
        PassJournal(path, measured.model_copy(update={"arithmetic": "torch/bfloat16"}))
    PassJournal(path, measured).close()


def test_two_filters_cannot_write_one_journal(of_letters: DifficultyFilter, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = PassJournal(path, of_letters.measured(CANDIDATES))
    content = path.read_bytes()
    with pytest.raises(Conflict, match="another process is writing"):
        PassJournal(path, of_letters.measured(CANDIDATES))
    assert path.read_bytes() == content
    first.close()
    PassJournal(path, of_letters.measured(CANDIDATES)).close()


def test_a_full_disk_is_reported_and_costs_one_block(of_letters: DifficultyFilter, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = PassJournal(path, of_letters.measured(CANDIDATES))
    whole = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with _no_larger_files_than(len(whole) + 10, limits):
        with pytest.raises(OSError, match="journal"):
            journal.add([PromptPasses(prompt=0, samples=2)])
        with suppress(OSError):
            journal.close()
    assert path.read_bytes() != whole
    again = PassJournal(path, of_letters.measured(CANDIDATES))
    assert (again.blocks, path.read_bytes()) == (0, whole)
    again.close()


@contextmanager
def _no_larger_files_than(size: int, limits: tuple[int, int]) -> Iterator[None]:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize(
    "content",
    [
        b"text\n",
        b"{}\n",
        b'{"block":0,"passes":[]}\n',
        b"MEASURED{\n",
        b'MEASURED{"block":1,"passes":[]}\n',
        b"my notes",
    ],
)
def test_a_file_that_is_no_journal_is_refused_and_unchanged(
    content: bytes, of_letters: DifficultyFilter, tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    measured = of_letters.measured(CANDIDATES)
    content = content.replace(b"MEASURED", measured.model_dump_json().encode() + b"\n")
    path.write_bytes(content)
    with pytest.raises(InvalidInput):
        PassJournal(path, measured)
    assert path.read_bytes() == content


def test_a_truncated_journal_keeps_its_complete_blocks(of_letters: DifficultyFilter, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    measured = of_letters.measured(CANDIDATES)
    journal = PassJournal(path, measured)
    blocks = [
        [PromptPasses(prompt=2 * number, samples=2), PromptPasses(prompt=2 * number + 1, samples=2)]
        for number in range(3)
    ]
    sizes = [path.stat().st_size]
    for block in blocks:
        journal.add(block)
        sizes.append(path.stat().st_size)
    journal.close()
    content = path.read_bytes()
    near = {size + offset for size in sizes for offset in (-1, 0, 1)} & {*range(len(content))}
    for cut in sorted({*range(0, len(content), 61), *near}):
        path.write_bytes(content[:cut])
        left = PassJournal(path, measured)
        assert left.blocks == max(sum(size <= cut for size in sizes) - 1, 0)
        left.close()
        assert path.stat().st_size == max([size for size in sizes if size <= cut], default=sizes[0])


@pytest.mark.parametrize(
    ("solved", "samples", "kept"),
    [(0, 8, False), (1, 8, True), (4, 8, True), (5, 8, False), (8, 8, False), (0, 0, False)],
)
def test_prompts_within_the_bounds_inclusive_are_kept(solved: int, samples: int, kept: bool) -> None:
    assert Bounds().keep(PromptPasses(prompt=0, solved=solved, samples=samples)) is kept


@pytest.mark.parametrize(("least", "most"), [(0.5, 0.1), (-0.1, 0.5), (0.1, 1.1)])
def test_impossible_bounds_are_refused(least: float, most: float) -> None:
    with pytest.raises(InvalidInput):
        Bounds(least=least, most=most)


def test_eligible_prompts_are_written_as_a_table_of_the_version(tmp_path: Path) -> None:
    passes = [
        PromptPasses(prompt=index, solved=solved, samples=4) for index, solved in ((9, 1), (3, 2), (5, 4), (7, 0))
    ]
    assert write_eligible(tmp_path, RECIPE, passes, Bounds(least=0.25, most=0.5)) == 2
    recipe = read_recipe(tmp_path)
    assert list(eligible_prompts(tmp_path, recipe)) == [3, 9]
    assert recipe.environment == RECIPE.environment


def test_an_empty_table_of_eligible_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none of 1 prompts was solved in 12\.5% to 50\.0%"):
        write_eligible(tmp_path, RECIPE, [PromptPasses(prompt=0, solved=4, samples=4)], Bounds())
