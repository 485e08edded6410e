"""Fetching the files of one step from an orchestrator, a chain and a store that are made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from protocol.errors import Unavailable
from protocol.identifiers import Digest, address, digest
from protocol.runtime.clock import ManualClock
from protocol.verdicts import Outcome
from protocol.wire.listings import RolloutItem, RolloutStatus
from rollouts.engines.interface import FinishReason
from rollouts.files.samples import Sample
from tests.kit.trained_pool import RECIPE
from tests.trainer.run.made import seen_file
from trainer.errors import NotWritten
from trainer.run.gathering.asynchrony import Move, StepProgress, next_move
from trainer.run.gathering.intake import IntakeLimits, IntakeSources, RolloutIntake
from trainer.run.gathering.rollout_files import FileReader, FileRules, UnusableFile, _check_tokens

POLICY = digest(b"p" * 32)
RULES = FileRules(run=digest(b"r" * 32), recipe=RECIPE, vocabulary=64, context=20, most_bytes=1 << 20)


class Outside:
    """A fake orchestrator, chain and store in one."""

    def __init__(self, *items: RolloutItem) -> None:
        self.items = items
        self.down = False
        self.behind = False
        self.fetched: list[Path] = []

    async def rollouts(self, *, step: int) -> AsyncIterator[RolloutItem]:
        for item in self.items:
            yield item

    async def objection(self, item: RolloutItem) -> str:
        return "the ledger has no such work" if self.behind else ""

    async def fetch(self, url: str, target: Path, *, sha256: Digest, most_bytes: int) -> int:
        partial = target.with_suffix(".part")
        if self.down:
            raise Unavailable("the store does not answer")
        partial.write_bytes(b"")
        await asyncio.sleep(0)
        self.fetched.append(target)
        partial.replace(target)
        return 0


def item_of(number: int, **changes: Any) -> RolloutItem:
    words: dict[str, Any] = {
        "key": digest(bytes([number]) * 32),
        "node": address("0x" + f"{number:040x}"),
        "provider": address("0x" + f"{9:040x}"),
        "step": 3,
        "index": number,
        "version": 3,
        "digest": POLICY,
        "beacon_block": None,
        "groups": 1,
        "units": 1,
        "sha256": digest(bytes([100 + number]) * 32),
        "size": 1,
        "submitted_block": 1,
        "submitted_at_ms": 1,
        "status": RolloutStatus.SUBMITTED,
        "outcome": Outcome.ACCEPTED,
        "reason": 0,
        "audit_hash": digest(bytes([200 + number]) * 32),
        "figures": {},
        "file_url": "https://store/file",
        "audit_url": "https://store/audit",
    }
    return RolloutItem(**words | changes)


def intake_of(outside: Outside, folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> RolloutIntake:
    """Returns an intake whose files are read as one group with signal each."""
    monkeypatch.setattr(
        FileReader, "read", lambda *_, entry, **__: seen_file(node=int(entry.node, 16), index=1, signal=[True])
    )
    anything = cast("Any", outside)
    return RolloutIntake(
        3,
        sources=IntakeSources(client=anything, transfer=anything, verdicts=anything),
        folder=folder / "3",
        reader=FileReader(rules=RULES, decoder=anything),
        policy=lambda version: POLICY,
        limits=IntakeLimits(max_staleness=0, at_once=4, patience=timedelta(minutes=10)),
        clock=clock,
    )


async def test_a_file_listed_repeatedly_is_fetched_once_and_each_key_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = item_of(1)
    outside = Outside(one, one, item_of(2, sha256=one.sha256))
    intake = intake_of(outside, tmp_path, ManualClock(), monkeypatch)
    await intake.look()
    assert len(intake.files) == 2
    assert len(outside.fetched) == len(set(outside.fetched)) == 3, "one file and two audit files"


async def test_a_store_outage_is_waited_for_before_a_step_ends_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, clock = Outside(item_of(1)), ManualClock()
    outside.down = True
    intake = intake_of(outside, tmp_path, clock, monkeypatch)

    def move() -> Move:
        now = StepProgress(demand=4, rounds=2, closed=True, accepted=1)
        words = {"wanted": 2, "useful": 0, "share": 1.0, "max_rounds": 2, "lingered": True}
        return next_move(now, coming=intake.coming(), held_up=intake.held_up(), **cast("Any", words)).move

    await intake.look()
    assert (move(), dict(intake.dropped)) == (Move.WAIT, {"unavailable": 1})
    await clock.turn(timedelta(minutes=11))
    await intake.look()
    assert move() is Move.FULL, "the wait is bounded"
    outside.down = False
    await intake.look()
    assert (len(intake.files), dict(intake.dropped)) == (1, {})


async def test_a_chain_that_lags_behind_the_orchestrator_loses_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = Outside(item_of(1))
    outside.behind = True
    intake = intake_of(outside, tmp_path, ManualClock(), monkeypatch)
    await intake.look()
    assert (dict(intake.dropped), intake.held_up()) == ({"not-on-ledger": 1}, 0)
    outside.behind = False
    await intake.look()
    assert (len(intake.files), dict(intake.dropped)) == (1, {})


async def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "3").write_text("in the way")
    with pytest.raises(NotWritten, match="can't be created"):
        await intake_of(Outside(item_of(1)), tmp_path, ManualClock(), monkeypatch).look()


@pytest.mark.parametrize(("prompt", "answer"), [(17, 1), (16, 6)])
def test_a_prompt_longer_than_a_row_drops_its_file_and_not_the_run(prompt: int, answer: int) -> None:
    """A journalled batch that the learner refuses would be refused again at every start."""
    sample = Sample(
        group=0,
        sample=0,
        prompt_index=1,
        prompt_tokens=np.full(prompt, 5, np.int32),
        output_tokens=np.full(answer, 5, np.int32),
        logprobs=np.full(answer, -1.0, np.float32),
        finish=FinishReason.EOS,
        task_reward=0.0,
        length_penalty=0.0,
        reward=0.0,
        target_length=None,
        proofs=b"",
    )
    with pytest.raises(UnusableFile, match="prompt tokens"):
        _check_tokens(0, sample, RULES)
