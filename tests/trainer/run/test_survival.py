"""After a kill at any moment the same command resumes: the same batches, and bitwise the same weights."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainer.run.publishing.folders
import trainer.run.versions
from protocol.checkpoints import folder_files, version_digest
from protocol.errors import Conflict
from protocol.identifiers import Digest, run_id
from protocol.runtime.files import NewerFormat
from tests.kit.memory_run_ledger import RUN
from tests.kit.trained_pool import TrainedPool
from tests.kit.world import POOL
from tests.trainer.run.killed import Killed, dies
from trainer.policy.policy_learner import PolicyLearner
from trainer.run.publishing.announcer import Announcer
from trainer.run.state.journal import Journal, Recorded, StepBatch, Written
from trainer.run.state.trainer_state import TrainerState, save_state
from trainer.run.versions import VersionPublisher

STAGES: list[tuple[Any, str, Callable[..., bool], bool]] = [
    (Journal, "append", lambda _, entry: isinstance(entry, StepBatch) and entry.step == 0, True),
    (PolicyLearner, "begin", lambda *_, step: step == 1, True),
    (Journal, "append", lambda _, entry: isinstance(entry, Written) and entry.version == 3, False),
    (trainer.run.publishing.folders, "put_in_place", lambda _, folder: folder.name == "4", False),
    (Announcer, "announce", lambda _, version: version == 5, False),
    (Announcer, "publish_to_orchestrator", lambda _, version: version == 6, False),
    (trainer.run.versions, "save_state", lambda *_, state, **__: state.step >= 7, False),
]
"""Stages of death, one per step: journalled but not learned, learned but not written, written but not recorded,
recorded but not renamed, renamed but not announced, announced but not sent to the orchestrator, and sent with an
unsaved state."""


async def test_killed_at_every_stage_the_run_resumes_with_the_same_batches_and_weights(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, known, before = Journal(pool.folder / "state"), 0, dict[int, StepBatch]()
    async with pool.working():
        for where, name, when, after in STAGES:
            with monkeypatch.context() as patch:
                patch.setattr(where, name, dies(getattr(where, name), when, after=after))
                with pytest.raises(Killed):
                    await pool.train(steps=8)
            before = journal.read().batches
            assert len(before) > known, "each death was in a different step"
            known = len(before)
        state = await pool.train(steps=8)
    assert state.step == 8
    recorded = journal.read()
    assert {step: recorded.batches[step] for step in before} == before
    assert pool.learned_at_once(recorded) == {version: recorded.written[version] for version in range(1, 9)}
    ledger = await pool.world.as_("owner")
    for version in range(9):
        announced = await ledger.checkpoints.get(POOL, run_id(RUN), version)
        assert announced is not None
        folder = pool.folder / "policies" / str(version)
        assert announced.digest == recorded.written[version] == version_digest(folder_files(folder))
    assert (await pool.run.pool.owner("GET", "/v1/run"))["checkpoint"]["version"] == 8
    assert not any((pool.folder / "state" / "rollouts").iterdir()), "files that the state contains are not stored twice"


async def test_a_failing_run_has_saved_its_state_before_another_may_begin(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, saved = threading.Event(), list[int]()
    aclose = VersionPublisher.aclose

    async def closing(versions: VersionPublisher) -> None:
        ending.set()
        await aclose(versions)

    def slowly(folder: Path, *, state: TrainerState, **rest: Any) -> None:
        ending.wait(60)
        time.sleep(0.5)
        save_state(folder, state=state, **rest)
        saved.append(state.step)

    monkeypatch.setattr(VersionPublisher, "aclose", closing)
    monkeypatch.setattr(trainer.run.versions, "save_state", slowly)
    monkeypatch.setattr(Announcer, "announce", dies(Announcer.announce, lambda _, version: version == 1, after=False))
    async with pool.working():
        with pytest.raises(Killed):
            await pool.train()
    assert saved == [1], "another trainer would write to the same folder"


async def test_a_journal_with_missing_or_changed_files_is_not_learned_from(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        with monkeypatch.context() as patch:
            when: Callable[..., bool] = lambda _, entry: isinstance(entry, StepBatch)  # noqa: E731
            patch.setattr(Journal, "append", dies(Journal.append, when, after=True))
            with pytest.raises(Killed):
                await pool.train()
        [file] = (pool.folder / "state" / "rollouts" / "0").glob("*.parquet")
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + b"x")
        with pytest.raises(Conflict, match="the journal says"):
            await pool.train()
        file.unlink()
        with pytest.raises(Conflict, match="can't be read"):
            await pool.train()
        file.write_bytes(whole)
        assert (await pool.train(steps=1)).step == 1
        version = pool.folder / "policies" / "1"
        shutil.rmtree(version)
        assert (await pool.train(steps=1)).step == 1
        assert version_digest(folder_files(version)) == pool.recorded().written[1], "a missing folder is written again"


def test_a_truncated_last_journal_line_is_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    written = Written(version=0, digest=Digest("0x" + "ab" * 32))
    journal.append(written)
    with journal.path.open("ab") as file:
        file.write(b'{"kind":"batch","step":0,"at')
    assert journal.read() == Recorded({}, {0: written.digest})
    journal.append(Written(version=1, digest=written.digest))
    assert set(journal.read().written) == {0, 1}


def test_a_journal_states_its_format_and_one_of_a_newer_release_is_refused_and_not_changed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    written = Written(version=0, digest=Digest("0x" + "ab" * 32))
    journal.append(written)
    header, entry = journal.path.read_bytes().splitlines(keepends=True)
    assert header == b'{"kind":"format","format":1}\n'
    journal.path.write_bytes(entry)  # as an earlier release wrote it
    journal.append(Written(version=1, digest=written.digest))
    assert set(journal.read().written) == {0, 1}
    for first in (b'{"kind":"format","format":2,"more":[]}', b'{"kind":"format"}'):
        newer = first + b'\n{"kind":"dream","of":"the future"}\n{"kind":"to'
        journal.path.write_bytes(newer)
        with pytest.raises(NewerFormat, match="reads formats up to 1"):
            journal.read()
        assert journal.path.read_bytes() == newer
    broken = header + b'{"kind":"dream"}\n{"kind":"to'
    journal.path.write_bytes(broken)
    with pytest.raises(Conflict, match="line 2 is not a journal entry"):
        journal.read()
    assert journal.path.read_bytes() == broken
