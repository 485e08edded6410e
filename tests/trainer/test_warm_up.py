"""A warm-up learns its examples, and gives the same weights after any number of interruptions."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import Conflict, MusterError
from rollouts.engines.opening import open_engine
from rollouts.environments import load_environment
from rollouts.errors import BadVersionFolder
from rollouts.models.facts import read_model
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from rollouts.recipe import read_recipe
from tests.kit.tiny_model import rewrite_json, tiny_folder
from tests.trainer.conftest import small
from trainer.errors import BadSettings, NotWritten, TrainingDiverged
from trainer.evaluator import Evaluator
from trainer.models.trainable import open_model
from trainer.presets import devnet_base, preset_file
from trainer.sft.examples import Example
from trainer.sft.gradients import add_gradients
from trainer.sft.settings import WarmUpSettings, check_settings, read_settings_file
from trainer.sft.state import STATE_FILE
from trainer.sft.warm_up import WarmUpStep, warm_up

CPU = torch.device("cpu")


class Killed(Exception):
    """Simulates a process that ends here."""


def run(settings: WarmUpSettings, target: Path, *, until: int | None = None) -> list[WarmUpStep]:
    """Runs a warm-up; dies once step `until` is reported."""
    told: list[WarmUpStep] = []

    def tell(done: WarmUpStep) -> None:
        told.append(done)
        if done.step == until:
            raise Killed

    with suppress(Killed):
        warm_up(settings, target, device=CPU, progress=tell)
    return told


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the result of the small warm-up without interruption."""
    target = tmp_path_factory.mktemp("unbroken") / "version"
    run(small(), target)
    return target


@pytest.mark.parametrize("stops", [(1,), (2,), (3, 5), (6,)])
def test_stopped_at_any_step_a_warm_up_ends_in_the_same_bits(
    stops: tuple[int, ...], unbroken: Path, tmp_path: Path
) -> None:
    for stop in stops:
        run(small(), tmp_path / "version", until=stop)
    done = run(small(), tmp_path / "version")
    assert len(done) <= 6 - 2 * ((stops[-1]) // 2), "saved steps are not repeated"
    assert weights(tmp_path / "version") == weights(unbroken)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version"]


PROGRAM = """
import sys
from pathlib import Path
import torch
from trainer.sft.settings import WarmUpSettings
from trainer.sft.warm_up import warm_up

def tell(done):
    if done.step == 5:
        print("five steps", flush=True)
        sys.stdin.read()

torch.set_num_threads(1)
settings = WarmUpSettings.model_validate_json(sys.argv[1])
warm_up(settings, Path(sys.argv[2]), device=torch.device("cpu"), progress=tell)
"""


def test_killed_by_a_signal_a_warm_up_ends_in_the_same_bits_in_another_process(unbroken: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, small().model_dump_json(), str(tmp_path / "version")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "five steps\n"
        process.kill()
    assert [done.step for done in run(small(), tmp_path / "version")] == [5, 6]
    assert weights(tmp_path / "version") == weights(unbroken)


def test_after_an_interruption_at_the_very_end_only_cleaning_up_is_left(unbroken: Path, tmp_path: Path) -> None:
    run(small(), tmp_path / "other", until=6)
    (tmp_path / "version.training").mkdir()
    for path in (tmp_path / "other.training").iterdir():
        path.rename(tmp_path / "version.training" / path.name)
    (tmp_path / "version").mkdir()
    (tmp_path / "version" / "model.safetensors").write_bytes(weights(unbroken))
    assert run(small(), tmp_path / "version") == []
    assert not (tmp_path / "version.training").exists()
    assert weights(tmp_path / "version") == weights(unbroken)


def test_a_refused_warm_up_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(MusterError):
        warm_up(small(start={"folder": tmp_path / "nothing"}), tmp_path / "version", device=CPU)
    assert list(tmp_path.iterdir()) == []


def test_unfinished_work_is_not_resumed_under_other_settings(tmp_path: Path) -> None:
    run(small(), tmp_path / "version", until=2)
    with pytest.raises(Conflict, match="optimiser, steps differs"):
        warm_up(small(steps=7, optimiser={"learning_rate": 1e-3}, checkpoint_every=1), tmp_path / "version", device=CPU)


def test_an_existing_target_folder_is_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "version").mkdir()
    (tmp_path / "version" / "precious").write_text("mine")
    with pytest.raises(Conflict, match="already exists"):
        warm_up(small(), tmp_path / "version", device=CPU)
    assert [path.name for path in tmp_path.iterdir()] == ["version"]


def test_equal_seeds_give_equal_versions_and_other_seeds_do_not(unbroken: Path, tmp_path: Path) -> None:
    run(small(), tmp_path / "same")
    run(small(seed=4), tmp_path / "other")
    assert version_digest(folder_files(tmp_path / "same")) == version_digest(folder_files(unbroken))
    assert weights(tmp_path / "other") != weights(unbroken)


def test_intermediate_evaluations_do_not_change_the_result(unbroken: Path, tmp_path: Path) -> None:
    told = run(small(evaluation={"prompts": 4, "every": 2, "samples": 2}), tmp_path / "version")
    assert [done.step for done in told if done.evaluation is not None] == [2, 4]
    assert weights(tmp_path / "version") == weights(unbroken)


def test_weights_can_be_stored_in_bfloat16(unbroken: Path, tmp_path: Path) -> None:
    run(small(dtype="bfloat16"), tmp_path / "version")
    halved, whole = (load_file(folder / "model.safetensors") for folder in (tmp_path / "version", unbroken))
    assert all(torch.equal(halved[name], whole[name].bfloat16()) for name in whole)
    assert read_model(tmp_path / "version").config["dtype"] == "bfloat16"


def test_the_devnets_preset_learns_from_its_first_steps(tmp_path: Path) -> None:
    values = read_settings_file(preset_file("devnet"))
    changed = values | {"steps": 10, "examples_per_step": 48, "evaluation": {"prompts": 0}}
    told = run(check_settings(changed, source="devnet"), tmp_path / "version")
    assert told[0].loss == pytest.approx(np.log(64), abs=0.2), "an untrained model is uncertain among 64 tokens"
    assert told[-1].loss < told[0].loss - 0.4


def test_the_length_preset_learns_full_stops_from_the_devnets_base(tmp_path: Path) -> None:
    values = read_settings_file(preset_file("devnet-length"))
    start = {"kind": "folder", "folder": devnet_base()}
    changed = values | {"steps": 20, "examples_per_step": 48, "evaluation": {"prompts": 0}, "start": start}
    told = run(check_settings(changed, source="devnet-length"), tmp_path / "version")
    assert told[0].loss > 2.0, "the base has never seen a full stop"
    assert told[-1].loss < told[0].loss - 0.8


def test_a_model_trained_on_answers_reproduces_them(tmp_path: Path) -> None:
    environment = {"name": "arithmetic", "version": load_environment("arithmetic", options={"digits": 1}).version}
    recipe = {"environment": environment | {"options": {"digits": 1}}, "held_out": 0.0, "count": 24}
    settings = small(
        start=small().start.model_dump() | {"characters": "0123456789+-*="},
        examples={"kind": "environment", "count": 24},
        recipe=small().recipe.model_dump() | recipe,  # type: ignore[union-attr] # it has one
        steps=80,
        examples_per_step=24,
        checkpoint_every=1000,
        optimiser={"learning_rate": 1e-2, "warm_up_steps": 5},
    )
    run(settings, tmp_path / "untrained", until=1)
    run(settings, tmp_path / "trained")
    untrained = tmp_path / "untrained.training" / "start"
    assert greedy_accuracy(tmp_path / "trained", recipe_of=tmp_path / "trained") >= 0.8
    assert greedy_accuracy(untrained, recipe_of=tmp_path / "trained") <= 0.2


def greedy_accuracy(folder: Path, *, recipe_of: Path) -> float:
    recipe = read_recipe(recipe_of)
    environment = load_environment(recipe.environment.name, options=recipe.environment.options)
    evaluator = Evaluator(
        environment=environment, recipe=recipe, tokenizer=FolderTokenizer(folder), indices=range(24), samples=0
    )
    engine = open_engine(EngineName.TORCH, dtype=Dtype.FLOAT32, device="cpu")
    engine.load(folder, version=version_digest(folder_files(folder)))
    return evaluator.evaluate(engine).greedy


def test_the_gradient_is_that_of_the_mean_over_learned_tokens_in_any_packing(llama: Path) -> None:
    rng = np.random.default_rng(2)
    examples = [
        Example(tuple(rng.integers(4, 60, size=prompt)), tuple(rng.integers(4, 60, size=completion)), frozenset(given))
        for prompt, completion, given in ((3, 5, ()), (1, 9, (2, 3, 6)), (12, 1, ()), (7, 7, (0,)), (2, 4, ()))
    ]
    model, _ = open_model(llama, device=CPU)
    learned = sum(len(example.completion) - len(example.given) for example in examples)
    plain = torch.zeros(())
    for example in examples:
        logprobs = model(input_ids=torch.tensor([example.tokens])).logits[0].log_softmax(-1)
        first = len(example.prompt)
        for at, token in enumerate(example.completion):
            if at not in example.given:
                plain = plain - logprobs[first + at - 1, token]
    (plain / learned).backward()  # type: ignore[no-untyped-call]
    expected = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    for row_tokens, rows_at_once in ((64, 8), (16, 1), (20, 2)):
        model.zero_grad()
        loss = add_gradients(model, examples, row_tokens=row_tokens, rows_at_once=rows_at_once)
        assert loss == pytest.approx(float(plain.detach()) / learned, rel=1e-5)
        for name, value in model.named_parameters():
            torch.testing.assert_close(value.grad, expected[name], rtol=1e-3, atol=1e-6)


def test_steps_with_nan_are_skipped_and_then_end_the_warm_up(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "broken", kind="llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][5] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    before = weights(folder)
    told: list[WarmUpStep] = []
    with pytest.raises(
        TrainingDiverged, match="4 steps in a row had a NaN or infinite loss or gradient, the last in step 4: loss nan"
    ):
        warm_up(
            small(start={"kind": "folder", "folder": folder}), tmp_path / "version", device=CPU, progress=told.append
        )
    assert [done.skipped for done in told] == [1, 2, 3]
    assert weights(folder) == before
    assert not (tmp_path / "version").exists()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limits the size of any file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_no_checkpoint(unbroken: Path, tmp_path: Path) -> None:
    run(small(), tmp_path / "version", until=3)
    state = tmp_path / "version.training" / STATE_FILE
    before = state.read_bytes()
    with largest_file(len(before) // 2), pytest.raises(NotWritten, match=r"state\.safetensors can't be written"):
        warm_up(small(), tmp_path / "version", device=CPU)
    assert state.read_bytes() == before
    assert [path.name for path in state.parent.glob(".*")] == []
    run(small(), tmp_path / "version")
    assert weights(tmp_path / "version") == weights(unbroken)


def test_a_disk_that_fills_while_the_version_is_written_leaves_no_version(unbroken: Path, tmp_path: Path) -> None:
    run(small(), tmp_path / "version", until=6)
    with largest_file(len(weights(unbroken)) // 2), pytest.raises(NotWritten, match="version can't be written"):
        warm_up(small(), tmp_path / "version", device=CPU)
    assert [path.name for path in tmp_path.iterdir()] == ["version.training"]
    run(small(), tmp_path / "version")
    assert weights(tmp_path / "version") == weights(unbroken)


def test_a_truncated_state_is_reported(tmp_path: Path) -> None:
    run(small(), tmp_path / "version", until=2)
    state = tmp_path / "version.training" / STATE_FILE
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(Conflict, match="is not a warm-up's state"):
        warm_up(small(), tmp_path / "version", device=CPU)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "start", kind="llama", vocab_size=40)
    with pytest.raises(BadVersionFolder, match="the tokenizer has token 58, but the model has only 40"):
        warm_up(small(start={"kind": "folder", "folder": folder}), tmp_path / "version", device=CPU)


def test_chat_template_and_end_tokens_are_copied(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "start"
    folder.mkdir()
    for path in llama.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    rewrite_json(folder / "generation_config.json", eos_token_id=[1, 7])
    run(small(start={"kind": "folder", "folder": folder}, steps=1), tmp_path / "version")
    assert (tmp_path / "version" / "chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"
    assert read_model(tmp_path / "version").end_tokens == {1, 7}


SCRATCH = small().start.model_dump()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_tokens": 65}, "rows have 65 tokens, and the model's context is 64"),
        ({"start": SCRATCH | {"model_type": "no-such"}}, "no no-such model has this config"),
        ({"start": SCRATCH | {"characters": "aa"}}, "'a' occurs twice"),
        ({"examples": {"kind": "environment"}}, "letters has infinitely many prompts"),
        ({"recipe": None}, "need a recipe that names the environment"),
        ({"steps": 0}, "steps: Input should be greater than or equal to 1"),
        ({"learning_rate": 1}, "learning_rate: Extra inputs are not permitted"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=message):
        warm_up(small(**changes), tmp_path / "version", device=CPU)


def test_an_unknown_environment_is_refused_before_any_work(tmp_path: Path) -> None:
    recipe = small().recipe.model_dump() | {"environment": {"name": "lettres", "version": "1"}}  # type: ignore[union-attr]
    with pytest.raises(MusterError, match="no environment called 'lettres'"):
        warm_up(small(recipe=recipe), tmp_path / "version", device=CPU)
