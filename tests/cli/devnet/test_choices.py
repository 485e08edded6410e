"""Options that `muster devnet` refuses before the start, and the meaning of its presets."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from cli.devnet.command import devnet
from cli.devnet.options import PRESETS, PresetName, RunOptions
from protocol.errors import MusterError
from rollouts.recipe import read_recipe
from trainer.presets import devnet_base
from trainer.run.gathering.asynchrony import NAMED, AsynchronyName

APP = typer.Typer()
APP.command()(devnet)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cheat", "lying"], "there is no cheat lying"),
        (["--cheat", "skipped-index"], "a devnet can't show skipped-index: its work is honest"),
        (["--cheat", "forged-reply"], "forged-reply forges dialogues, and this devnet has single answers"),
        (["--cheat", "banned-in-between"], "a devnet can't show banned-in-between"),
        (["--cheat", "slow"], "a devnet can't show slow: its work is honest"),
        (["--cheat", "slot-shopper"], "its predictions of seeds have no effect"),
        (["--distance", "1"], "--distance needs wanted lengths"),
        (["--environment", "math"], "--environment without --model"),
        (["--groups", "4"], "--groups without --model"),
        (["--model", str(devnet_base()), "--preset", "answers"], "--preset and --model are both given"),
        (["--model", str(devnet_base()), "-o", "digits=1"], "options of an environment without --environment"),
        (["--model", str(devnet_base()), "--environment", "nothing"], "there is no environment called 'nothing'"),
        (["--model", str(devnet_base()), "--environment", "letters", "--max-new-tokens", "500"], "exceed the model's"),
        (["--model", "/usr"], "/usr/config.json can't be read"),
        (["--model", str(devnet_base()), "--task", "hello"], "--model with --task hello"),
        (["--model", str(devnet_base()), "--ledger-only"], "--model with --ledger-only"),
        (["--preset", "answers", "--task", "hello"], "--preset with --task hello"),
        (["--preset", "smollm2", "--group-size", "4"], "options of an environment without --environment"),
    ],
)
def test_devnet_options_that_validators_cannot_judge_are_refused_before_the_start(
    options: list[str], words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("devnet") / "net"
    refused = CliRunner().invoke(APP, ["--plain", "--directory", str(directory), *options])
    assert isinstance(refused.exception, MusterError)
    assert words in refused.exception.detail
    assert not directory.exists()


@pytest.mark.parametrize("name", list(PresetName))
def test_a_goal_has_a_distance_exactly_where_the_base_wants_lengths(name: PresetName) -> None:
    preset = PRESETS[name]
    wants = preset.base is not None and read_recipe(devnet_base(preset.base)).length is not None
    assert [goal.distance is not None for goal in (preset.goal, preset.fast_goal)] == [wants, wants]
    assert preset.fast_steps < preset.steps


@pytest.mark.parametrize("name", list(AsynchronyName))
def test_the_orchestrators_async_level_matches_the_trainers_setting(name: AsynchronyName) -> None:
    wanted = NAMED[name]
    level = RunOptions(asynchrony=name.value).async_level
    assert level == wanted.max_staleness
    wanted.check_window(level)
