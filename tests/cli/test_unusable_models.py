"""Models, recipes and environments that can't be used: each command says so in one sentence before anything starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from rollouts.environments import check
from rollouts.recipe import RECIPE_FILE
from tests.kit.devnet import Said, run_muster
from tests.kit.faulty_environment import faulty_environment
from tests.kit.tiny_model import rewrite_json
from trainer.presets import devnet_base

__all__ = ["faulty_environment"]

COMMANDS = {
    "init": ("recipe", "init", "--force"),
    "try": ("trainer", "try", "--device", "cpu"),
    "devnet": ("devnet", "--plain", "--runtime", "process", "--model"),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Returns a copy of a shipped model with its recipe."""
    folder = tmp_path / "model"
    shutil.copytree(devnet_base(), folder)
    return folder


def run(command: str, folder: Path, *options: str) -> Said:
    """Runs a command on a model; a devnet uses a folder beside it."""
    more = ("--directory", str(folder.with_name("net"))) if command == "devnet" else ()
    return run_muster(*COMMANDS[command], str(folder), *options, *more)


def check_refused(said: Said, folder: Path, words: str, hint: str) -> None:
    """Checks that there is one error with a hint, that nothing was started, and that nothing was generated."""
    printed = " ".join(said.err.split())
    assert said.code == 1, said.out + said.err
    assert words in printed, printed
    assert hint in printed, printed
    assert printed.count("error:") == 1
    assert "Traceback" not in printed
    assert "evaluating" not in printed
    assert said.out == ""
    assert not folder.with_name("net").exists()


def other_architecture(folder: Path) -> None:
    rewrite_json(folder / "config.json", model_type="bert")


def short_context(folder: Path) -> None:
    rewrite_json(folder / "config.json", max_position_embeddings=16)


def shorter_than_an_answer(folder: Path) -> None:
    rewrite_json(folder / "config.json", max_position_embeddings=8)


def chat_of_another_tokenizer(folder: Path) -> None:
    rewrite_json(folder / RECIPE_FILE, chat=True)


def lengths_of_another_tokenizer(folder: Path) -> None:
    rewrite_json(folder / RECIPE_FILE, max_prompt_tokens=4)


def no_recipe(folder: Path) -> None:
    (folder / RECIPE_FILE).unlink()


@pytest.mark.parametrize("command", ["try", "devnet"])
@pytest.mark.parametrize(
    ("spoil", "words", "hint"),
    [
        (other_architecture, "is of type bert, which is not supported", "full attention"),
        (short_context, "exceed the model's context of 16", "muster recipe init"),
        (shorter_than_an_answer, "answers of 12 tokens exceed the model's context of 8", "muster recipe init"),
        (chat_of_another_tokenizer, "the recipe asks for a chat", "muster recipe init"),
        (lengths_of_another_tokenizer, "tokens with this tokenizer, but the recipe allows 4", "muster recipe init"),
        (no_recipe, "has no recipe.json", "--environment NAME"),
    ],
)
def test_a_folder_that_does_not_suit_its_recipe_is_refused(
    command: str, spoil: Callable[[Path], None], words: str, hint: str, model: Path
) -> None:
    spoil(model)
    check_refused(run(command, model), model, words, hint)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_an_unsupported_architecture_is_refused_with_an_environment_too(command: str, model: Path) -> None:
    other_architecture(model)
    said = run(command, model, "--environment", "letters")
    check_refused(said, model, "is of type bert, which is not supported", "full attention")


def test_a_chat_without_a_template_is_refused_and_plain_text_is_not(model: Path) -> None:
    said = run("init", model, "--environment", "letters", "--chat")
    check_refused(said, model, "has no chat template", "--no-chat")
    assert run("init", model, "--environment", "letters").code == 0


@pytest.mark.usefixtures("faulty_environment")
@pytest.mark.parametrize(
    ("command", "kind", "words"),
    [
        *((command, "raises", "prompt(3) raised RuntimeError: no such puzzle") for command in COMMANDS),
        ("init", "nan", "does not give a Score with a task of 0.0 or 1.0"),
        ("init", "hangs", "prompt 3 and its scores took more than 5 s"),
    ],
)
def test_an_environment_that_breaks_its_contract_is_refused(
    command: str, kind: str, words: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "hangs":
        monkeypatch.setattr(check, "PROBE_TIMEOUT", timedelta(seconds=5))
    said = run(command, model, "--environment", "faulty", "-o", f"kind={kind}")
    check_refused(said, model, words, "author of the environment")
