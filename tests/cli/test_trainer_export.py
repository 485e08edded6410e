"""Export of a run's curves and answers to TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cli.trainer.export import read_points
from tests.kit.devnet import run_muster, wait_until

LINES = [
    {"kind": "started", "at_ms": 1_000, "step": 0},
    {"kind": "step", "at_ms": 2_000, "step": 0, "version": 1, "reward": 0.1, "figures": {"entropy": 2.5}, "bad": False},
    {"kind": "step", "at_ms": 3_000, "step": 1, "version": 2, "reward": 0.2, "figures": {"entropy": 2.0}},
    {"kind": "step", "at_ms": 4_000, "step": 1, "version": 2, "reward": 0.3, "figures": {"entropy": None}},
    {
        "kind": "evaluation",
        "at_ms": 5_000,
        "version": 2,
        "greedy": 0.5,
        "pass_at": {"1": 0.25},
        "examples": [{"prompt": "What | is\n1 + 1?", "answer": "<b>2</b>", "correct": True, "finished": True}],
    },
]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES) + '{"kind": "st')
    return folder


def test_the_last_line_of_a_repeated_step_counts(state: Path) -> None:
    evaluation, first, second = sorted(read_points(state / "progress.jsonl"), key=lambda point: -len(point.answers))
    assert first.curves == {"step/reward": 0.1, "step/figures/entropy": 2.5}
    assert (second.number, second.at, second.curves) == (2, 4.0, {"step/reward": 0.3})
    assert evaluation.curves == {"evaluation/greedy": 0.5, "evaluation/pass_at/1": 0.25}


def test_tensorboard_reads_curves_and_answers(state: Path, tmp_path: Path) -> None:
    said = run_muster("trainer", "export", str(state), "--tensorboard", str(tmp_path / "events"))
    assert said.code == 0, said.err
    assert "1 unreadable line" in said.err
    read: Any = EventAccumulator(str(tmp_path / "events"))
    read.Reload()
    assert [(each.step, round(each.value, 3)) for each in read.Scalars("step/reward")] == [(1, 0.1), (2, 0.3)]
    assert [each.wall_time for each in read.Scalars("evaluation/greedy")] == [5.0]
    (text,) = read.Tensors("answers")
    assert b"| What \\| is 1 + 1? | <b>2</b> | right |" in text.tensor_proto.string_val[0]


def test_a_run_is_logged_offline(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_API_KEY", "")):
        monkeypatch.setenv(name, value)
    said = run_muster("trainer", "export", str(state), "--wandb", "muster", "--name", "first")
    assert said.code == 0, said.err
    (log,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    # Its own process writes the file, and may take a moment longer than the command.
    wait_until(lambda: b"step/reward" in log.read_bytes())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no destination of the export is given"),
        (["--tensorboard", "{full}"], "is not an empty folder"),
        (["--tensorboard", "{new}", "{new}"], ""),
    ],
)
def test_bad_targets_are_refused(arguments: list[str], words: str, state: Path, tmp_path: Path) -> None:
    given = [each.format(full=state, new=tmp_path / "new") for each in arguments]
    said = run_muster("trainer", "export", str(state), *given)
    assert said.code != 0
    assert words in said.err


def test_a_folder_without_progress_is_named(tmp_path: Path) -> None:
    said = run_muster("trainer", "export", str(tmp_path), "--tensorboard", str(tmp_path / "new"))
    assert said.code == 1
    assert "progress.jsonl" in said.err
    (tmp_path / "progress.jsonl").write_text('{"kind": "started", "at_ms": 1}\n')
    said = run_muster("trainer", "export", str(tmp_path), "--tensorboard", str(tmp_path / "new"))
    assert "has no step to export" in said.err
