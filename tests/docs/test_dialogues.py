"""The page about dialogues: its commands run, its example keeps the contract, and its table names every option."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import JsonValue

from rollouts.dialogue.interface import FormatName
from rollouts.environments import load_environment
from rollouts.environments.check import CheckSettings, check_environment
from rollouts.environments.registry import find_family
from rollouts.recipe import DialogueChoice
from tests.kit.devnet import run_muster
from tests.kit.tiny_model import tiny_folder

PAGE = (Path(__file__).parents[2] / "docs" / "dialogues.md").read_text()
COMMANDS = [line.split(" #")[0].strip() for line in PAGE.split("```")[1].strip().splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)[1:]
    if "MODEL" in words:
        words[words.index("MODEL")] = str(tiny_folder(tmp_path / "model"))
    found = run_muster(*words)
    assert found.code == 0, found.err


@pytest.mark.parametrize("name", ["python", "search"])
def test_the_table_names_every_option(name: str) -> None:
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    for option in set(find_family(name).options.model_fields) - {"task_types"}:
        assert f"`{option}`" in line


def test_the_search_of_the_page_finds_its_answer(tmp_path: Path) -> None:
    document, question = (
        json.loads(line) for line in re.findall(r"```json\n(\{\"title.*?)```", PAGE, re.DOTALL)[0].splitlines()
    )
    options: dict[str, JsonValue] = {}
    for prefix, path, content in [("", "path", question), ("documents_", "documents", document)]:
        text = json.dumps(content)
        (tmp_path / path).write_text(text)
        options |= {path: str(tmp_path / path), f"{prefix}sha256": hashlib.sha256(text.encode()).hexdigest()}
    environment = load_environment("search", options=options)
    prompt = environment.prompt(0)
    assert environment.demonstration_turns(prompt) == ["search(Which tree gives syrup?)", "read(0)", "maple"]
    assert environment.score(prompt, "The maple tree.", finished=True).task == 1.0


def test_the_limits_of_the_page_are_those_of_a_recipe() -> None:
    [written] = re.findall(r"```json\n\{\"dialogue\": (.*?)\}\n```", PAGE)
    assert DialogueChoice.model_validate_json(written).format is FormatName.TEMPLATE


def test_the_example_of_the_page_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [source] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "capitals.py").write_text(source)
    info = tmp_path / "capitals-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: capitals\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[muster.environments]\ncapitals = capitals:family\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    report = check_environment("capitals", settings=CheckSettings(items=3, item_timeout=timedelta(seconds=60)))
    assert report.passed, report
    assert report.figures["correct_demonstrations"] == 1.0
    played = run_muster("env", "play", "capitals", "0", "capital(Chad)", "8", "--json").json()
    assert [turn["replies"] for turn in played["turns"]] == [
        [{"role": "tool", "text": "N'Djamena", "name": "capital"}],
        [],
    ]
    assert played["score"] == {"task": 1.0, "answered": 1.0, "calls": 1.0}
