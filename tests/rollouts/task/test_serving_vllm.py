"""The serving task on vLLM, as its container starts it, behind the real gateway."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from protocol.wire.answers import AnswerRecord
from rollouts.checks import SlotFacts, open_version
from rollouts.engines.vllm.cpu_kernels import reproducible_classes
from rollouts.files.schema import read_rollouts
from rollouts.recompute.place import VllmPlace
from rollouts.verify.files import verify_file
from tests.kit.gateway import running_gateway
from tests.kit.rollout_task import BEACON, DOMAIN, NODE, RUN, Surroundings, until
from tests.kit.serving import wait_for
from tests.kit.vllm_engine import PYTHON

pytestmark = [pytest.mark.needs_vllm, pytest.mark.timeout(900)]

START_S = 300
CLASS = "cpu-avx2"
"""A class that this release has a recording of, so that a task can prove that it computes in it."""


@asynccontextmanager
async def task(around: Surroundings, *options: str) -> AsyncIterator[None]:
    """Runs the task's program in the environment with vLLM; ends it with SIGTERM."""
    words = (str(PYTHON), "-m", "rollouts", "--serve", "--engine", "vllm", "--threads", "1", *options)
    log = around.home / "log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **around.environment}
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*words, env=environment, stdout=out, stderr=out)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_S):
            assert await process.wait() == 0, log.read_text()[-4000:]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("arithmetic", "options"),
    [
        ("vllm/float32", ()),
        (f"vllm-0.32.0/bfloat16/{CLASS}", ("--dtype", "bfloat16", "--numerics", CLASS)),
    ],
    ids=["float32", "bfloat16"],
)
async def test_clients_are_answered_and_the_files_are_accepted(
    around: Surroundings, redis_url: str, arithmetic: str, options: tuple[str, ...]
) -> None:
    if not PYTHON.exists():
        pytest.skip(f"there is no vLLM for the CPU in {PYTHON.parents[1]}: run deploy/setup/vllm.sh")
    if CLASS in arithmetic and CLASS not in reproducible_classes():
        pytest.skip(f"this processor can't compute like {CLASS}")
    with running_gateway(redis_url, run=RUN, slot_time_s=0.5, margin_s=5, arithmetic=(arithmetic,)) as gateway:
        gateway.ledger.domain = DOMAIN
        gateway.ledger.members[NODE] = NODE
        around.gateway = gateway.key.address
        orchestrator = around.orchestrator
        orchestrator.key, orchestrator.gateway = gateway.ledger.orchestrator, gateway.url
        orchestrator.groups_per_slot, orchestrator.slots = 8, 1000
        version = around.publish(
            0, new_tokens=64, arithmetic=(arithmetic,), num_attention_heads=3, num_key_value_heads=3
        )  # heads that vLLM can compute
        gateway.ledger.announced = {0: version}
        client = gateway.client(gateway.token())
        create: Any = client.completions.create

        def ask(seed: int) -> Any:
            prompt = ["12+34=", "once upon"]
            return create(model=RUN, prompt=prompt, n=2, max_tokens=30, temperature=0.5 + seed / 4, seed=seed)

        async with task(around, *options):
            await until(lambda: bool(orchestrator.granted), patience_s=START_S)
            await asyncio.to_thread(wait_for, lambda: serves(client), seconds=START_S)
            answers = await asyncio.gather(*(asyncio.to_thread(ask, seed) for seed in (1, 2, 3)))
            stream = await asyncio.to_thread(
                lambda: list(create(model=RUN, prompt="once upon", max_tokens=30, stream=True, seed=9))
            )
            rows = 4 * len(answers) + 2
            await until(
                lambda: sum(len(read_rollouts(item.path).samples) for item in around.queue.items()) >= rows,
                patience_s=START_S,
            )
    records = [AnswerRecord.model_validate(one.muster) for one in (*answers, stream[-1])]
    assert {record.arithmetic for record in records} == {arithmetic}
    assert len("".join(chunk.choices[0].text for chunk in stream)) > 0
    files = {item.path: read_rollouts(item.path) for item in around.queue.items()}
    for path, file in files.items():
        await asyncio.to_thread(check, around, path, file.header.index, file.units)


def serves(client: openai.OpenAI) -> bool:
    """Sends a request; returns False while the gateway has no session of the task yet."""
    try:
        client.completions.create(model=RUN, prompt="a", max_tokens=1)
    except openai.InternalServerError:
        return False
    return True


def check(around: Surroundings, path: Path, index: int, units: int) -> None:
    """Checks a file as a validator does."""
    lease = around.orchestrator.granted[index]
    version = open_version(around.shared / "checkpoints" / lease.digest)
    facts = SlotFacts.of_lease(lease, domain=DOMAIN, beacon=BEACON, units=units)
    found = verify_file(path, version, facts=facts, vllm=VllmPlace(python=PYTHON, device="cpu"))
    assert (found.failed, found.unknown, found.not_accepted) == ((), (), "")
