"""A run from the base to its last step, with a real chain, Redis and orchestrator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import trainer.run.versions
from protocol.checkpoints import folder_files, version_digest
from protocol.identifiers import run_id
from tests.kit.memory_run_ledger import RUN
from tests.kit.trained_pool import TrainedPool
from tests.kit.world import POOL
from trainer.learning.learner import LearnerState
from trainer.policy.policy_learner import PolicyLearner
from trainer.run.state.trainer_state import TrainerState, save_state


async def test_accepted_rollouts_become_versions_announced_on_the_ledger_and_to_the_orchestrator(
    pool: TrainedPool,
) -> None:
    async with pool.working():
        state = await pool.train()
    assert state.step == 3
    digests = [version_digest(folder_files(pool.folder / "policies" / str(version))) for version in range(4)]
    assert len(set(digests)) == 4, "each step gave another policy"
    ledger = await pool.world.as_("owner")
    announced = [await ledger.checkpoints.get(POOL, run_id(RUN), version) for version in range(4)]
    assert [one.digest if one else None for one in announced] == digests
    view = await pool.run.pool.owner("GET", "/v1/run")
    assert (view["checkpoint"]["version"], view["checkpoint"]["digest"]) == (3, digests[3])
    assert view["checkpoint"]["arithmetic"] == ["torch/float32"]
    steps = pool.progress("step")
    assert [(line["step"], line["version"], line["groups"]["used"]) for line in steps] == [
        (0, 1, 2),
        (1, 2, 2),
        (2, 3, 2),
    ]
    assert all(line["reward"] == 0.5 for line in steps)
    shown = (await pool.run.pool.owner("GET", "/v1/run/trained"))["items"]
    assert [(one["step"], one["reward"]) for one in shown] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert [one["loss"] for one in shown] == [line["figures"]["loss"] for line in steps]
    sampled = await pool.run.pool.owner("GET", "/v1/run/samples")
    assert (sampled["step"], sampled["steps"]) == (2, [0, 1, 2])
    assert [one["reward"] for one in sampled["samples"]] == [1.0, 0.0, 1.0, 0.0]
    assert all(one["prompt"] and one["tokens"] for one in sampled["samples"])


async def test_a_state_is_saved_from_the_live_tensors_while_no_optimiser_step_runs(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the state would take three times the memory of the weights, and each thread's heap keeps its memory."""
    threads, added, finished = set[str](), threading.Event(), threading.Event()
    learners, order = list[PolicyLearner](), list[tuple[str, int]]()

    def watched(name: str, then: Callable[[PolicyLearner], None]) -> Callable[..., Any]:
        method = getattr(PolicyLearner, name)

        def run(learner: PolicyLearner, *arguments: Any, **named: Any) -> Any:
            threads.add(threading.current_thread().name)
            answer = method(learner, *arguments, **named)
            then(learner)
            return answer

        return run

    def save(folder: Path, *, state: TrainerState, learner_state: LearnerState, identity: Mapping[str, str]) -> None:
        own = learners[0].state().tensors
        assert all(
            own[name].data_ptr() == tensor.data_ptr() for name, tensor in learner_state.tensors.items() if "." in name
        )
        if state.step == 1:
            assert added.wait(60), "gradients of the next step are added at the same time"
            assert not finished.wait(0.2)
        save_state(folder, state=state, learner_state=learner_state, identity=identity)
        order.append(("saved", state.step))

    def finish(_: PolicyLearner) -> None:
        order.append(("stepped", len(order) // 2))
        if len(order) > 1:
            finished.set()

    monkeypatch.setattr(PolicyLearner, "begin", watched("begin", learners.append))
    monkeypatch.setattr(PolicyLearner, "add", watched("add", lambda _: added.set() if order else None))
    monkeypatch.setattr(PolicyLearner, "finish", watched("finish", finish))
    monkeypatch.setattr(PolicyLearner, "write", watched("write", lambda _: None))
    monkeypatch.setattr(trainer.run.versions, "save_state", save)
    async with pool.working():
        await pool.train(steps=2)
    assert order == [("stepped", 0), ("saved", 1), ("stepped", 1), ("saved", 2)]
    assert threads == {"learner_0"}
    memory = [line["memory"] for line in pool.progress("step")]
    assert all(0 < each["resident_bytes"] <= each["peak_bytes"] for each in memory)


async def test_the_random_state_follows_from_the_runs_seed_before_the_first_save(pool: TrainedPool) -> None:
    async with pool.working():
        await pool.train(steps=1, seed=7)
    with safe_open(pool.folder / "state" / "state.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("rng"), torch.Generator().manual_seed(7).get_state())
