"""`muster env`: listing and scoring environments, and a filter that survives being killed."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rollouts.environments import is_held_out, load_environment
from rollouts.recipe import (
    EnvironmentChoice,
    PromptRange,
    Recipe,
    SamplingChoice,
    eligible_prompts,
    read_recipe,
    write_recipe,
)
from tests.kit.devnet import run_muster
from tests.kit.tiny_model import tiny_folder

torch.set_num_threads(1)


def test_env_list_names_every_family_with_its_options() -> None:
    listed = {each["name"]: each for each in run_muster("env", "list", "--json").json()}
    assert listed["letters"]["version"] == "1"
    assert listed["arithmetic"]["options"] == "operations digits largest form answer"
    assert {"math", "code"} <= listed.keys()


def test_prompts_are_shown_with_the_full_version() -> None:
    shown = run_muster("env", "show", "letters", "-o", "filler=true", "--first", "1", "--count", "2", "--json").json()
    assert shown["version"].startswith("1+")
    assert shown["size"] is None
    assert [each["index"] for each in shown["prompts"]] == [1, 2]
    assert shown["prompts"][0]["text"] == "rev:znauvt="
    assert "rev:znauvt=" in run_muster("env", "show", "letters").out


@pytest.mark.parametrize(
    ("answer", "flags", "task"),
    [("4699", [], 1.0), ("4699", ["--unfinished"], 0.0), ("4699\n", [], 0.0), ("", [], 0.0)],
)
def test_an_answer_on_standard_input_is_scored(
    answer: str, flags: list[str], task: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert run_muster("env", "score", "letters", "0", "--json", *flags).json()["task"] == task


def test_an_answer_in_a_file_is_scored_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "answer"
    file.write_bytes(b"4699")
    assert run_muster("env", "score", "letters", "0", "--file", str(file), "--json").json()["task"] == 1.0
    file.write_bytes(b"\xff\xfe")
    assert run_muster("env", "score", "letters", "0", "--file", str(file), "--json").json()["task"] == 0.0


def test_a_dialogue_is_shown_and_played() -> None:
    shown = run_muster("env", "show", "lookup", "--first", "3", "--count", "1", "--json").json()["prompts"][0]
    assert ([tool["name"] for tool in shown["tools"]], shown["opening"][0]["text"]) == (["get"], "jz?")
    assert "get(j) → get(z) → 82" in run_muster("env", "show", "lookup", "--first", "3").out
    example = run_muster("env", "play", "lookup", "3", "--json").json()
    assert [turn["message"] for turn in example["turns"]] == shown["demonstration_turns"]
    assert example["score"] == {"task": 1.0, "answered": 1.0, "calls": 2.0}
    called = '{"name": "get", "arguments": {"key": "z"}}'
    played = run_muster("env", "play", "lookup", "3", called, "get(1)", "28", "--json").json()
    assert [[given["text"] for given in turn["replies"]] for turn in played["turns"]] == [["=2;"], ["=?;"], []]
    assert played["score"]["task"] == 0.0
    assert "=2;" in run_muster("env", "play", "lookup", "3", f"<tool_call>{called}</tool_call>").out


def test_messages_after_a_tools_limit_are_not_played() -> None:
    messages = ["python([0] * 10**10)", "python(1)", "2"]
    found = run_muster("env", "play", "python", "0", *messages)
    assert found.code == 0, found.err
    assert messages[0] in found.out
    assert messages[1] not in found.out
    said = " ".join(found.err.split())
    assert "score: task 0, calls 1, undecided 1" in said
    assert said.endswith("later messages were not played: 2")
    assert run_muster("env", "play", "python", "0", *messages, "--json").json()["not_played"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["play", "letters", "0"], "use `muster env score letters 0`"),
        (["play", "lookup", "0", "1", "2"], "the dialogue ends after 1 messages"),
        (["show", "leters"], "did you mean letters"),
        (["show", "letters", "-o", "filler"], "write key=value"),
        (["show", "letters", "-o", "colour=red"], "its options are: filler"),
        (["show", "letters", "--version", "9"], "no version '9'"),
        (["show", "math"], "path"),
        (["show", "math", "-o", "path=/nowhere", "-o", "sha256=" + "0" * 64], "there is no data set /nowhere"),
    ],
)
def test_a_mistake_is_reported_without_a_traceback(arguments: list[str], said: str) -> None:
    found = run_muster("env", *arguments)
    assert found.code == 1
    assert said in found.err


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a tiny model with a recipe."""
    folder = tiny_folder(tmp_path_factory.mktemp("version") / "weights")
    recipe = Recipe(
        environment=EnvironmentChoice(name="letters", version="1"),
        sampling=SamplingChoice(max_new_tokens=8),
        group_size=4,
        prompts=PromptRange(count=24),
    )
    write_recipe(folder, recipe)
    return folder


FLAGS = ["--samples", "4", "--least", "0", "--most", "1", "--block", "1", "--held-out", "0.3", "--dtype", "float32"]


def test_a_killed_filter_resumes_and_finds_the_same_prompts(version: Path, tmp_path: Path) -> None:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cli", "env", "filter", str(version), "--out", str(tmp_path / "killed"), *FLAGS]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=one_thread
    ) as process:
        assert process.stderr is not None
        told = next(line for line in process.stderr if "prompts measured" in line)
        process.kill()
    asked = int(told.split()[2])
    assert 8 < asked < 24  # some prompts are held out
    assert not (tmp_path / "killed" / "prompts.u64").exists()
    resumed = run_muster("env", "filter", str(version), "--out", str(tmp_path / "killed"), *FLAGS, "--json")
    whole = run_muster("env", "filter", str(version), "--out", str(tmp_path / "whole"), *FLAGS, "--json")
    assert resumed.json() == whole.json()
    assert whole.json()["kept"] == whole.json()["asked"] == asked
    for name in ("passes.jsonl", "recipe.json", "prompts.u64"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert read_recipe(tmp_path / "whole").environment.name == "letters"
    assert read_recipe(tmp_path / "whole").held_out == 0.3
    other = run_muster("env", "filter", str(version), "--out", str(tmp_path / "whole"), *FLAGS, "--samples", "2")
    assert other.code == 1
    assert "is from another measurement: samples differs" in other.err


def test_a_filter_excludes_the_prompts_that_its_recipe_holds_out(version: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(version, tmp_path / "version")
    write_recipe(folder, read_recipe(folder).model_copy(update={"held_out": 0.3}))
    flags = ["--samples", "1", "--least", "0", "--most", "1", "--block", "24"]
    found = run_muster("env", "filter", str(folder), "--out", str(tmp_path / "out"), *flags, "--json").json()
    recipe = read_recipe(tmp_path / "out")
    letters = load_environment("letters")
    expected = [index for index in range(24) if not is_held_out(letters.prompt(index), 0.3)]
    assert list(eligible_prompts(tmp_path / "out", recipe)) == expected
    assert (found["kept"], recipe.held_out) == (len(expected), 0.3)
    less = run_muster("env", "filter", str(folder), "--out", str(tmp_path / "less"), *flags, "--held-out", "0.2")
    assert less.code == 1
    assert "less than the recipe's held_out 0.3" in less.err


def test_a_filter_that_keeps_no_prompt_fails_and_keeps_its_journal(version: Path, tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--count", "2", "--samples", "1", "--least", "1", "--most", "1"]
    said = run_muster("env", "filter", str(version), *arguments)
    assert said.code == 1
    assert "widen the bounds" in said.err
    assert (tmp_path / "passes.jsonl").exists()
