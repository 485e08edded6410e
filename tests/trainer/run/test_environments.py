"""Results by environment of a mixture, as a step's metrics report them."""

from __future__ import annotations

from collections import Counter

import pytest

from rollouts.environments.mixture import Parts
from tests.trainer.run.made import seen_file
from trainer.run.gathering.asynchrony import StepProgress
from trainer.run.gathering.batches import Chosen
from trainer.run.reporting import StepDone, StepTimes, step_facts
from trainer.run.state.journal import StepBatch
from trainer.run.state.pools import PoolSettings
from trainer.run.state.trainer_state import TrainerState


def environments_of(parts: Parts) -> object:
    file = seen_file(node=1, index=0, signal=[True, False, None, True, True, False])
    batch = StepBatch(step=4, at_ms=0, files=(file.entry,), groups=(), parts=())
    done = StepDone(
        batch=batch,
        files=[file],
        chosen=Chosen(places=(), left=Counter()),
        dropped=Counter(),
        progress=StepProgress(demand=1, rounds=1),
        learned=None,
    )
    facts = step_facts(done, StepTimes(), state=TrainerState(), pools=PoolSettings(), parts=parts)
    assert facts["solved"] == pytest.approx(0.3)
    return facts["environments"]


def test_decided_groups_count_for_the_environment_of_their_prompt() -> None:
    found = environments_of(Parts.of(["letters", "math", "code"], [2, 1, 1_000]))
    assert found == {"code": {"answers": 10, "reward": pytest.approx(0.3), "solved": pytest.approx(0.3)}}
    found = environments_of(Parts.of(["letters", "math"], [1, 1]))  # even prompts are of letters; prompt 2 is undecided
    assert found == {
        "letters": {"answers": 4, "reward": 0.5, "solved": 0.5},
        "math": {"answers": 6, "reward": pytest.approx(1 / 6), "solved": pytest.approx(1 / 6)},
    }


def test_a_recipe_with_one_environment_has_no_figures_by_environment() -> None:
    assert environments_of(Parts.of(["letters"], [1])) == {}
