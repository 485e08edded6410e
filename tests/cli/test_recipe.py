"""`muster recipe init`: a recipe that the trainer and the tasks accept, or a reason before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rollouts.environments import load_environment
from rollouts.models.chat import ChatFormat
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlanner
from rollouts.recipe import eligible_prompts, read_recipe
from tests.kit.devnet import run_muster
from tests.kit.tiny_model import CONTEXT, rewrite_json, tiny_folder
from trainer.policy.base_model import open_base

torch.set_num_threads(1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Returns a model without a recipe, with a context of 256 tokens."""
    return tiny_folder(tmp_path / "model")


def test_a_written_recipe_is_accepted_by_the_trainer_and_the_tasks(model: Path) -> None:
    shown = run_muster("recipe", "init", str(model), "--environment", "letters", "-o", "filler=true", "--json").json()
    assert (shown["context"], shown["max_new_tokens"], shown["max_prompt_tokens"]) == (CONTEXT, CONTEXT // 2, 64)
    assert shown["row_tokens"] == CONTEXT // 2 + 64
    recipe = read_recipe(model)
    assert recipe.environment.version.startswith("1+")
    assert (recipe.environment.options, recipe.chat, recipe.prompts.count) == ({"filler": True}, False, 20_000)
    assert open_base(model).recipe == recipe
    environment = load_environment("letters", version=recipe.environment.version, options=recipe.environment.options)
    planner = SlotPlanner(
        recipe=recipe,
        eligible=eligible_prompts(model, recipe),
        environment=environment,
        tokenizer=FolderTokenizer(model),
    )
    assert len(planner.plan(b"\7" * 32, groups=8).groups) == 8


def test_recipe_options_are_written_to_the_recipe(model: Path) -> None:
    options = ["--max-new-tokens", "9", "--max-prompt-tokens", "20", "--group-size", "4", "--held-out", "0.1"]
    prompts = ["--first", "5", "--count", "7", "--arithmetic", "vllm/bfloat16", "--temperature", "0.8"]
    run_muster("recipe", "init", str(model), "--environment", "letters", *options, *prompts)
    recipe = read_recipe(model)
    assert (recipe.sampling.max_new_tokens, recipe.max_prompt_tokens, recipe.group_size) == (9, 20, 4)
    assert (recipe.held_out, recipe.arithmetic, recipe.sampling.temperature) == (0.1, ("vllm/bfloat16",), 0.8)
    assert recipe.prompts.model_dump() == {"kind": "range", "first": 5, "count": 7}


def test_a_tokenizer_with_a_chat_template_gets_a_chat_recipe(model: Path) -> None:
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    rewrite_json(model / "tokenizer_config.json", chat_template=template)
    run_muster("recipe", "init", str(model), "--environment", "letters")
    assert read_recipe(model).chat
    run_muster("recipe", "init", str(model), "--environment", "letters", "--no-chat", "--force")
    assert not read_recipe(model).chat


def test_a_system_prompt_and_template_options_are_written(model: Path) -> None:
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}{{ mood }}"
    rewrite_json(model / "tokenizer_config.json", chat_template=template)
    options = ["--system-prompt", "be brief", "--template-option", "mood=glad"]
    assert run_muster("recipe", "init", str(model), "--environment", "letters", *options).code == 0
    written = json.loads((model / "recipe.json").read_text())
    assert written["chat"] == {"system": "be brief", "template": {"mood": "glad"}}
    assert open_base(model).recipe.chat == ChatFormat(system="be brief", template={"mood": "glad"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--environment", "leters"], "did you mean letters"),
        (["--environment", "letters", "--chat"], "the tokenizer has no chat template"),
        (["--environment", "letters", "--no-chat", "--system-prompt", "hi"], "--no-chat excludes"),
        (
            ["--environment", "letters", "--template-option", "tokenize=true"],
            "tokenize can't be an option",
        ),
        (["--environment", "letters", "--max-new-tokens", "250"], "has 12 tokens, and the limit is 6"),
        (["--environment", "letters", "--max-new-tokens", "256"], "exceed the model's context of 256"),
        (["--environment", "letters", "--max-prompt-tokens", "250"], "exceed the model's context of 256"),
        (["--environment", "letters", "--max-prompt-tokens", "3"], "and the limit is 3"),
        (["--environment", "letters", "--arithmetic", "cuda/int8"], "'cuda/int8' is not one of torch/float32"),
        (["--environment", "letters", "--temperature", "-1"], "sampling.temperature|temperature: "),
        (["--environment", "letters", "--first", str(2**63 - 2)], "is beyond the last index"),
    ],
)
def test_unsuitable_options_are_refused_and_no_recipe_is_written(model: Path, options: list[str], said: str) -> None:
    found = run_muster("recipe", "init", str(model), *options)
    assert found.code == 1
    assert any(part in found.err for part in said.split("|")), found.err
    assert not (model / "recipe.json").exists()


def test_a_folder_without_a_model_and_an_existing_recipe_are_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "config.json" in run_muster("recipe", "init", str(tmp_path / "empty"), "--environment", "letters").err
    (model / "recipe.json").write_text("mine")
    assert "--force" in run_muster("recipe", "init", str(model), "--environment", "letters").err
    assert (model / "recipe.json").read_text() == "mine"
