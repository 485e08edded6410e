"""The serving task, with a real model, worker's bridge and queue, and a scripted gateway over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import structlog

from protocol.wire.served import RequestKind
from rollouts.engines.torch.batch import GenerationBatch
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import read_rollouts
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.task import serving_session
from rollouts.task.serving_loop import ServingTask
from tests.kit.rollout_task import NODE, PATIENCE_S, Surroundings, until
from tests.kit.scripted_gateway import Exchange, ScriptedGateway

LONG = [{"role": "user", "content": "a" * 300}]


@pytest.fixture
def gateway(around: Surroundings) -> Iterator[ScriptedGateway]:
    """A gateway that the orchestrator names, and a first version that names the gateway."""
    gateway = ScriptedGateway()
    with gateway.serve() as url:
        around.orchestrator.gateway, around.gateway = url, gateway.key.address
        around.orchestrator.groups_per_slot = 8
        around.publish(0, new_tokens=64)
        yield gateway


@asynccontextmanager
async def running(around: Surroundings, **options: Any) -> AsyncIterator[ServingTask]:
    """A task that runs until the block's end."""
    task = await around.serving_task(**options)
    work = asyncio.create_task(task.run())
    try:
        yield task
    finally:
        task.stop()
        await asyncio.wait_for(work, PATIENCE_S)


async def soon(done: Callable[[], bool]) -> None:
    """Waits for a condition."""
    await until(done, patience_s=PATIENCE_S / 4)


async def answered(gateway: ScriptedGateway, *names: str) -> list[Exchange]:
    exchanges = [gateway.exchanges[name] for name in names]
    await soon(lambda: all(one.ended for one in exchanges))
    return exchanges


async def the_file(around: Surroundings, number: int = 0) -> RolloutFile:
    await soon(lambda: len(around.queue.items()) > number)
    return read_rollouts(sorted(around.queue.items(), key=lambda item: item.created_ms)[number].path)


async def test_requests_are_streamed_and_become_rows_of_a_file(around: Surroundings, gateway: ScriptedGateway) -> None:
    around.orchestrator.slots = 1
    streamed = {"prompt": ["12+34=", "abc"], "n": 2, "max_tokens": 40, "temperature": 0.7, "stream": True}
    names = [
        gateway.ask(RequestKind.COMPLETION, {"model": "m"} | streamed, pieces=True),
        gateway.ask(RequestKind.CHAT, {"model": "m", "messages": [{"role": "user", "content": "hello"}]}),
        gateway.ask(
            RequestKind.GENERATE, {"token_ids": [4, 5, 6], "sampling_params": {"max_tokens": 5, "temperature": 0.0}}
        ),
    ]
    async with running(around) as task:
        exchanges = await answered(gateway, *names)
        assert len(exchanges[0].parts) > 2, "tokens come before the answer's end"
        gateway.closing = True
        file = await the_file(around)
        await soon(lambda: task.totals.slots == 1)
    assert gateway.faults == []
    assert gateway.most_free == 8

    served = file.served
    assert served is not None
    listed = served.parse().requests
    assert {one.id for one in listed} == {*names}
    assert (file.header.environment, file.header.node, len(file.samples)) == ("served", NODE, 6)
    assert [(row.group, row.sample) for row in file.samples] == [(number, number) for number in range(6)]
    rows = iter(file.samples)
    folder = around.shared / "checkpoints" / file.header.checkpoint
    for position, one in enumerate(listed):
        exchange = gateway.exchanges[one.id]
        record = exchange.record
        assert record is not None
        assert record.version == file.header.checkpoint
        assert record.arithmetic == str(file.header.arithmetic)
        for index, sample in enumerate(record.samples):
            row, (text, tokens, _, _) = next(rows), exchange.choice(index)
            assert (row.prompt_index, row.reward, row.target_length) == (position, 0.0, None)
            assert row.output_tokens.tolist() == tokens == sample.token_ids
            assert row.prompt_tokens.tolist() == record.prompts[sample.prompt]
            expected = "" if one.kind is RequestKind.GENERATE else FolderTokenizer(folder).decode(tokens)
            assert text == expected
    chat = next(e.record for e in exchanges if e.assigned.kind is RequestKind.CHAT)
    assert chat is not None
    assert chat.sampling.max_new_tokens == 64, "without a client's limit, the lease's"
    assert around.metrics["slots"] == 1


@pytest.mark.parametrize(
    ("kind", "body", "code", "param"),
    [
        (RequestKind.COMPLETION, {"prompt": "a", "max_tokens": 65}, "invalid-request", "max_tokens"),
        (RequestKind.COMPLETION, {"prompt": "a" * 300}, "context-length-exceeded", "prompt"),
        (RequestKind.COMPLETION, {"prompt": [70], "max_tokens": 1}, "invalid-request", "prompt"),
        (
            RequestKind.CHAT,
            {"messages": [{"role": "user", "content": "a" * 300}]},
            "context-length-exceeded",
            "messages",
        ),
        (RequestKind.COMPLETION, {"prompt": "a", "stop_token_ids": [9]}, "unsupported-option", "stop_token_ids"),
    ],
)
async def test_a_request_that_cannot_be_answered_names_the_field(
    around: Surroundings, gateway: ScriptedGateway, kind: RequestKind, body: dict[str, Any], code: str, param: str
) -> None:
    name, good = gateway.ask(kind, {"model": "m"} | body), gateway.complete()
    async with running(around):
        refused, fine = await answered(gateway, name, good)
    assert refused.failure is not None
    assert (refused.failure.code, refused.failure.param) == (code, param)
    assert fine.record is not None


async def test_a_gateway_that_contradicts_a_request_is_no_clients_fault(
    around: Surroundings, gateway: ScriptedGateway
) -> None:
    name = gateway.ask(RequestKind.COMPLETION, {"model": "m", "prompt": "a", "n": 2}, choices=1)
    async with running(around):
        (exchange,) = await answered(gateway, name)
    assert exchange.failure is not None
    assert exchange.failure.param == ""


async def test_a_slot_without_clients_is_released(around: Surroundings, gateway: ScriptedGateway) -> None:
    gateway.closing = True
    async with running(around):
        await soon(lambda: bool(around.orchestrator.released))
    assert around.queue.items() == []


async def test_the_next_slot_opens_before_the_former_one_ends(
    around: Surroundings, gateway: ScriptedGateway, slow: None
) -> None:
    around.orchestrator.slots = 2
    long = gateway.complete("a", max_tokens=64, n=4, temperature=0)
    async with running(around):
        await soon(lambda: bool(gateway.exchanges[long].parts))
        (first,) = gateway.sessions.values()
        first.closing = True
        await soon(lambda: len(gateway.sessions) == 2)
        assert not gateway.exchanges[long].ended
        second = gateway.complete(max_tokens=2)
        await answered(gateway, second)
        assert not gateway.exchanges[long].ended
        files = [await the_file(around)]
        gateway.closing = True
        files.append(await the_file(around, 1))
    assert gateway.faults == []
    sessions = [gateway.exchanges[name].session for name in (long, second)]
    assert sessions[0] != sessions[1]
    assert sorted(len(file.samples) for file in files) == [1, 4]
    assert {file.header.index for file in files} == {0, 1}


async def test_a_cancelled_request_frees_its_place_in_the_batch(
    around: Surroundings, gateway: ScriptedGateway, slow: None
) -> None:
    long = gateway.complete("a", n=2, max_tokens=64, temperature=0)
    async with running(around, most_batch=2):
        await soon(lambda: bool(gateway.exchanges[long].parts))
        gateway.cancelled.add(long)
        (other,) = await answered(gateway, gateway.complete(n=2, max_tokens=2))
        assert other.record is not None
        assert not gateway.exchanges[long].ended
        gateway.closing = True
        file = await the_file(around)
    assert len(file.samples) == 2


async def test_outages_of_the_gateway_repeat_no_part_and_lose_none(
    around: Surroundings, gateway: ScriptedGateway
) -> None:
    gateway.down = True
    async with running(around):
        await soon(lambda: len(around.orchestrator.released) > 0)  # it could not be reached to open a session
        gateway.down, around.orchestrator.slots = False, len(around.orchestrator.granted) + 1
        gateway.lost_answers = 2
        name = gateway.complete(max_tokens=20)
        await soon(lambda: bool(gateway.exchanges[name].parts))
        gateway.down = True
        await asyncio.sleep(0.3)
        gateway.down = False
        (exchange,) = await answered(gateway, name)
        gateway.revoke_tokens()  # the gateway's replicas have forgotten the token
        other = gateway.complete(max_tokens=3)
        await answered(gateway, other)
        gateway.closing = True
        file = await the_file(around)
    assert gateway.faults == []
    assert [part.number for part in exchange.parts] == [*range(len(exchange.parts))]
    assert len(gateway.sessions) == 1, "the session was opened again for the same lease"
    assert gateway.opens >= 2
    assert len(file.samples) == 2


async def test_a_session_that_is_refused_for_good_is_given_up(around: Surroundings, gateway: ScriptedGateway) -> None:
    async with running(around) as task:
        await soon(lambda: bool(gateway.sessions))
        gateway.refuses = True
        gateway.revoke_tokens()
        await soon(lambda: bool(around.orchestrator.released))
        assert task.totals.slots == 0
        running_here = [str(one.get_coro()) for one in asyncio.all_tasks()]
        assert not [name for name in running_here if "SlotSession" in name], "its sender ended with its poller"


async def test_a_new_version_is_loaded_after_the_answers_in_progress(
    around: Surroundings, gateway: ScriptedGateway, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_session, "POLL", timedelta(milliseconds=300))
    around.orchestrator.slots = 2
    long = gateway.complete("a", max_tokens=64, temperature=0)
    async with running(around):
        await soon(lambda: bool(gateway.exchanges[long].parts))
        first = around.orchestrator.checkpoint
        second = around.publish(1, new_tokens=64)
        await answered(gateway, long)
        files = [await the_file(around)]
        (later,) = await answered(gateway, gateway.complete(max_tokens=2))
        gateway.closing = True
        files.append(await the_file(around, 1))
    assert first is not None
    assert [file.header.checkpoint for file in files] == [first.digest, second]
    assert later.record is not None
    assert later.record.version == second


async def test_a_list_that_does_not_fit_the_answers_is_not_submitted(
    around: Surroundings, gateway: ScriptedGateway
) -> None:
    gateway.list_changes = {"seed": "0x" + "11" * 32, "answer": "0x" + "22" * 32}
    name = gateway.complete()
    async with running(around):
        await answered(gateway, name)
        gateway.closing = True
        await soon(lambda: bool(around.orchestrator.released))
    assert around.queue.items() == []


async def test_a_session_ends_in_time_although_an_answer_is_not_ready(
    around: Surroundings, gateway: ScriptedGateway, slow: None
) -> None:
    gateway.life_s = 2.0
    short, long = gateway.complete(max_tokens=1), gateway.complete("a", max_tokens=64, n=4, temperature=0)
    async with running(around):
        await answered(gateway, short)
        file = await the_file(around)
    assert len(file.samples) == 1
    assert not gateway.exchanges[long].ended


async def test_a_stopped_task_ends_within_a_second_and_keeps_what_was_answered(
    around: Surroundings, gateway: ScriptedGateway, slow: None
) -> None:
    short, long = gateway.complete(max_tokens=1), gateway.complete("a", max_tokens=64, n=4, temperature=0)
    task = await around.serving_task()
    work = asyncio.create_task(task.run())
    await answered(gateway, short)
    await soon(lambda: bool(gateway.exchanges[long].parts))
    began = time.monotonic()
    task.stop()
    await work
    assert time.monotonic() - began < 1
    file = await the_file(around)
    assert len(file.samples) == 1
    assert all(session.closed for session in gateway.sessions.values())


@pytest.mark.parametrize("case", ["no gateway", "another key", "letters", "other units"])
async def test_runs_that_do_not_serve_are_named(around: Surroundings, gateway: ScriptedGateway, case: str) -> None:
    match case:
        case "no gateway":
            around.orchestrator.gateway = ""
        case "another key":
            around.publish(1, options={"gateway": NODE})
        case "letters":
            around.gateway = None
            around.publish(1)
        case "other units":
            around.orchestrator.max_units = 9
    with structlog.testing.capture_logs() as logs:
        async with running(around) as task:
            await soon(lambda: task._put_offs > 0)
    (code, *_) = [line["code"] for line in logs if line["event"] == "put-off"]
    leased = {"another key": "wrong-gateway", "other units": "wrong-units"}
    assert code == {"no gateway": "no-gateway", "letters": "not-a-serving-run", **leased}[case]
    assert len(around.orchestrator.released) == len(around.orchestrator.granted) == int(case in leased)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each of the engine's steps take 30 ms."""
    step = GenerationBatch.step

    def slowly(self: GenerationBatch, *arguments: Any, **options: Any) -> Any:
        time.sleep(0.03)
        return step(self, *arguments, **options)

    monkeypatch.setattr(GenerationBatch, "step", slowly)
