"""State directories assembled from copies, and settings that changed between two starts."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import torch

from protocol.errors import Conflict, Unavailable
from protocol.identifiers import digest
from protocol.runtime.budgets import KeepRule, Needs
from protocol.runtime.clock import ManualClock
from rollouts.precision import Dtype
from tests.kit.trained_pool import RECIPE, base_folder, decoder
from tests.trainer.run.made import seen_file
from trainer.errors import NotWritten
from trainer.learning.settings import LearningOptimiser, LearningSettings, OptimiserKind
from trainer.policy.base_model import open_base
from trainer.policy.policy_learner import PolicyLearner
from trainer.run.evaluation_process import EvaluationProcess
from trainer.run.gathering.batches import groups_at
from trainer.run.gathering.rollout_files import FileRules
from trainer.run.progress import ProgressLog
from trainer.run.publishing.folders import VersionFolders
from trainer.run.resuming import Resumption, resume
from trainer.run.state.journal import Journal, StepBatch, Written
from trainer.run.state.trainer_state import TrainerState, save_state

RULES = FileRules(run=digest(b"r" * 32), recipe=RECIPE, vocabulary=64, context=64, most_bytes=1 << 20)
ABOUT = {"run": "main"}
NOW = time.time()


def _words(folder: Path, journal: Journal) -> Resumption:
    return Resumption(
        folder=folder,
        journal=journal,
        recorded=journal.read(),
        rules=RULES,
        decoder=decoder(),
        identity=ABOUT,
        under={},
    )


def _learner(folder: Path, kind: OptimiserKind = OptimiserKind.ADAMW) -> PolicyLearner:
    learning = LearningSettings(row_tokens=64, optimiser=LearningOptimiser(kind=kind, learning_rate=1e-3))
    return PolicyLearner(open_base(folder), learning, device=torch.device("cpu"), dtype=Dtype.FLOAT32)


def test_a_journal_older_than_the_state_is_refused_before_any_append(tmp_path: Path) -> None:
    """Otherwise it would have a gap, and no later start could read it."""
    learner, journal = _learner(base_folder(tmp_path / "base")), Journal(tmp_path)
    journal.append(StepBatch(step=0, at_ms=1, files=(), groups=()))
    save_state(tmp_path, state=TrainerState(step=3), learner_state=learner.state(), identity=ABOUT)
    with pytest.raises(Conflict, match="ends with step 0, and the state is that of step 3"):
        resume(_words(tmp_path, journal), learner=learner)


def test_a_state_of_another_optimiser_is_refused(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    first = _learner(base, OptimiserKind.MUON)
    file = seen_file(node=1, index=0, signal=[True])
    first.learn(groups_at([file], [(0, 0)]), step=0)
    second = _learner(base)
    with pytest.raises(Conflict, match="optimiser averages of muon, and the settings say adamw"):
        second.restore(first.state())
    second.learn(groups_at([file], [(0, 0)]), step=0)


def test_a_disk_too_full_for_the_first_journal_line_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(NotWritten, match="No space left"):
        Journal(tmp_path).append(Written(version=0, digest=RULES.run))


class NeedsOf:
    """A ledger with scripted needs of open work; it fails without them."""

    def __init__(self, *work: int, down: bool = False) -> None:
        self.work, self.down = work, down

    async def read(self, held: Collection[int]) -> Needs:
        assert 0 not in held
        if self.down:
            raise Unavailable("the chain is down")
        return Needs(at=NOW, leases=timedelta(hours=1), work=frozenset(self.work))


@pytest.mark.parametrize(
    ("keep", "needs", "used", "left"),
    [
        (KeepRule(most=3), NeedsOf(), {}, {0, 12, 16, 20, 24}),
        (KeepRule(most=9, budget=350), NeedsOf(), {}, {0, 12, 16, 20, 24}),
        (KeepRule(most=1), NeedsOf(), {}, {0, 16, 20, 24}),
        (KeepRule(most=9, budget=0), NeedsOf(4), {}, {0, 4, 16, 20, 24}),
        (KeepRule(most=1), NeedsOf(), {8}, {0, 8, 16, 20, 24}),
        (KeepRule(most=1), NeedsOf(down=True), {}, {0, 4, 8, 12, 16, 20, 24}),
    ],
    ids=["number", "budget", "least", "open work", "waits for evaluation", "chain down"],
)
async def test_version_folders_are_removed_unless_needed(
    tmp_path: Path, keep: KeepRule, needs: NeedsOf, used: Collection[int], left: set[int]
) -> None:
    written = dict.fromkeys(range(0, 25, 4), RULES.run)
    folders = VersionFolders(tmp_path, journal=Journal(tmp_path), written=written, keep=keep, needs=cast("Any", needs))
    for version in written:
        folders.folder(version).mkdir()
        (folders.folder(version) / "weights").write_bytes(bytes(100))
        came = NOW - 7200 + 60 * version
        os.utime(folders.folder(version), (came, came))
    # 16 and 20 are the newest two of the removable versions; 24 was written and is not announced yet.
    over = await folders.tidy(20, used=used)
    assert {int(folder.name) for folder in tmp_path.iterdir() if folder.is_dir()} == left
    assert over == (0 if keep.budget is None or needs.down else max(0, 100 * (len(left) - 2) - keep.budget))


async def test_a_version_is_in_use_from_queueing_until_the_end_of_its_evaluation(
    tmp_path: Path,
) -> None:
    answers: asyncio.Queue[None] = asyncio.Queue()

    class Slow(EvaluationProcess):
        async def _answer(self, version: int, folder: Path) -> dict[str, Any]:
            await answers.get()
            return {}

    clock = ManualClock()
    evaluation = Slow(cast("Any", None), progress=ProgressLog(tmp_path, clock=clock), clock=clock)
    assert evaluation.used == set()
    for version in (1, 2, 3):
        evaluation.ask(version, tmp_path / str(version))
        await asyncio.sleep(0)
    assert evaluation.used == {1, 3}  # version 2 was left out
    for left in ({3}, set[int]()):
        answers.put_nowait(None)
        await clock.turn(timedelta())
        assert evaluation.used == left
    await evaluation.aclose()
