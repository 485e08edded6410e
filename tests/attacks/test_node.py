"""An attacking node is the real worker with the real task; only the attack's own behaviour differs."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from cli.devnet.attacks.__main__ import app
from cli.devnet.attacks.registry import ATTACKS, find_attack
from cli.devnet.attacks.task import CheatingTask
from cli.devnet.attacks.worker import with_attack
from protocol.errors import NotFound
from protocol.runtime.clock import SystemClock
from protocol.runtime.retry import Backoff
from protocol.wire.tasks import NetworkMode, Resources
from rollouts.checks import SlotFacts, open_version
from rollouts.engines.torch.engine import TorchEngine
from rollouts.files.schema import read_rollouts
from rollouts.precision import Dtype
from rollouts.task.bridge import Bridge
from rollouts.task.policies import PolicyStore
from rollouts.verify.files import verify_file
from tests.kit.rollout_task import BEACON, DOMAIN, TASK, Surroundings, around, until
from worker.delivery.queue.item import QueueItem
from worker.delivery.work_signing import LEASED_WORK, LeasedWork
from worker.runtime.interface import ContainerSpec

__all__ = ["around"]


async def work_of(around: Surroundings, name: str, *, slots: int = 1, versions: int = 1) -> list[QueueItem]:
    """Returns what the attack's task hands over for a number of slots of each version."""
    bridge = Bridge(str(around.home / "s"), token=TASK.token, clock=SystemClock(), backoff=Backoff(attempts=2))
    task = CheatingTask(
        trick=find_attack(name).trick(),
        data=around.data,
        bridge=await around.stack.enter_async_context(bridge),
        engine=TorchEngine(dtype=Dtype.FLOAT32),
        policies=PolicyStore(around.shared, fetch=None, clock=around.clock),
        groups=2,
        clock=around.clock,
    )
    around.orchestrator.slots = 0
    running = asyncio.create_task((await around.stack.enter_async_context(task)).run())
    for version in range(versions):
        around.publish(version)
        around.orchestrator.slots = slots * (version + 1)
        await until(lambda: len(around.queue.items()) == around.orchestrator.slots or running.done())
    task.stop()
    await running
    return around.queue.items()


async def test_the_one_unit_attack_claims_one_unit_for_a_complete_file(around: Surroundings) -> None:
    (item,) = await work_of(around, "one-unit")
    claimed = LeasedWork.model_validate_json(item.metadata[LEASED_WORK]).units
    assert claimed == 1
    assert 1 < read_rollouts(item.path).units <= around.orchestrator.granted[0].max_units


async def test_the_previous_checkpoint_attack_starts_with_the_second_version(around: Surroundings) -> None:
    items = await work_of(around, "previous-checkpoint", versions=2)
    failed = []
    for item, lease in zip(items, around.orchestrator.granted, strict=True):
        version = open_version(around.shared / "checkpoints" / lease.digest)
        facts = SlotFacts.of_lease(lease, domain=DOMAIN, beacon=BEACON)
        failed.append([result.check for result in verify_file(item.path, version, facts=facts).failed])
    assert failed[0] == []
    assert "computation" in failed[1]


def test_the_attack_worker_runs_the_attack_in_place_of_the_honest_task() -> None:
    spec = container("python3", "-m", "rollouts", "--groups", "4")
    assert with_attack(spec, ATTACKS["int8"]).command == (
        *(sys.executable, "-m", "cli.devnet.attacks.task", "int8"),
        *("--groups", "4"),
    )
    other = container("python3", "-c", "print()")
    assert with_attack(other, ATTACKS["int8"]) == other


def test_attacks_are_listed_and_an_unknown_name_is_refused() -> None:
    said = CliRunner().invoke(app, ["list", "--json"])
    assert [row["name"] for row in json.loads(said.stdout)] == list(ATTACKS)
    with pytest.raises(NotFound, match="no cheat 'honesty'"):
        find_attack("honesty")


def container(*command: str) -> ContainerSpec:
    return ContainerSpec(
        name="muster-1",
        assignment_id="a" * 32,
        fingerprint="f",
        restart_nonce=0,
        image="muster/rollouts:devnet",
        entrypoint=None,
        command=command,
        environment={},
        mounts=(),
        resources=Resources(),
        gpu_uuids=(),
        gpu_indices=(),
        network=NetworkMode.HOST,
        read_only_root=True,
        stop_grace=timedelta(seconds=1),
    )
