"""docs/your-run.md: a reader who copies its commands in order succeeds."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from rollouts.environments import load_environment
from rollouts.models.facts import read_model
from tests.kit.command_line import reader_variables
from tests.kit.devnet import run_muster
from tests.kit.tiny_model import tiny_folder

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your-run.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = re.findall(r"^```sh example\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]

WORDS = {
    "muster trainer sft": "models/base holds the version",
    "muster recipe init": "next: muster trainer eval models/base",
    "muster trainer try": "held-out prompts answered right",
    "muster devnet": "Answers to held-out prompts, before and after",
    "muster rollouts show": "answer  ",
    "muster trainer export": "points to curves",
    "muster env check": "reproducible",
    "muster env filter": "are in filtered",
    "muster validator calibrate": "calibration.json has 1 entries",
}
"""What the page says that commands print; the page has each of these commands."""


def prepare(folder: Path) -> dict[str, str]:
    """Makes what the page says that the reader has; returns the environment variables of the reader's shell."""
    (folder / "models").mkdir()
    tiny_folder(folder / "models" / "start", kind="llama")
    demonstration, problem = SHOWN
    arithmetic = load_environment("arithmetic", options={"digits": 1})
    prompts = [arithmetic.prompt(index) for index in range(400)]
    rows = [demonstration, *({"prompt": each.text, "completion": arithmetic.demonstration(each)} for each in prompts)]
    info = [{"ground_truth": str(each + 2)} for each in range(6)]
    problems = [
        problem | {"problem_id": str(each), "prompt": f"What is {each}+2?", "verification_info": info[each]}
        for each in range(6)
    ]
    for name, values in (("demonstrations.jsonl", rows), ("problems.jsonl", problems)):
        (folder / name).write_text("".join(json.dumps(value) + "\n" for value in values))
    return reader_variables(folder)


FOR_THE_TINY_MODEL = {"muster trainer sft": "--set optimiser.learning_rate=1e-3"}
"""Options that the page tells the reader of a tiny model to add."""


def commands(block: str) -> list[str]:
    """Returns the commands of a block; a backslash continues a line."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.timeout(900)
def test_every_command_succeeds_in_order_in_one_folder(tmp_path: Path) -> None:
    variables = prepare(tmp_path)
    missing = set(WORDS)
    for line in [line for block in BLOCKS for line in commands(block)]:
        added = next((more for start, more in FOR_THE_TINY_MODEL.items() if line.startswith(start)), "")
        assert added in PAGE
        ran = subprocess.run(
            ["bash", "-c", f"{line} {added}"],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ran.returncode == 0, f"{line}\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}"
        for start in [start for start in WORDS if line.startswith(start)]:
            missing.discard(start)
            assert WORDS[start] in ran.stdout + ran.stderr, f"{line}\n{ran.stdout[-3000:]}"
    assert not missing
    assert read_model(tmp_path / ".devnet/policies/1").hidden == read_model(tmp_path / "models/base").hidden
    assert not json.loads((tmp_path / "models/base/recipe.json").read_text())["chat"]


@pytest.mark.parametrize("line", [line for block in EXAMPLES for line in commands(block)])
def test_each_example_with_placeholders_has_the_options_shown(line: str) -> None:
    words = shlex.split(line.partition(" -- ")[0])
    options = [word for word in words if word.startswith("--")]
    said = run_muster(*words[1 : words.index(options[0])], "--help")
    assert said.code == 0, said.err
    for option in options:
        assert re.search(rf"{option}\b", said.out), f"{line}: no {option}"


@pytest.mark.parametrize("line", sorted(set(re.findall(r"`muster ([^`]+)`", PAGE))))
def test_each_command_in_the_text_exists_with_its_options(line: str) -> None:
    words = line.split()
    options = [word for word in words if word.startswith("--")]
    path = [word for word in words[: words.index(options[0]) if options else None] if re.fullmatch("[a-z-]+", word)]
    said = run_muster(*path, "--help")
    assert said.code == 0, said.err
    for option in options:
        assert re.search(rf"{option}\b", said.out), f"{line}: no {option}"
