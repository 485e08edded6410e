"""The task from a step to a file in the worker's queue, with a real model, bridge and queue."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import torch

from protocol.errors import Conflict, RateLimited, Unavailable
from protocol.identifiers import Digest, run_id
from protocol.wire.bridge import HandedOver, HandOver
from protocol.wire.runs import CheckpointRef
from protocol.wire.slots import SlotGrant, SlotRequest
from rollouts.dialogue.play import play
from rollouts.engines.torch.batch import GenerationBatch
from rollouts.engines.torch.engine import TorchEngine
from rollouts.environments import Prompt, Score, load_environment
from rollouts.environments.letters import Letters
from rollouts.errors import EngineFailed
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import read_rollouts
from rollouts.models.facts import read_model
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlanner
from rollouts.precision import Arithmetic, Dtype
from rollouts.recipe import eligible_prompts, read_recipe
from rollouts.seeds import slot_seed
from rollouts.task.base import MOST_ENGINE_FAILURES
from rollouts.task.loop import MOST_SLOTS, RolloutTask
from rollouts.task.policies import HeldPolicy
from tests.kit.dialogues import REPLIES, dialogue_recipe, replying_planner
from tests.kit.own_time import OwnTime
from tests.kit.rollout_task import BEACON, DOMAIN, NODE, PATIENCE_S, POOL, RUN, SALT, Surroundings, until
from worker.delivery.work_signing import LEASED_WORK, LeasedWork


class Killed(Exception):
    """Simulates `kill -9`."""


async def run_until(task: RolloutTask, done: Callable[[], bool]) -> None:
    """Runs the task until a condition holds, then stops it."""
    running = asyncio.create_task(task.run())
    await until(lambda: done() or running.done())
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)


def handed_over(around: Surroundings) -> list[RolloutFile]:
    return [read_rollouts(item.path) for item in sorted(around.queue.items(), key=lambda item: item.created_ms)]


async def test_a_slot_becomes_a_rollout_file_in_the_workers_queue(around: Surroundings) -> None:
    digest = around.publish(0)
    task = await around.task()
    await run_until(task, lambda: task.totals.slots == 1)
    (file,) = handed_over(around)
    assert (file.header.run, file.header.step, file.header.index) == (run_id(RUN), 3, 0)
    assert (file.header.node, file.header.checkpoint) == (NODE, digest)

    folder = around.shared / "checkpoints" / digest
    recipe = read_recipe(folder)
    planner = SlotPlanner(
        recipe=recipe,
        eligible=eligible_prompts(folder, recipe),
        environment=load_environment("letters"),
        tokenizer=FolderTokenizer(folder),
    )
    seed = slot_seed(
        chain_id=DOMAIN.chain_id,
        pool_id=POOL,
        run_id=run_id(RUN),
        step=3,
        node=NODE,
        index=0,
        digest=digest,
        beacon=BEACON,
        salt=SALT,
    )
    plan = planner.plan(seed, groups=2)
    expected = [(group.group, sample, group.prompt.index) for group in plan.groups for sample in group.samples]
    assert [(row.group, row.sample, row.prompt_index) for row in file.samples] == expected
    for row in file.samples:
        asked = plan.groups[row.group]
        assert tuple(row.prompt_tokens) == asked.tokens
        assert len(row.proofs) == 258
        assert row.reward == planner.reward(asked.prompt, row.output_tokens.tolist(), row.finish).total

    (item,) = around.queue.items()
    work = LeasedWork.model_validate(json.loads(item.metadata[LEASED_WORK]))
    assert work.units == file.units
    assert work.figures["samples"] == 4
    assert 0 < work.figures["seconds"] < PATIENCE_S
    assert around.metrics["tokens-total"] == file.units
    assert not list((around.data / "outbox").iterdir())


async def test_slots_of_dialogues_share_the_batch_and_become_files(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each dialogue equals the one that is played alone, and its work units are the drawn tokens."""
    monkeypatch.setattr("rollouts.task.generator.load_environment", lambda *_, **__: REPLIES)
    around.orchestrator.slots = 3
    digest = around.publish(0, dialogues=(recipe := dialogue_recipe(new_tokens=60, each=2)))
    task = await around.task()
    await run_until(task, lambda: task.totals.slots == 3)
    folder = around.shared / "checkpoints" / digest
    engine = TorchEngine(dtype=Dtype.FLOAT32)
    engine.load(folder, version=digest)
    for file in handed_over(around):
        assert file.is_dialogue
        assert file.units == sum(turn.drawn for sample in file.samples for turn in sample.turns)
        planner, facts = replying_planner(recipe, folder), read_model(folder)
        seed = slot_seed(
            chain_id=DOMAIN.chain_id,
            pool_id=POOL,
            run_id=run_id(RUN),
            step=file.header.step,
            node=NODE,
            index=file.header.index,
            digest=digest,
            beacon=BEACON,
            salt=SALT,
        )
        plan = planner.plan(seed, groups=2)
        dialogues = [
            planner.dialogue(group, sample, seed=seed, model=facts) for sample, group in plan.group_of_sample().items()
        ]
        with ThreadPoolExecutor(1) as replies:
            played = {one.sample: one for one in play(engine, dialogues, recipe.sampling.parameters, replies=replies)}
        assert [sample.sample for sample in file.samples] == sorted(played)
        for sample in file.samples:
            assert tuple(sample.tokens_after_prompt) == played[sample.sample].tokens
            assert sample.reward == played[sample.sample].reward.total
            assert len(sample.proofs) == 258 * -(-len(sample.output_tokens) // 32)


async def test_a_file_names_the_full_version_of_its_environment(around: Surroundings) -> None:
    around.publish(0, version="1", options={"filler": True})
    task = await around.task()
    await run_until(task, lambda: task.totals.slots == 1)
    (file,) = handed_over(around)
    assert file.header.environment_version == load_environment("letters", options={"filler": True}).version != "1"


async def test_a_new_version_is_loaded_between_slots_and_an_older_one_never(around: Surroundings) -> None:
    around.orchestrator.slots = 1
    first = around.publish(0)
    task = await around.task()
    running = asyncio.create_task(task.run())
    await until(lambda: task.totals.slots == 1)
    old = around.orchestrator.checkpoint
    second = around.publish(5)
    around.orchestrator.slots = 2
    await until(lambda: task.totals.slots == 2)
    around.orchestrator.checkpoint = old
    around.orchestrator.slots = 3
    asked = around.orchestrator.asked
    # the task requests again, and leases nothing of the old version
    await until(lambda: around.orchestrator.asked > asked)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert [file.header.checkpoint for file in handed_over(around)] == [first, second]
    assert len(around.orchestrator.granted) == 2


@pytest.mark.parametrize("said", [("vllm/float32", "vllm/bfloat16"), ()], ids=["named by the step", "in the recipe"])
async def test_an_unpaid_engine_leases_nothing_and_logs_which_are_paid(
    around: Surroundings, said: tuple[str, ...]
) -> None:
    digest = around.publish(0, arithmetic=("vllm/float32", "vllm/bfloat16"), said=said)
    if said:  # a refused version is not even fetched
        shutil.rmtree(around.shared / "checkpoints" / digest)
    task = await around.task()
    with structlog.testing.capture_logs() as logs:
        await run_until(task, lambda: any(entry["event"] == "put-off" for entry in logs))
    (first, *_) = [entry for entry in logs if entry["event"] == "put-off"]
    assert first["code"] == "arithmetic-not-taken"
    assert first["why"] == (
        "this task generates with torch/float32, but this version is paid for vllm/float32, vllm/bfloat16 only"
    )
    assert "--engine vllm --dtype float32" in first["hint"]
    assert not around.orchestrator.granted
    assert task.totals.slots == 0


async def test_a_recipe_without_arithmetic_does_not_pay_for_bfloat16(around: Surroundings) -> None:
    around.publish(0)
    task = await around.task(Dtype.BFLOAT16)
    with structlog.testing.capture_logs() as logs:
        await run_until(task, lambda: any(entry["event"] == "put-off" for entry in logs))
    (first, *_) = [entry for entry in logs if entry["event"] == "put-off"]
    assert first["code"] == "arithmetic-not-taken"
    assert "paid for torch/float32, vllm/float32 only" in first["why"]
    assert not around.orchestrator.granted


async def test_a_later_version_that_pays_for_the_engine_is_worked_on(around: Surroundings) -> None:
    around.publish(0, arithmetic=("vllm/float32",))
    task = await around.task()
    running = asyncio.create_task(task.run())
    await until(lambda: task._put_offs > 0)
    around.publish(1, arithmetic=("vllm/float32", "torch/float32"))
    await until(lambda: task.totals.slots == 1)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)


async def test_a_corrected_arithmetic_from_the_orchestrator_is_used(around: Surroundings) -> None:
    around.publish(0, arithmetic=("torch/float32",), said=("vllm/float32",))
    task = await around.task()
    running = asyncio.create_task(task.run())
    await until(lambda: task._put_offs > 0)
    told = around.orchestrator.checkpoint
    assert told is not None
    around.orchestrator.checkpoint = told.model_copy(update={"arithmetic": ("torch/float32",)})
    await until(lambda: task.totals.slots == 1)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)


@pytest.fixture
def numerics_class(monkeypatch: pytest.MonkeyPatch) -> str:
    """Lets the engine name a numerics class besides its pair; returns the class."""
    name = "vllm-0.32.0/float32/cpu-avx2"
    names = (Arithmetic.parse(name), Arithmetic.parse("torch/float32"))
    monkeypatch.setattr(TorchEngine, "arithmetics", names)
    return name


def set_unverifiable(around: Surroundings, *names: str) -> None:
    told = around.orchestrator.checkpoint
    assert told is not None
    around.orchestrator.checkpoint = told.model_copy(update={"unverifiable": names})


async def test_a_class_that_no_validator_verifies_is_neither_fetched_nor_leased_until_one_does(
    around: Surroundings, numerics_class: str
) -> None:
    digest = around.publish(0, arithmetic=(numerics_class,))
    set_unverifiable(around, numerics_class)
    folder = around.shared / "checkpoints" / digest
    folder.rename(around.home / "away")
    task = await around.task()
    with structlog.testing.capture_logs() as logs:
        running = asyncio.create_task(task.run())
        await until(lambda: task._put_offs > 1)
        assert {entry["code"] for entry in logs if entry["event"] == "put-off"} == {"arithmetic-not-verifiable"}
    assert not around.orchestrator.granted
    (around.home / "away").rename(folder)
    set_unverifiable(around)
    await until(lambda: task.totals.slots == 1)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert [str(file.header.arithmetic) for file in handed_over(around)] == [numerics_class]


async def test_files_carry_another_paid_name_while_no_validator_verifies_the_class(
    around: Surroundings, numerics_class: str
) -> None:
    around.publish(0, arithmetic=(numerics_class, "torch/float32"))
    set_unverifiable(around, numerics_class)
    task = await around.task()
    running = asyncio.create_task(task.run())
    await until(lambda: task.totals.slots == 1)
    set_unverifiable(around)  # the version is the same: it is not loaded again
    around.orchestrator.slots = 2
    await until(lambda: task.totals.slots == 2)
    set_unverifiable(around, numerics_class)
    around.orchestrator.slots = 3
    await until(lambda: task.totals.slots == 3)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    names = [str(file.header.arithmetic) for file in handed_over(around)]
    assert names == ["torch/float32", numerics_class, "torch/float32"]


async def test_a_loaded_version_is_kept_when_its_class_becomes_unverifiable(
    around: Surroundings, numerics_class: str
) -> None:
    # The orchestrator names a pair that the recipe does not pay for, so only the recipe shows that nothing is left.
    digest = around.publish(0, arithmetic=(numerics_class,), said=(numerics_class, "torch/float32"))
    set_unverifiable(around, numerics_class)
    task = await around.task()
    with structlog.testing.capture_logs() as logs:
        running = asyncio.create_task(task.run())
        await until(lambda: task._put_offs > 1)
        assert not around.orchestrator.granted
        set_unverifiable(around)
        await until(lambda: task.totals.slots == 1)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert [entry["digest"] for entry in logs if entry["event"] == "version-loaded"] == [digest]
    assert {entry["code"] for entry in logs if entry["event"] == "put-off"} == {"arithmetic-not-verifiable"}


async def test_the_next_version_is_not_fetched_early_if_no_validator_verifies_its_class(
    around: Surroundings, numerics_class: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0, arithmetic=(numerics_class,))
    assert around.orchestrator.checkpoint is not None
    task = await around.task()
    generator = await task._ready(run_id(RUN), around.orchestrator.checkpoint)
    around.publish(1, arithmetic=(numerics_class,))
    set_unverifiable(around, numerics_class)
    held: list[int] = []
    hold = task._policies.hold

    async def count(run: Digest, checkpoint: CheckpointRef) -> HeldPolicy:
        held.append(checkpoint.version)
        return await hold(run, checkpoint)

    monkeypatch.setattr(task._policies, "hold", count)
    await task._look_ahead(generator)
    assert not held
    set_unverifiable(around)
    async with asyncio.timeout(PATIENCE_S):
        while not held:  # the worker's bridge caches the step for a moment
            await task._look_ahead(generator)
    assert held == [1]


async def test_a_lost_race_for_a_slot_causes_a_shorter_pause_than_other_errors(
    around: Surroundings,
) -> None:
    task = await around.task()
    lost, down = Conflict("enough is leased", code="no-slot"), Conflict("not a member", code="not-a-member")
    assert [task._put_off(lost).total_seconds() for _ in range(3)] == [0.2, 0.4, 0.8]
    assert task._put_off(down).total_seconds() == 16
    assert [task._put_off(lost) for _ in range(20)][-1].total_seconds() == 60
    told = RateLimited("too many requests", retry_after=timedelta(minutes=5))  # the server's Retry-After has priority
    assert task._put_off(told) == timedelta(minutes=5)


async def test_a_slot_of_an_outdated_version_is_released_and_the_next_one_is_done(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    around.orchestrator.slots = 2
    grant, hurried = around.orchestrator.slot, False

    async def overtaken(request: SlotRequest) -> SlotGrant:
        nonlocal hurried
        if hurried:
            return await grant(request)
        hurried = True
        around.publish(1)
        granted = await grant(request)
        around.publish(2)
        return granted

    monkeypatch.setattr(around.orchestrator, "slot", overtaken)
    task = await around.task()
    await run_until(task, lambda: task.totals.slots == 1)
    assert [(slot.step, slot.index) for slot in around.orchestrator.released] == [(3, 0)]
    assert around.orchestrator.checkpoint is not None
    assert [file.header.checkpoint for file in handed_over(around)] == [around.orchestrator.checkpoint.digest]


async def test_stopping_during_the_fetch_of_a_version_releases_the_slot(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    grant, fetching = around.orchestrator.slot, asyncio.Event()

    async def overtaken(request: SlotRequest) -> SlotGrant:
        around.publish(1)
        return await grant(request)

    task = await around.task()
    hold = task._policies.hold

    async def takes_its_time(run: Digest, checkpoint: CheckpointRef) -> HeldPolicy:
        if checkpoint.version == 1:
            fetching.set()
            await asyncio.Event().wait()
        return await hold(run, checkpoint)

    monkeypatch.setattr(around.orchestrator, "slot", overtaken)
    monkeypatch.setattr(task._policies, "hold", takes_its_time)
    running = asyncio.create_task(task.run())
    await asyncio.wait_for(fetching.wait(), PATIENCE_S)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert [(slot.step, slot.index) for slot in around.orchestrator.released] == [(3, 0)]


async def test_a_file_being_written_at_the_stop_is_handed_over_after_the_restart(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    task = await around.task()
    put, writing, go_on = task._outbox.put, threading.Event(), threading.Event()

    def slow(file: RolloutFile, *, took: timedelta | None = None) -> HandOver:
        writing.set()
        assert go_on.wait(PATIENCE_S)
        return put(file, took=took)

    monkeypatch.setattr(task._outbox, "put", slow)
    running = asyncio.create_task(task.run())
    await until(writing.is_set)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    go_on.set()
    await until(lambda: bool(list((around.data / "outbox").glob("*.json"))))
    assert not around.orchestrator.released
    await run_until(await around.task(), lambda: bool(around.queue.items()))
    assert [(file.header.step, file.header.index) for file in handed_over(around)][:1] == [(3, 0)]


async def test_the_task_stops_within_a_second_and_releases_the_slot(around: Surroundings) -> None:
    around.publish(0, new_tokens=240)
    task = await around.task()
    running = asyncio.create_task(task.run())
    await until(lambda: bool(around.orchestrator.granted))
    took = OwnTime(os.getpid())
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert took.seconds() < 1
    assert not handed_over(around)
    assert [(slot.step, slot.index) for slot in around.orchestrator.released] == [(3, 0)]


async def test_a_slot_whose_lease_ends_during_generation_is_dropped_and_the_next_one_is_done(
    around: Surroundings,
) -> None:
    around.publish(0, new_tokens=8)
    around.orchestrator.lease_s = -1
    task = await around.task()
    running = asyncio.create_task(task.run())
    await until(lambda: task.totals.abandoned == 1)
    around.orchestrator.lease_s = 60
    around.orchestrator.slots = 2
    await until(lambda: task.totals.slots == 1)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert [file.header.index for file in handed_over(around)] == [1]


async def test_a_file_finished_by_a_killed_task_is_handed_over_by_the_next(around: Surroundings) -> None:
    around.publish(0)
    await around.server.stop()
    task = await around.task()
    await around.server.start()
    file = await _finished_but_not_handed_over(task, around)
    (around.data / "outbox" / "half.parquet").write_bytes(b"PAR1")
    again = await around.task()
    around.orchestrator.slots = 0
    await run_until(again, lambda: bool(around.queue.items()))
    assert [handed.units for handed in handed_over(around)] == [file.units]
    assert not list((around.data / "outbox").iterdir())


async def test_files_that_the_worker_refused_are_handed_over_before_further_slots(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    around.orchestrator.slots = MOST_SLOTS + 1
    task = await around.task()
    hand_over, refused = task._bridge.hand_over, list[HandOver]()

    async def full_at_first(file: HandOver) -> HandedOver:
        if len(refused) < 3:
            assert len(around.orchestrator.granted) <= MOST_SLOTS
            refused.append(file)
            raise Unavailable("the worker's disk is full")
        return await hand_over(file)

    monkeypatch.setattr(task._bridge, "hand_over", full_at_first)
    await run_until(task, lambda: len(around.queue.items()) == MOST_SLOTS + 1)
    assert sorted(file.header.index for file in handed_over(around)) == [*range(MOST_SLOTS + 1)]
    assert len(refused) == 3


async def test_a_bridge_that_disconnects_during_a_hand_over_neither_loses_nor_duplicates_the_file(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    around.orchestrator.slots = 1
    send, lost = httpx.AsyncHTTPTransport.handle_async_request, list[httpx.Request]()

    async def vanishing(self: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/files" or len(lost) == 3:
            return await send(self, request)
        lost.append(request)
        if len(lost) == 1:  # the worker has the file, but disconnects before it answers
            await (await send(self, request)).aclose()
            assert len(around.queue.items()) == 1
            raise httpx.ReadError("gone")
        raise httpx.ConnectError("no such socket")

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", vanishing)
    outbox = around.data / "outbox"
    await run_until(await around.task(), lambda: len(lost) == 3 and not list(outbox.iterdir()))
    assert [file.header.index for file in handed_over(around)] == [0]


async def test_the_task_stops_while_the_worker_is_slow_to_accept_an_earlier_file(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    file = await _finished_but_not_handed_over(await around.task(), around)
    task = await around.task()
    asked = asyncio.Event()

    async def never(file: HandOver) -> HandedOver:
        asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr(task._bridge, "hand_over", never)
    running = asyncio.create_task(task.run())
    await asked.wait()
    took = OwnTime(os.getpid())
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert took.seconds() < 1
    again = await around.task()
    await run_until(again, lambda: bool(around.queue.items()))
    assert handed_over(around)[0].units == file.units


async def test_a_full_disk_delays_a_file_and_does_not_lose_it(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    task = await around.task()
    put, full = task._outbox.put, [1, 2, 3]

    def full_at_first(file: RolloutFile, **told: Any) -> HandOver:
        if full:
            full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(file, **told)

    monkeypatch.setattr(task._outbox, "put", full_at_first)
    await run_until(task, lambda: task.totals.slots == 1)
    assert len(handed_over(around)) == len(around.orchestrator.granted) == 1


async def test_a_permanently_full_disk_ends_the_slot_with_its_lease_and_not_the_task(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    task = await around.task()

    def always_full(file: RolloutFile, **told: Any) -> HandOver:
        around.clock.passed += 3600
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(task._outbox, "put", always_full)
    asked = around.orchestrator.asked
    await run_until(task, lambda: around.orchestrator.asked > asked + 3)
    assert task.totals.slots == 0


async def test_a_failed_fetch_of_the_next_version_does_not_lose_the_current_file(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = around.publish(0, new_tokens=240)
    task = await around.task()
    hold, failed = task._policies.hold, list[int]()

    async def out_of_room(run: Digest, checkpoint: CheckpointRef) -> HeldPolicy:
        if checkpoint.digest != first:
            failed.append(checkpoint.version)
            raise OSError(errno.ENOSPC, "No space left on device")
        return await hold(run, checkpoint)

    monkeypatch.setattr(task._policies, "hold", out_of_room)
    running = asyncio.create_task(task.run())
    await until(lambda: bool(around.orchestrator.granted))
    around.publish(1)
    await until(lambda: bool(around.queue.items()))
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert failed
    assert [file.header.checkpoint for file in handed_over(around)] == [first]


async def test_the_task_stops_during_a_long_engine_pass(around: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    around.publish(0)
    task = await around.task()
    begun, go_on = threading.Event(), threading.Event()
    step = GenerationBatch.step

    def long_step(batch: GenerationBatch) -> torch.Tensor:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return step(batch)

    monkeypatch.setattr(GenerationBatch, "step", long_step)
    running = asyncio.create_task(task.run())
    await until(begun.is_set)
    took = OwnTime(os.getpid())
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    await task.aclose()
    assert took.seconds() < 1
    go_on.set()


async def test_a_forward_clock_jump_ends_no_lease(around: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    around.publish(0)
    task = await around.task()
    step = GenerationBatch.step

    def step_after_an_hour(batch: GenerationBatch) -> torch.Tensor:
        around.clock.ahead = timedelta(hours=1)
        return step(batch)

    monkeypatch.setattr(GenerationBatch, "step", step_after_an_hour)
    await run_until(task, lambda: task.totals.slots == 1)
    assert task.totals.abandoned == 0


async def test_an_unusable_version_leases_nothing(around: Surroundings) -> None:
    around.publish(0, version="99")  # of an environment that is not installed here
    task = await around.task()
    running = asyncio.create_task(task.run())
    await until(lambda: around.orchestrator.asked > 0)
    around.publish(1)
    await until(lambda: task.totals.slots == 1)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert [lease.version for lease in around.orchestrator.granted] == [1]


async def test_a_failed_engine_reloads_its_version_and_does_the_next_slot(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    around.orchestrator.slots = 3
    task = await around.task(most_slots=1)
    loads = failing(task, monkeypatch, times=2)
    await run_until(task, lambda: task.totals.slots == 1)
    assert [slot.index for slot in around.orchestrator.released] == [0, 1]
    assert [file.header.index for file in handed_over(around)] == [2]
    assert len(loads) == 3


async def test_an_engine_that_fails_repeatedly_ends_the_task_with_the_reason(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    around.orchestrator.slots = 99
    task = await around.task(most_slots=1)
    failing(task, monkeypatch, times=99)
    with pytest.raises(EngineFailed, match="it broke"):
        await asyncio.wait_for(task.run(), PATIENCE_S)
    assert [slot.index for slot in around.orchestrator.released] == [*range(MOST_ENGINE_FAILURES)]


async def test_an_engine_failure_that_ends_several_slots_counts_once(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    around.orchestrator.slots = MOST_SLOTS + 1
    task = await around.task()
    begun = threading.Event()
    engine: Any = task._engine
    answers = engine._answers

    def broken(*told: Any) -> Any:
        if not begun.is_set():
            assert begun.wait(PATIENCE_S)
            raise EngineFailed("it broke")
        yield from answers(*told)

    monkeypatch.setattr(engine, "_answers", broken)
    with structlog.testing.capture_logs() as logs:
        running = asyncio.create_task(task.run())
        await until(lambda: len(task._slots) == MOST_SLOTS)
        begun.set()
        await until(lambda: task.totals.slots == 1)
        task.stop()
        await asyncio.wait_for(running, PATIENCE_S)
    assert [line["failures"] for line in logs if line["event"] == "engine-failed"] == [1]
    assert sorted(slot.index for slot in around.orchestrator.released) == [*range(MOST_SLOTS)]
    assert [file.header.index for file in handed_over(around)] == [MOST_SLOTS]


async def test_the_next_slot_of_a_version_joins_the_batch_and_a_new_version_waits_for_all(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = around.publish(0, new_tokens=8)
    around.orchestrator.slots = MOST_SLOTS
    task = await around.task()
    step, sizes, go_on = GenerationBatch.step, list[int](), threading.Event()

    def counted(batch: GenerationBatch) -> torch.Tensor:
        assert go_on.wait(PATIENCE_S)
        sizes.append(len(batch.answers))
        return step(batch)

    monkeypatch.setattr(GenerationBatch, "step", counted)
    running = asyncio.create_task(task.run())
    await until(lambda: len(task._slots) == MOST_SLOTS)
    around.orchestrator.slots = MOST_SLOTS + 1
    second = around.publish(1, new_tokens=8)
    await asyncio.sleep(0.1)
    assert len(around.orchestrator.granted) == MOST_SLOTS, "no further slot while so many are under way"
    go_on.set()
    await until(lambda: task.totals.slots == MOST_SLOTS + 1)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    files = sorted(handed_over(around), key=lambda file: file.header.index)
    assert [file.header.checkpoint for file in files] == [*[first] * MOST_SLOTS, second]
    assert max(sizes) == MOST_SLOTS * len(files[0].samples), "the answers of all slots were in one batch"


async def test_a_version_that_changes_during_loading_is_not_used(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = around.publish(0)
    task = await around.task()
    load = task._engine.load

    def load_and_spoil(folder: Path, *, version: Digest) -> None:
        load(folder, version=version)
        if version == digest:
            (folder / "model.safetensors").touch()

    monkeypatch.setattr(task._engine, "load", load_and_spoil)
    running = asyncio.create_task(task.run())
    await until(lambda: task._unusable != {})
    around.publish(1)
    await until(lambda: task.totals.slots == 1)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert "changed while it was used" in task._unusable[digest].detail
    assert [lease.version for lease in around.orchestrator.granted] == [1]


async def test_an_environment_fault_releases_the_slot_and_the_next_one_is_done(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0)
    around.orchestrator.slots = 2
    task = await around.task()
    score, left = Letters.score, [1]

    def broken_once(letters: Letters, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        if left:
            return left.pop()  # type: ignore[return-value]  # that is its fault
        return score(letters, prompt, completion, finished=finished)

    monkeypatch.setattr(Letters, "score", broken_once)
    await run_until(task, lambda: task.totals.slots == 1)
    (released,), (done,) = around.orchestrator.released, handed_over(around)
    assert {released.index, done.header.index} == {0, 1}


async def test_a_version_with_prompts_longer_than_its_context_is_leased_once(around: Surroundings) -> None:
    digest = around.publish(0, new_tokens=250)  # with a context of 256
    around.orchestrator.slots = 9
    task = await around.task()
    running = asyncio.create_task(task.run())
    await until(lambda: digest in task._unusable)
    asked = around.orchestrator.asked
    await until(lambda: around.orchestrator.asked > asked + 2)
    around.publish(1)
    await until(lambda: task.totals.slots == 1)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert [lease.version for lease in around.orchestrator.granted][:2] == [0, 1]
    assert [slot.index for slot in around.orchestrator.released][:1] == [0]


async def test_a_lease_of_more_units_than_its_groups_allow_is_released_before_generation(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.publish(0, new_tokens=8)  # two groups of two samples
    around.orchestrator.slots = 9
    around.orchestrator.max_units = 2 * 2 * 8 + 1
    task = await around.task()
    opened: list[object] = []
    open_session = task._engine.open

    def recorded(**told: Any) -> Any:
        opened.append(told)
        return open_session(**told)

    monkeypatch.setattr(task._engine, "open", recorded)
    with structlog.testing.capture_logs() as logs:
        running = asyncio.create_task(task.run())
        await until(lambda: len(around.orchestrator.released) >= 2)
        assert not opened
        around.orchestrator.max_units = 2 * 2 * 8
        await until(lambda: task.totals.slots == 1)
        assert opened
        task.stop()
        await asyncio.wait_for(running, PATIENCE_S)
    assert [slot.index for slot in around.orchestrator.released][:2] == [0, 1]
    refused = next(line for line in logs if line.get("code") == "lease-too-large")
    assert "allows 33 work units, but 2 groups of this version have 32 at most" in refused["why"]


def failing(task: RolloutTask, monkeypatch: pytest.MonkeyPatch, *, times: int) -> list[Digest]:
    """Makes the task's engine fail a number of times; returns a list that will hold the loaded versions."""
    engine: Any = task._engine
    answers, load, loads = engine._answers, engine.load, list[Digest]()
    failures = iter(range(times))

    def broken(*told: Any) -> Any:
        if next(failures, None) is not None:
            raise EngineFailed("it broke")
        yield from answers(*told)

    def loading(folder: Path, *, version: Digest) -> None:
        loads.append(version)
        load(folder, version=version)

    monkeypatch.setattr(engine, "_answers", broken)
    monkeypatch.setattr(task._engine, "load", loading)
    return loads


async def _finished_but_not_handed_over(task: RolloutTask, around: Surroundings) -> RolloutFile:
    """Creates the state after `kill -9` between writing a file and handing it over."""
    kept: list[RolloutFile] = []
    put = task._outbox.put

    def die_after(file: RolloutFile, **told: Any) -> None:
        put(file, **told)
        kept.append(file)
        raise Killed

    task._outbox.put = die_after  # type: ignore[method-assign,assignment]  # stands for the kill
    await task._turn()
    await asyncio.wait(task._slots)
    with pytest.raises(Killed):
        task._collect()
    return kept[0]
