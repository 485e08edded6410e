"""An environment class of OpenEnv, unmodified: checked, played, verified and read by a trainer.

Run by the Python of `.tools/verifiers`, through `test_openenv.py`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from muster_openenv.job import BAD_ACTION

from rollouts.environments import load_environment
from rollouts.environments.check import CheckSettings, check_environment
from rollouts.environments.code_digest import code_digest
from rollouts.environments.dialogue import ModelMessage
from rollouts.environments.errors import BadOptions
from tests.kit.adapted_slot import EACH, GROUPS, memorised_version, played_file, read_by_trainer, verified

UP, DOWN, LEFT, RIGHT = "0123"
STARTS = {(5, 7): [RIGHT, RIGHT], (6, 6): [], (3, 7): [RIGHT] * 4, (4, 7): [RIGHT] * 3}


def maze(*starts: tuple[int, int], **changes: Any) -> dict[str, Any]:
    """Options of the maze, whose exit is at (7, 7)."""
    return {
        "environment": "maze_env.server.maze_env_environment:MazeEnvironment",
        "action": "maze_env.models:MazeAction",
        "code": code_digest("maze_env"),
        "configs": [{"start_cell": list(start)} for start in starts or [(0, 0)]],
        "instruction": "find the exit at 7, 7; 0 is up, 1 down, 2 left, 3 right",
        "field": "action",
        "show": ["current_position", "legal_actions"],
        "full": 10.0,
    } | changes


def test_the_maze_is_checked_played_verified_and_read_by_a_trainer(tmp_path: Path) -> None:
    starts = [(5, 7), (3, 7), (4, 7)]
    options = maze(*starts)
    report = check_environment("openenv", options=options, settings=CheckSettings(items=3))
    assert report.passed, report.properties
    version = memorised_version(tmp_path, "openenv", options, lambda prompt: STARTS[starts[prompt.index]], prompts=3)
    file = played_file(version)
    for sample in file.samples:
        moves = len(STARTS[starts[sample.prompt_index]])
        assert len(sample.turns) == moves
        assert sample.task_reward == pytest.approx(1 - 0.005 * (moves - 1))
    honest = verified(file, version, tmp_path)
    assert honest.complete
    assert not honest.failed, honest.failed
    assert read_by_trainer(file, version, tmp_path) == [sample.reward for sample in file.samples]
    assert len(file.samples) == GROUPS * EACH


def test_steps_are_observations_and_bad_actions_have_a_fixed_reply() -> None:
    environment = load_environment("openenv", options=maze((4, 7)))
    prompt = environment.prompt(0)
    assert prompt.text.endswith('right\n\n{"current_position": [4, 7], "legal_actions": [2, 3]}')
    episode = environment.begin(prompt)
    replies = [episode.reply(ModelMessage(text=text)) for text in ("east", "1", "9", RIGHT, RIGHT, RIGHT)]
    assert replies[0].messages[0].text == BAD_ACTION
    assert replies[1].messages[0].text == '{"current_position": [4, 7], "legal_actions": [2, 3]}'
    assert replies[2].messages[0].text == replies[1].messages[0].text or replies[2].messages[0].text.startswith("error")
    assert [reply.done for reply in replies] == [False] * 5 + [True]
    score = episode.score()
    assert score.parts["bad"] >= 1
    assert score.parts["done"] == 1
    assert 0 < score.task < 1
    assert environment.score(prompt, RIGHT, finished=False).task == 0


FAULTY = """
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.env_server import MCPEnvironment
import random, socket

class Move(Action):
    to: str

class Seen(Observation):
    text: str = ""

class Base(Environment):
    def __init__(self, big: bool = False): super().__init__()
    def reset(self, seed=None, **kwargs):
        self.rng = random.Random(seed)
        return Seen(text=f"{self.rng.randint(0, 9**9)} {random.random()}")
    def step(self, action, **kwargs):
        if action.to == "spin":
            while True: pass
        if action.to == "raise": raise ValueError(f"bad {object()}")
        return Seen(text=action.to * 5000 if action.to == "x" else "ok", reward=float("nan"), done=action.to == "end")
    @property
    def state(self): return State()

class Unseeded(Base):
    def reset(self): return Seen(text="same")

class Online(Base):
    def reset(self, seed=None):
        socket.create_connection(("127.0.0.1", 9)); return Seen()

class Asynchronous(Base):
    async def step_async(self, action, **kwargs): return Seen()

class Tools(MCPEnvironment): ...
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("faulty")
    (home / "faulty.py").write_text(FAULTY)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(home))
        yield (
            lambda name, **changes: (
                {
                    "environment": f"faulty:{name}",
                    "action": "faulty:Move",
                    "code": code_digest("faulty"),
                }
                | changes
            )
        )


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("Unseeded", {"seeds": 2}, "reset takes no seed"),
        ("Online", {}, "OSError|PermissionError|Connection|unreachable"),
        ("Asynchronous", {}, "overrides step_async"),
        ("Tools", {}, "is not a class with OpenEnv's interface"),
        ("Missing", {}, "has no attribute"),
        ("Base", {"field": "where"}, "Move has no field where"),
        ("Base", {"configs": [{"size": 3}]}, "unexpected keyword argument"),
        ("Base", {"code": "0" * 64}, "has the code digest"),
        ("Base", {"action": "json:JSONDecoder"}, "must be in one package"),
        ("Base", {"total": "mean"}, "total"),
    ],
)
def test_what_cant_be_reproduced_is_refused_by_name(
    faulty: Any, name: str, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(BadOptions, match=expected):
        load_environment("openenv", options=faulty(name, **changes))


def test_seeds_give_prompts_and_faults_of_steps_blame_nobody(faulty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace  # noqa: PLC0415
    from datetime import timedelta  # noqa: PLC0415

    family: Any = import_module("muster_openenv.family")
    monkeypatch.setattr(family, "LIMITS", replace(family.LIMITS, cpu=timedelta(seconds=1)))
    environment = load_environment("openenv", options=faulty("Base", seeds=3, configs=[{}, {"big": True}]))
    assert environment.size() == 6
    texts = [environment.prompt(index).text for index in range(6)]
    assert texts[0] == texts[1] != texts[2]
    episode = environment.begin(environment.prompt(0))
    assert (
        episode.reply(ModelMessage(text='{"to": "raise"}')).messages[0].text
        == "error: ValueError: bad <object object at 0x>"
    )
    assert len(episode.reply(ModelMessage(text='{"to": "x"}')).messages[0].text.encode()) <= 4096
    assert episode.reply(ModelMessage(text='{"to": "end"}')).done
    assert episode.score().task == 0
    spinning = environment.begin(environment.prompt(0))
    assert spinning.reply(ModelMessage(text='{"to": "spin"}')).done
    assert spinning.score().parts["undecided"] == 1
