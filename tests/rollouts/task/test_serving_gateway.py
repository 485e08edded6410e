"""The serving task behind the real gateway, called by OpenAI's client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from protocol.wire.answers import AnswerRecord
from rollouts.checks import SlotFacts, open_version
from rollouts.files.schema import read_rollouts
from rollouts.verify.files import verify_file
from tests.kit.gateway import GatewayUnderTest, running_gateway
from tests.kit.rollout_task import BEACON, DOMAIN, NODE, PATIENCE_S, RUN, Surroundings, until


@pytest.fixture
def gateway(around: Surroundings, redis_url: str) -> Iterator[GatewayUnderTest]:
    """A gateway whose sessions end 0.5 s after their first answer."""
    with running_gateway(redis_url, run=RUN, slot_time_s=0.5, margin_s=5) as gateway:
        gateway.ledger.domain = DOMAIN
        gateway.ledger.members[NODE] = NODE
        around.orchestrator.key = gateway.ledger.orchestrator
        around.orchestrator.gateway = gateway.url
        around.orchestrator.groups_per_slot, around.orchestrator.slots = 8, 1000
        around.gateway = gateway.key.address
        gateway.ledger.announced = {0: around.publish(0, new_tokens=64)}
        yield gateway


async def test_openai_clients_are_answered_by_a_task(around: Surroundings, gateway: GatewayUnderTest) -> None:
    client = gateway.client(gateway.token())
    complete: Any = client.completions.create
    chat: Any = client.chat.completions.create
    task = await around.serving_task()
    running = asyncio.create_task(task.run())
    await until(lambda: bool(task._sessions))  # without a session, clients get a 503

    def ask() -> list[Any]:
        return [
            complete(model=RUN, prompt=["12+34=", "a"], n=2, max_tokens=40, temperature=0.7, seed=5, logprobs=0),
            complete(model=RUN, prompt=["12+34=", "a"], n=2, max_tokens=40, temperature=0.7, seed=5, logprobs=0),
            chat(model=RUN, messages=[{"role": "user", "content": "hello"}], temperature=0),
        ]

    def stream() -> list[Any]:
        return list(complete(model=RUN, prompt="once upon", max_tokens=30, temperature=0, stream=True))

    whole, chunks, more = await asyncio.gather(*(asyncio.to_thread(work) for work in (ask, stream, ask)))
    assert [one.text for one in whole[0].choices] == [one.text for one in whole[1].choices]
    assert len(whole[0].choices) == 4
    assert len(chunks) > 2
    assert more[2].choices[0].message.content == whole[2].choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="250 in the prompt"):
        await asyncio.to_thread(complete, model=RUN, prompt="a" * 250, max_tokens=60)
    records = [AnswerRecord.model_validate(one.muster) for one in (*whole, *more, chunks[-1])]
    await until(lambda: sum(len(read_rollouts(item.path).samples) for item in around.queue.items()) == 19)
    task.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    files = [read_rollouts(item.path) for item in around.queue.items()]
    rows = {(row.prompt_tokens.tobytes(), row.output_tokens.tobytes()) for file in files for row in file.samples}
    for record in records:
        for sample in record.samples:
            prompt = np.array(record.prompts[sample.prompt], np.int32).tobytes()
            assert (prompt, np.array(sample.token_ids, np.int32).tobytes()) in rows
    version = open_version(around.shared / "checkpoints" / files[0].header.checkpoint)
    for item, file in zip(around.queue.items(), files, strict=True):
        lease = around.orchestrator.granted[file.header.index]
        facts = SlotFacts.of_lease(lease, domain=DOMAIN, beacon=BEACON, units=file.units)
        verification = await asyncio.to_thread(verify_file, item.path, version, facts=facts)
        assert (verification.failed, verification.unknown) == ((), ()), "validators accept the file"
