"""Options that `muster devnet` refuses before the start, and the meaning of its presets."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from cli.devnet.command import AsynchronyChoice, devnet
from cli.devnet.options import PRESETS, PresetName, RunOptions
from protocol.errors import InvalidInput
from rollouts.recipe import read_recipe
from trainer.presets import devnet_base
from trainer.run.asynchrony import NAMED, AsynchronyName

APP = typer.Typer()
APP.command()(devnet)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cheat", "lying"], "there is no cheat lying"),
        (["--cheat", "skipped-index"], "a devnet can't show skipped-index: what it hands in is honest work"),
        (["--cheat", "banned-in-between"], "a devnet can't show banned-in-between"),
        (["--cheat", "slow"], "a devnet can't show slow: what it hands in is honest work"),
        (["--cheat", "slot-shopper"], "its forecasts are worth nothing"),
        (["--distance", "1"], "--distance without lengths that are wanted"),
    ],
)
def test_devnet_options_that_validators_cannot_judge_are_refused_before_the_start(
    options: list[str], words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("devnet") / "net"
    refused = CliRunner().invoke(APP, ["--plain", "--directory", str(directory), *options])
    assert isinstance(refused.exception, InvalidInput)
    assert words in refused.exception.detail
    assert not directory.exists()


@pytest.mark.parametrize("name", list(PresetName))
def test_a_goal_has_a_distance_exactly_if_the_base_has_target_lengths(name: PresetName) -> None:
    terms = RunOptions(preset=name).terms
    assert terms is PRESETS[name]
    wants = read_recipe(devnet_base(terms.base)).length is not None
    assert [goal.distance is not None for goal in (terms.goal, terms.fast_goal)] == [wants, wants]
    assert terms.fast_steps < terms.steps


@pytest.mark.parametrize("name", list(AsynchronyChoice))
def test_the_orchestrators_async_level_matches_the_trainers_setting(name: AsynchronyChoice) -> None:
    wanted = NAMED[AsynchronyName(name.value)]
    level = RunOptions(asynchrony=name.value).async_level
    assert level == wanted.max_staleness
    wanted.check_window(level)
