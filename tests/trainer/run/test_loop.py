"""A run from the base to its last step, over a real chain, a real Redis and a real orchestrator."""

from __future__ import annotations

import torch
from safetensors import safe_open

from protocol.checkpoints import folder_files, version_digest
from protocol.identifiers import run_id
from tests.ledger.client.conftest import POOL
from tests.orchestrator.runs.edge import RUN
from tests.trainer.run.world import TrainedPool


async def test_accepted_rollouts_become_versions_that_the_ledger_and_the_orchestrator_name(pool: TrainedPool) -> None:
    async with pool.working():
        state = await pool.train()
    assert state.step == 3
    digests = [version_digest(folder_files(pool.folder / "policies" / str(version))) for version in range(4)]
    assert len(set(digests)) == 4, "each step made another policy"
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


async def test_random_numbers_follow_from_the_runs_seed_before_the_first_state_is_there(pool: TrainedPool) -> None:
    async with pool.working():
        await pool.train(steps=1, seed=7)
    with safe_open(pool.folder / "state" / "state.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("rng"), torch.Generator().manual_seed(7).get_state())
