"""The devnet's run: its first policy is published, and the task that generates with it runs on every node."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from cli.devnet.directory import DevnetDirectory
from cli.devnet.economy import Economy
from cli.devnet.image import ROLLOUTS_TAG
from cli.devnet.services import POOL, ROOT, RUN, ServicePlaces
from cli.devnet.supervisor import ProcessFailed
from cli.devnet.task import open_orchestrator, post_task
from ledger.client import Ledger
from protocol.checkpoints import folder_files, version_digest
from protocol.clock import Clock, SystemClock
from protocol.errors import MusterError
from protocol.identifiers import Digest, run_id
from protocol.wire.nodes import RuntimeKind
from protocol.wire.runs import NewCheckpoint, RunView
from protocol.wire.tasks import (
    MEBIBYTE,
    NetworkMode,
    Resources,
    RestartKind,
    RestartRule,
    TaskSpec,
)
from rollouts.recipe import read_recipe
from trainer.presets import devnet_base

NAME = "rollouts"
_PATIENCE = timedelta(seconds=180)
_LOOK_AGAIN = timedelta(milliseconds=300)


async def publish_first_policy(
    directory: DevnetDirectory, places: ServicePlaces, economy: Economy, say: Callable[[str], None]
) -> None:
    """Announces version 0 on the ledger and tells the orchestrator; does nothing twice."""
    folder = directory.policies / "0"
    digest = await asyncio.to_thread(_put_base, directory)
    run = run_id(RUN)
    async with Ledger.connect(places.rpc, economy.deployment, key=economy.keys["publisher"]) as ledger:
        if await ledger.checkpoints.latest(POOL, run) is None:
            await ledger.checkpoints.announce(pool_id=POOL, run=run, version=0, attempt=0, digest=digest)
    recipe = read_recipe(folder)
    checkpoint = NewCheckpoint(version=0, digest=digest, units_per_group=recipe.units_per_group, relays=places.relays)
    async with open_orchestrator(directory, places) as client:
        if (await client.run()).checkpoint is None:
            await client.put_checkpoint(checkpoint)
    say(f"version 0 of the policy is announced: {digest}")


async def post_rollouts_task(
    directory: DevnetDirectory, places: ServicePlaces, runtime: RuntimeKind, say: Callable[[str], None]
) -> None:
    """Posts the task; does nothing if it is there already."""
    spec = TaskSpec(
        name=NAME,
        image=ROLLOUTS_TAG,
        command=(
            sys.executable if runtime is RuntimeKind.PROCESS else "python3",
            *("-m", "rollouts", "--engine", "torch", "--dtype", "float32", "--device", "cpu", "--threads", "1"),
            *("--groups", "4"),
        ),
        environment={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} if runtime is RuntimeKind.PROCESS else {},
        resources=Resources(cpus=1.0, memory_bytes=2048 * MEBIBYTE),
        network=NetworkMode.HOST,
        restart=RestartRule(kind=RestartKind.ALWAYS),
        stop_grace_seconds=5,
    )
    await post_task(directory, places, spec, runtime, say)


async def await_first_rollouts(
    directory: DevnetDirectory, places: ServicePlaces, *, nodes: int, clock: Clock | None = None
) -> None:
    """Returns when so many nodes have work on the ledger.

    Raises:
        ProcessFailed: They do not in time; says where the nodes are instead.
    """
    clock = clock or SystemClock()
    until = clock.monotonic() + _PATIENCE.total_seconds()
    async with open_orchestrator(directory, places) as client:
        while True:
            with suppress(MusterError):
                if len({item.node async for item in client.rollouts(status="all")}) >= nodes:
                    return
            if clock.monotonic() > until:
                states = [f"{node.address} is {node.state.value} ({node.reason})" async for node in client.nodes()]
                raise ProcessFailed(
                    f"{nodes} nodes have not handed in work: {'; '.join(states) or 'no node is known'}",
                    hint=f"logs are in {directory.path / 'logs'}; `muster pool logs` shows what tasks say",
                )
            await clock.sleep(_LOOK_AGAIN)


def _put_base(directory: DevnetDirectory) -> Digest:
    """The shipped base as version 0, in one step: the origin publishes what it sees."""
    folder = directory.policies / "0"
    if not folder.exists():
        partial = directory.path / "policy-0.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(devnet_base(), partial)
        partial.rename(folder)
    return version_digest(folder_files(folder))


def run_facts(run: RunView) -> dict[str, str]:
    """The run in two lines, for the live view."""
    version = "no version yet" if run.checkpoint is None else f"version {run.checkpoint.version}"
    steps = [
        f"step {step.step}: {step.pending} of {step.demand} groups wait for a verdict, {step.accepted} accepted"
        for step in run.steps
        if step.pending or step.accepted or step.leased
    ]
    return {"run": f"{run.run}, {version}", "rollouts": "; ".join(steps) or "none yet"}
