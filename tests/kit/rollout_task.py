"""Environment of a rollout task: the worker's bridge on a Unix socket, its queue and a model."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import Conflict
from protocol.http.serving.unix_server import UnixServer
from protocol.identifiers import Address, Digest, digest, run_id
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease
from protocol.runtime.clock import SystemClock
from protocol.runtime.retry import Backoff
from protocol.wire.leases import SignedLease
from protocol.wire.runs import CheckpointRef, StepAnswer
from protocol.wire.slots import SlotGrant, SlotName, SlotRequest
from rollouts.engines.torch.engine import TorchEngine
from rollouts.precision import Dtype
from rollouts.recipe import EnvironmentChoice, PromptRange, Recipe, SamplingChoice, write_recipe
from rollouts.task.bridge import Bridge
from rollouts.task.loop import MOST_SLOTS, RolloutTask
from rollouts.task.outbox import Outbox
from rollouts.task.policies import PolicyStore
from rollouts.task.serving_loop import ServingTask
from tests.kit.dialogues import talking_folder
from tests.kit.tiny_model import chat_folder, tiny_folder
from worker.delivery.queue.store import QueueStore
from worker.slots.bridge.app import BridgeDependencies, create_bridge
from worker.slots.gateway_sessions import GatewaySessions
from worker.slots.task_slots import TaskSlots
from worker.state import StateDirectory
from worker.tasks.saved_state import RunningTask

TASK = RunningTask(assignment_id="a" * 32, task_id="b" * 32, task_name="rollouts", generation=1, token="right")
DOMAIN = SigningDomain(1, Key.generate().address)
POOL = 7
RUN = "devnet"
PATIENCE_S = 90
BEACON = digest(b"\7" * 32)
SALT = digest(b"\5" * 32)
NODE_KEY = Key.generate()
NODE = NODE_KEY.address


class HastyClock(SystemClock):
    """Real time, but that pauses are short, that it can be set (`ahead`), and that time can have passed.

    For the task alone: who waits for answers needs all of the time that it is given.
    """

    def __init__(self) -> None:
        self.ahead = timedelta()
        self.passed = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed

    def now(self) -> datetime:
        return super().now() + self.ahead

    async def sleep(self, duration: timedelta) -> None:
        await super().sleep(min(duration, timedelta(milliseconds=20)))


@dataclass
class Orchestrator:
    """Grants requested slots until its supply is used up."""

    key: Key = field(default_factory=Key.generate)
    checkpoint: CheckpointRef | None = None
    units_per_group: int = 0
    max_units: int | None = None
    """Of every lease; None for what its groups can have."""
    gateway: str = ""
    groups_per_slot: int = 2
    slots: int = 1
    lease_s: int = 60
    asked: int = 0
    granted: list[Lease] = field(default_factory=list)
    released: list[SlotName] = field(default_factory=list)

    @property
    def address(self) -> Address:
        return self.key.address

    async def step(self) -> StepAnswer:
        self.asked += 1
        need = 2 * self.groups_per_slot if len(self.granted) < self.slots else 0
        return StepAnswer(
            run=RUN,
            run_id=run_id(RUN),
            step=3,
            need=need,
            groups_per_slot=self.groups_per_slot,
            checkpoint=self.checkpoint,
            retry_after_ms=100,
            reason="" if need else "all leased",
            gateway=self.gateway,
        )

    async def slot(self, request: SlotRequest) -> SlotGrant:
        if self.checkpoint is None or len(self.granted) >= self.slots:
            raise Conflict("no slot now")
        lease = Lease(
            pool_id=POOL,
            run=run_id(RUN),
            step=request.step,
            index=len(self.granted),
            node=NODE,
            version=self.checkpoint.version,
            digest=self.checkpoint.digest,
            beacon_block=1,
            salt=SALT,
            groups=request.groups,
            max_units=self.max_units or request.groups * self.units_per_group,
            expiry=int(SystemClock().now().timestamp()) + self.lease_s,
        )
        self.granted.append(lease)
        signed = SignedLease.of(lease, domain=DOMAIN, signature=lease.sign(self.key, DOMAIN))
        return SlotGrant(lease=signed, beacon=BEACON)

    async def release(self, slots: tuple[SlotName, ...]) -> None:
        self.released += slots


@dataclass
class Surroundings:
    """Environment of a task, with access to its results."""

    home: Path
    orchestrator: Orchestrator
    queue: QueueStore
    server: UnixServer
    stack: AsyncExitStack
    metrics: dict[str, float] = field(default_factory=dict)
    clock: HastyClock = field(default_factory=HastyClock)
    gateway: Address | None = None
    """Key of the gateway that the recipes of further versions name; None for versions of no serving run."""

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def shared(self) -> Path:
        return self.home / "shared"

    def publish(
        self,
        number: int,
        *,
        version: str = "1",
        options: dict[str, JsonValue] | None = None,
        new_tokens: int = 8,
        seed: int | None = None,
        arithmetic: tuple[str, ...] = (),
        said: tuple[str, ...] | None = None,
        dialogues: Recipe | None = None,
        **config: Any,
    ) -> Digest:
        """Puts a version on the shared volume and names it as the newest.

        Args:
            number: The version.
            version: Of its environment.
            options: Of its environment.
            new_tokens: The most of an answer.
            seed: Of its weights.
            arithmetic: What its recipe takes.
            said: What the orchestrator says of that; None for the same.
            dialogues: Its recipe, with a model that often ends its messages; the other choices then have no effect.
            config: Changes to the model's config.
        """
        make = tiny_folder if self.gateway is None else chat_folder
        folder = make(self.home / f"v{number}", seed=number if seed is None else seed, **config)
        name = "letters" if self.gateway is None else "served"
        if self.gateway is not None:
            options = {"gateway": self.gateway} | (options or {})
        recipe = Recipe(
            environment=EnvironmentChoice(name=name, version=version, options=options or {}),
            sampling=SamplingChoice(max_new_tokens=new_tokens),
            group_size=2 if self.gateway is None else 1,
            arithmetic=arithmetic,
            max_prompt_tokens=64,
            prompts=PromptRange(count=1000 if self.gateway is None else 1),
        )
        if dialogues is not None:
            recipe = dialogues
            shutil.rmtree(folder)
            talking_folder(folder, seed=number)
        write_recipe(folder, recipe)
        self.orchestrator.units_per_group = recipe.units_per_group
        found = version_digest(folder_files(folder))
        (self.shared / "checkpoints").mkdir(parents=True, exist_ok=True)
        folder.rename(self.shared / "checkpoints" / found)
        self.orchestrator.checkpoint = CheckpointRef(
            version=number,
            attempt=0,
            digest=found,
            block=1,
            publisher=self.orchestrator.address,
            arithmetic=arithmetic if said is None else said,
        )
        return found

    async def task(self, dtype: Dtype = Dtype.FLOAT32, *, most_slots: int = MOST_SLOTS) -> RolloutTask:
        """A task as its container starts it."""
        parts = await self._parts(TorchEngine(dtype=dtype), groups=2)
        return await self.stack.enter_async_context(RolloutTask(**parts, most_slots=most_slots))

    async def serving_task(self, *, most_batch: int = 8, groups: int = 8) -> ServingTask:
        """A task as its container starts it with `--serve`."""
        parts = await self._parts(TorchEngine(dtype=Dtype.FLOAT32, max_batch=most_batch), groups=groups)
        return await self.stack.enter_async_context(ServingTask(**parts))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the program of a task's container."""
        return {
            "MUSTER_DATA_DIR": str(self.data),
            "MUSTER_SHARED_DIR": str(self.shared),
            "MUSTER_BRIDGE_SOCKET": str(self.home / "s"),
            "MUSTER_BRIDGE_TOKEN": TASK.token,
        }

    async def _parts(self, engine: TorchEngine, *, groups: int) -> dict[str, Any]:
        clock = self.clock
        bridge = await self.stack.enter_async_context(
            Bridge(str(self.home / "s"), token=TASK.token, clock=SystemClock(), backoff=Backoff(attempts=2))
        )
        return {
            "bridge": bridge,
            "engine": engine,
            "policies": PolicyStore(self.shared, fetch=None, clock=clock),
            "outbox": Outbox(self.data, bridge=bridge),
            "groups": groups,
            "clock": clock,
        }


async def borne_out(lease: Lease, beacon: Digest) -> str:
    """What the chain says against this orchestrator's leases: nothing."""
    return ""


async def until(done: Callable[[], bool], *, patience_s: float = PATIENCE_S) -> None:
    """Returns when something is so."""
    end = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)


@pytest.fixture
async def around(tmp_path: Path) -> AsyncIterator[Surroundings]:
    home = tmp_path
    for name in ("data", "state"):
        (home / name).mkdir()
    queue = QueueStore(home / "queue.sqlite", home / "spool")
    orchestrator = Orchestrator()
    metrics: dict[str, float] = {}
    slots = TaskSlots(
        assignment_id=TASK.assignment_id,
        node=NODE,
        pool_id=POOL,
        domain=DOMAIN,
        state=StateDirectory(home / "state"),
        service=lambda: orchestrator,
        fault_of=borne_out,
        clock=SystemClock(),
    )
    sessions = GatewaySessions(key=NODE_KEY, step=slots.step, lease_of=slots.lease_of, clock=SystemClock())
    dependencies = BridgeDependencies(
        task=TASK,
        node=NODE,
        pool_id=POOL,
        volume=home / "data",
        queue=queue,
        on_metrics=metrics.update,
        on_file=lambda: None,
        clock=SystemClock(),
        most_file_bytes=1 << 24,
        most_spooled_bytes=1 << 26,
        slots=slots,
        sessions=sessions,
    )
    server = UnixServer(create_bridge(dependencies), home / "s", mode=0o600)
    await server.start()
    async with AsyncExitStack() as stack:
        yield Surroundings(home, orchestrator, queue, server, stack, metrics)
    await server.stop()
    await sessions.aclose()
