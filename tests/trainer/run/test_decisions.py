"""Decisions of a trainer without any network: steps to open, full batches, prompts to ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identifiers import address
from protocol.identity.keys import Key
from tests.trainer.run.made import seen_file
from trainer.errors import BadSettings
from trainer.learning.groups import TrainingGroup
from trainer.learning.learner import Learner
from trainer.run.app import run_trainer
from trainer.run.gathering.asynchrony import (
    NAMED,
    Asynchrony,
    AsynchronyName,
    Move,
    StepProgress,
    first_demand,
    next_move,
    steps_to_open,
)
from trainer.run.gathering.batches import choose, groups_at, in_lease_order, signal_share, staleness
from trainer.run.learner.streaming import StreamedStep
from trainer.run.learner.thread import LearnerThread
from trainer.run.settings import TrainerSettings
from trainer.run.state.pools import DifficultyPools, PoolSettings

groups = st.integers(0, 30)
progress = st.builds(
    StepProgress, demand=groups, rounds=groups, closed=st.booleans(), accepted=groups, pending=groups, leased=groups
)


def test_named_asynchrony_settings_have_fixed_values_and_empty_steps_are_refused() -> None:
    assert {name: (one.reload_every, one.max_staleness, one.stream) for name, one in NAMED.items()} == {
        AsynchronyName.ON_POLICY: (1, 0, False),
        AsynchronyName.ONE_STEP: (1, 1, False),
        AsynchronyName.TWO_STEP: (1, 2, False),
        AsynchronyName.OFF_POLICY: (4, 8, False),
        AsynchronyName.PERIODIC: (1, 0, True),
    }
    with pytest.raises(BadSettings, match="after every 3 steps, but rollouts may be at most 1 steps old"):
        Asynchrony(reload_every=3, max_staleness=1)
    with pytest.raises(BadSettings, match="leases only 2 steps beyond"):
        NAMED[AsynchronyName.OFF_POLICY].check_window(2)


@given(st.dictionaries(st.integers(0, 6), progress), st.integers(0, 5), st.integers(1, 20), st.integers(1, 40))
def test_the_next_step_is_always_open_and_later_ones_only_while_data_is_short(
    known: dict[int, StepProgress], last: int, wanted: int, most_waiting: int
) -> None:
    opened = steps_to_open(0, last, known, groups=wanted, most_waiting=most_waiting)
    assert list(opened) == list(range(1, last + 1))
    assert last == 0 or opened[1] == wanted
    waiting = sum(known[step].accepted for step in range(1, last + 1) if step in known)
    asked = [step for step in range(2, last + 1) if opened[step]]
    assert not asked or waiting < most_waiting
    assert asked == list(range(2, 2 + len(asked))), "steps open one after the other"


@given(progress, st.integers(1, 20), st.integers(0, 40), st.integers(0, 10), st.floats(0.05, 1), st.booleans())
def test_a_step_ends_waits_or_requests_more_and_never_hangs(
    now: StepProgress, wanted: int, useful: int, coming: int, share: float, lingered: bool
) -> None:
    decided = next_move(now, wanted=wanted, useful=useful, coming=coming, share=share, max_rounds=8, lingered=lingered)
    outstanding = now.leased + now.pending + coming
    match decided.move:
        case Move.RAISE:
            assert decided.groups > now.demand, "otherwise the orchestrator takes it for a repeated demand"
            assert not now.closed
            assert now.rounds < 8
        case Move.FULL:
            assert useful >= wanted or not outstanding
        case Move.WAIT:
            assert outstanding or now.need, "the trainer waits for something"


def test_a_batch_is_drawn_from_all_files_by_the_seed_without_preferring_an_address() -> None:
    late = seen_file(node=2, index=0, signal=[True, False, None, True])
    early = seen_file(node=1, index=5, signal=[True, True])
    files = in_lease_order([late, early])
    assert [file.entry.node for file in files] == [address("0x" + f"{node:040x}") for node in (1, 2)]
    chosen = choose(files, step=4, most=3, seed=1)
    assert len(set(chosen.places)) == 3
    drawn = [place for step in range(100) for place in choose(files, step=step, most=3, seed=1).places]
    assert all(60 <= drawn.count(place) <= 90 for place in [(0, 0), (0, 1), (1, 0), (1, 3)]), "75 is the node's share"
    assert chosen.left == {"no-signal": 1, "undecided": 1, "surplus": 1}
    assert chosen == choose(files, step=4, most=3, seed=1)
    orders = {choose(files, step=step, most=3, seed=seed).places for step in range(5) for seed in range(5)}
    assert len(orders) > 3
    assert staleness(groups_at(files, chosen.places), step=4) == {1: 3}
    assert signal_share(files, before=1.0, weight=2) == pytest.approx(6 / 8)
    assert first_demand(16, 0.75) == 24
    assert first_demand(16, 1.0) == 16


class _Adds:
    """A learner that counts groups."""

    def __init__(self) -> None:
        self.groups = 0

    def begin(self, *, step: int) -> None:
        self.groups = 0

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        self.groups += len(groups)


async def test_an_overturned_files_gradients_are_removed_and_its_place_is_reused() -> None:
    one, two, three = (seen_file(node=node, index=0, signal=[True]) for node in (1, 2, 3))
    learner = _Adds()
    async with LearnerThread() as in_thread:
        streamed = StreamedStep(cast("Learner", learner), in_thread, step=3, most=2)
        await streamed.feed([one, two])
        await streamed.feed([two, three])
    chosen, parts = streamed.close([two, three])
    assert (learner.groups, chosen.places, parts) == (2, ((0, 0), (1, 0)), (2,))


def test_batch_losses_are_refused_at_startup_when_groups_are_streamed(tmp_path: Path) -> None:
    settings = TrainerSettings(
        run="main",
        pool_id=1,
        orchestrator="http://127.0.0.1:1",
        deployment=tmp_path / "none",
        start=tmp_path / "none",
        policies=tmp_path / "none",
        state=tmp_path / "state",
        asynchrony=AsynchronyName.PERIODIC,
        learning={"algorithm": "reinforce++"},
    )
    with pytest.raises(BadSettings, match=r"reinforce\+\+ compares all answers"):
        asyncio.run(run_trainer(settings, stop=asyncio.Event(), key=Key.generate()))
    assert not settings.state.exists()


seen = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=60)


@given(seen, st.integers(0, 3), st.integers(1, 40), st.integers(0, 5))
def test_always_solved_prompts_are_removed_and_enough_others_stay(
    history: list[tuple[int, float]], retire_after: int, least: int, version: int
) -> None:
    candidates = np.arange(0, 40, 2, dtype=np.uint64)
    settings = PoolSettings(retire_after=retire_after, least_prompts=least)
    pools = DifficultyPools()
    for each in history:
        pools = pools.after([each])
    table = pools.eligible(candidates, settings, version=version, seed=3)
    assert np.all(np.diff(table.astype(np.int64)) > 0)
    assert set(table.tolist()) <= set(candidates.tolist())
    assert len(table) >= min(least, len(candidates))
    retired = [
        prompt
        for prompt, record in pools.records.items()
        if retire_after and record.streak >= retire_after and prompt in candidates.tolist()
    ]
    if len(candidates) - len(retired) >= least:
        assert not set(retired) & set(table.tolist())
    assert DifficultyPools.of_json(pools.as_json()) == pools


def test_the_share_of_easy_prompts_is_drawn_anew_for_each_version() -> None:
    candidates = np.arange(200, dtype=np.uint64)
    pools = DifficultyPools().after([(prompt, 0.9) for prompt in range(200)])
    settings = PoolSettings(easy_share=0.3, least_prompts=1)
    tables = [set(pools.eligible(candidates, settings, version=version, seed=1).tolist()) for version in range(3)]
    assert all(30 <= len(table) <= 90 for table in tables)
    assert tables[0] != tables[1] != tables[2]
