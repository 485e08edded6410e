"""A pool on a real chain with a real Redis, and in it one node and one validator that work by hand.

The node makes files of random tokens by the slot's name, so that equal slots give equal files; the validator accepts
them and writes the audit files that rewards come from.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from pydantic import SecretStr

from orchestrator.storage.local import LocalStore
from protocol.checkpoints import folder_files, version_digest
from protocol.identifiers import Digest, digest, run_id
from protocol.identity.keys import Key
from protocol.leases import WorkClaim
from protocol.runtime.clock import ManualClock
from protocol.verdicts import Outcome
from protocol.wire.audits import AuditFile, AuditRow
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.slots import SlotGrant
from protocol.wire.uploads import ObjectKey
from rollouts.engines.interface import FinishReason
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.files.schema import write_rollouts
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recipe import EnvironmentChoice, PromptRange, Recipe, SamplingChoice, write_recipe
from rollouts.sandbox import Sandboxes
from rollouts.sandbox.decoder import Decoder
from tests.kit.memory_run_ledger import RUN, RunUnderTest
from tests.kit.tiny_model import END, VOCABULARY, tiny_folder
from tests.kit.verdicts import verdict_on
from tests.kit.world import POOL, QUICK, URL, World
from trainer.learning.learner import LearnerState
from trainer.policy.base_model import open_base
from trainer.policy.policy_learner import PolicyLearner
from trainer.run.app import run_trainer
from trainer.run.connections import Outside
from trainer.run.gathering.batches import after_batch, groups_at
from trainer.run.gathering.rollout_files import FileRules, read_accepted
from trainer.run.learner.setup import learning_settings
from trainer.run.settings import TrainerSettings
from trainer.run.state.journal import Journal, Recorded
from trainer.run.state.trainer_state import TrainerState

EACH = 4


@cache
def decoder() -> Decoder:
    """One for all tests of a process; its sandbox ends with it."""
    return Decoder(Sandboxes())


RECIPE = Recipe(
    environment=EnvironmentChoice(name="letters", version="1"),
    sampling=SamplingChoice(max_new_tokens=6),
    group_size=EACH,
    max_prompt_tokens=16,
    held_out=0.1,
    arithmetic=("torch/float32",),
    prompts=PromptRange(count=40),
)

Rewards = Callable[[int, int, int], list[float | None]]
"""Step, index and group to the rewards of the group's samples."""


def half_right(step: int, index: int, group: int) -> list[float | None]:
    """Every group has signal."""
    return [1.0, 0.0, 1.0, 0.0]


def base_folder(folder: Path, *, width: int = 32, layers: int = 1) -> Path:
    """A version of random weights; 20,000 of them unless more are wanted."""
    tiny_folder(folder, kind="llama", hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers)
    write_recipe(folder, RECIPE)
    return folder


@dataclass
class ChainClock:
    """The orchestrator's time, which is the chain's; deadlines and pauses are real."""

    turned: ManualClock

    def now(self) -> datetime:
        return self.turned.now()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(duration.total_seconds())


@dataclass
class TrainedPool:
    """The pool, its node and its validator."""

    run: RunUnderTest
    world: World
    node: Key
    folder: Path
    rewards: Rewards = half_right
    """What rows are worth, and what their file says."""
    audited: Rewards | None = None
    """What the validator says, where that is something else."""
    most_groups: int = 2
    """That the node leases at a time."""
    spoil: Callable[[int, int, bytes], bytes] = field(default=lambda step, index, content: content)
    """Changes a file's bytes before they are hashed and submitted."""
    worker: asyncio.Task[None] | None = None
    turned: float = field(default_factory=time.monotonic)
    between_turns: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever needs that no slot is half-way through the pool."""
    lose: Callable[[int, int], bool] = field(default=lambda step, index: False)
    """Whether an accepted file is gone from the store."""

    @property
    def clock(self) -> ChainClock:
        return ChainClock(self.run.pool.clock)

    def settings(self, **changes: Any) -> TrainerSettings:
        deployment = self.folder / "deployment.json"
        self.world.deployment.save(deployment)
        values: dict[str, Any] = {
            "run": RUN,
            "pool_id": POOL,
            "orchestrator": URL,
            "chain_url": SecretStr(self.world.url),
            "deployment": deployment,
            "start": self.folder / "base",
            "policies": self.folder / "policies",
            "state": self.folder / "state",
            "relays": ("http://127.0.0.1:1",),
            "dtype": "float32",
            "device": "cpu",
            "steps": 3,
            "groups_per_step": 2,
            "linger_s": 0,
            "poll_s": 0.01,
            "patience_s": 20,
            "learning": {"row_tokens": 64, "optimiser": {"learning_rate": 1e-2, "clip": 1.0, "warm_up_steps": 1}},
        }
        return TrainerSettings(**values | changes)

    async def train(
        self, *, stop: asyncio.Event | None = None, transport: httpx.AsyncBaseTransport | None = None, **changes: Any
    ) -> TrainerState:
        outside = Outside(clock=self.clock, transport=transport or self.transport, policy=QUICK)
        key = self.world.keys["publisher"]
        training = asyncio.ensure_future(
            run_trainer(self.settings(**changes), stop=stop or asyncio.Event(), key=key, outside=outside)
        )
        await asyncio.wait({training, self.worker} if self.worker else {training}, return_when=asyncio.FIRST_COMPLETED)
        if not training.done():
            training.cancel()
            await asyncio.wait({training})
            assert self.worker is not None
            self.worker.result()
        return await training

    @property
    def transport(self) -> httpx.AsyncBaseTransport:
        return httpx.ASGITransport(app=self.run.pool.app, raise_app_exceptions=False)

    def progress(self, kind: str) -> list[dict[str, Any]]:
        """The lines of a kind."""
        path = self.folder / "state" / "progress.jsonl"
        text = path.read_text() if path.exists() else ""
        return [line for line in map(json.loads, text.splitlines()) if line["kind"] == kind]

    def recorded(self) -> Recorded:
        """The journal."""
        return Journal(self.folder / "state").read()

    def learned_at_once(self, recorded: Recorded, **changes: Any) -> dict[int, Digest]:
        """The versions that the journal's batches give without any interruption."""
        return self.uninterrupted(recorded, **changes)[0]

    def uninterrupted(self, recorded: Recorded, **changes: Any) -> tuple[dict[int, Digest], LearnerState]:
        """What the journal's batches give without any interruption, from the files in the pool's own store.

        Returns:
            The versions' digests, and the state in the end.
        """
        settings, judge = self.settings(**changes), self.world.keys["validator"].address
        base = open_base(settings.start)
        learner = PolicyLearner(base, learning_settings(settings), device=torch.device("cpu"), dtype=Dtype.FLOAT32)
        rules = FileRules(
            run=run_id(RUN),
            recipe=base.recipe,
            vocabulary=base.facts.vocabulary,
            context=base.facts.context,
            most_bytes=1 << 20,
        )
        state, found = TrainerState(), {}
        for step, batch in sorted(recorded.batches.items()):
            files = [
                read_accepted(
                    self.path(ObjectKey(pool_id=POOL, owner=entry.node, sha256=entry.sha256)),
                    self.path(ObjectKey(pool_id=POOL, owner=judge, sha256=entry.audit, audit=True)),
                    entry=entry,
                    step=step,
                    rules=rules,
                    decoder=decoder(),
                )
                for entry in batch.files
            ]
            if batch.groups:
                learner.learn(groups_at(files, batch.groups), parts=batch.parts, step=step)
            state = after_batch(state, files, learned=bool(batch.groups))
            folder = self.folder / "at-once" / str(step + 1)
            assert base.candidates is not None
            eligible = state.pools.eligible(base.candidates, settings.pools, version=step + 1, seed=settings.seed)
            learner.write(folder, eligible=eligible)
            found[step + 1] = version_digest(folder_files(folder))
        return found, learner.state()

    async def turn(self) -> None:
        """One round of everything that a pool does by itself: a slot is worked on where one is wanted."""
        now = time.monotonic()
        await self.run.pool.clock.turn(timedelta(seconds=now - self.turned))
        self.turned = now
        await self.run.sync.round()
        answer = await self.run.leasing.step()
        if answer.need:
            await self.run.pool.clock.turn(timedelta(milliseconds=400))  # or the node would ask too often
            leased = await self.run.ask(
                self.node, step=answer.step, groups=min(self.most_groups, answer.need), request=os.urandom(16).hex()
            )
            if leased.status_code == 200:
                await self.work(SlotGrant.model_validate_json(leased.content))

    async def lose_redis(self) -> None:
        """Everything in Redis is gone between two turns; the node comes back with its next heartbeat."""
        async with self.between_turns:
            await self.run.pool.dependencies.redis.flushall()
            self.run.chain.forget_position()
            await self.run.pool.beat(self.node, pool_id=POOL)

    async def work(self, grant: SlotGrant) -> Digest:
        """Makes a slot's file, hands it in, has it carried and accepted."""
        lease = grant.lease.lease
        path = self.folder / "made.parquet"
        file = file_of(grant, self.rewards)
        write_rollouts(path, file)
        content = self.spoil(lease.step, lease.index, path.read_bytes())
        sha256 = digest(hashlib.sha256(content).digest())
        self.store(ObjectKey(pool_id=POOL, owner=self.node.address, sha256=sha256), content)
        words = WorkClaim(lease_hash=lease.hash, sha256=sha256, units=file.units)
        signature = "0x" + words.sign(self.node, grant.lease.domain).hex()
        signed = SignedWorkClaim(lease=grant.lease, sha256=sha256, units=file.units, signature=signature)
        answer = await self.run.hand_in(self.node, signed, uploaded=False)
        assert answer.status_code == 200, answer.text
        await self.run.relayer.round()
        await self.run.sync.round()
        await self.judge(grant, file, sha256)
        if self.lose(lease.step, lease.index):
            self.path(ObjectKey(pool_id=POOL, owner=self.node.address, sha256=sha256)).unlink()
        return lease.key.hash

    async def judge(self, grant: SlotGrant, file: RolloutFile, sha256: Digest) -> None:
        lease = grant.lease.lease
        validator = await self.world.as_("validator")
        audit = audit_of(grant, file, sha256, self.world.keys["validator"], self.audited or self.rewards).encode()
        named = digest(hashlib.sha256(audit).digest())
        self.store(ObjectKey(pool_id=POOL, owner=validator.address, sha256=named, audit=True), audit)
        await validator.work.judge([await verdict_on(validator, lease.key.hash, Outcome.ACCEPTED, audit_hash=named)])
        await self.run.sync.round()

    @staticmethod
    def named(content: bytes) -> Digest:
        """SHA-256."""
        return digest(hashlib.sha256(content).digest())

    def path(self, key: ObjectKey) -> Path:
        objects = self.run.pool.dependencies.objects
        assert isinstance(objects, LocalStore)
        return objects.path(key)

    def store(self, key: ObjectKey, content: bytes) -> None:
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """The pool works by itself meanwhile."""

        ending = asyncio.Event()  # libraries swallow cancellations

        async def turns() -> None:
            while not ending.is_set():
                async with self.between_turns:
                    await self.turn()
                await asyncio.sleep(0.01)

        self.worker = asyncio.create_task(turns())
        try:
            yield
        finally:
            ending.set()
            await self.worker
            self.worker = None


async def until(so: Callable[[], bool]) -> None:
    """Returns when something is so; the test's own limit ends it otherwise."""
    while not so():  # noqa: ASYNC110 - there is no event to wait for: the trainer does not know that it is watched
        await asyncio.sleep(0.02)


def file_of(grant: SlotGrant, rewards: Rewards) -> RolloutFile:
    """A file of tokens that the slot's name draws. A row whose reward is undecided says 0."""
    lease = grant.lease.lease
    rng = np.random.default_rng([lease.step, lease.index, lease.version])
    header = SlotHeader(
        run=run_id(RUN),
        step=lease.step,
        index=lease.index,
        node=lease.node,
        checkpoint=lease.digest,
        environment="letters",
        environment_version="1",
        arithmetic=Arithmetic(engine=EngineName.TORCH, dtype=Dtype.FLOAT32),
    )
    samples = []
    for group in range(lease.groups):
        prompt = rng.integers(4, VOCABULARY, 3).astype(np.int32)
        given = [reward or 0.0 for reward in rewards(lease.step, lease.index, group)]
        for each in range(EACH):
            tokens = np.array([*rng.integers(4, VOCABULARY, 1 + each), END], np.int32)
            samples.append(
                Sample(
                    group=group,
                    sample=group * EACH + each,
                    prompt_index=int(prompt[0]),
                    prompt_tokens=prompt,
                    output_tokens=tokens,
                    logprobs=np.full(len(tokens), -3.0, np.float32),
                    finish=FinishReason.EOS,
                    task_reward=given[each],
                    length_penalty=0.0,
                    reward=given[each],
                    target_length=None,
                    proofs=b"",
                )
            )
    return RolloutFile(header, tuple(samples))


def audit_of(grant: SlotGrant, file: RolloutFile, sha256: Digest, validator: Key, rewards: Rewards) -> AuditFile:
    """The audit file of an accepted file."""
    lease = grant.lease.lease
    given = {group: rewards(lease.step, lease.index, group) for group in range(lease.groups)}
    rows = []
    for row, sample in enumerate(file.samples):
        reward = given[sample.group][row % EACH]
        rows.append(
            AuditRow(
                row=row,
                group=sample.group,
                sample=sample.sample,
                prompt_index=sample.prompt_index,
                tokens=len(sample.output_tokens),
                task=reward,
                length_penalty=0.0,
                reward=reward,
                audited=True,
            )
        )
    return AuditFile(
        pool_id=POOL,
        key=lease.key.hash,
        validator=validator.address,
        judged_at_ms=1,
        muster="test",
        outcome=Outcome.ACCEPTED,
        reason=0,
        words="as it should be",
        node=lease.node,
        run=lease.run,
        step=lease.step,
        index=lease.index,
        version=lease.version,
        checkpoint=lease.digest,
        sha256=sha256,
        units=file.units,
        submitted_block=1,
        beacon_block=None,
        checks=(),
        rows=tuple(rows),
    )
