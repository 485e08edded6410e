"""Validators report numerics classes, and nodes learn which paid classes no validator can verify."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from orchestrator.api.access import VALIDATOR_BODY
from orchestrator.metrics import PoolGauges
from orchestrator.runs.numerics import LIFE, REPEAT_AFTER
from protocol.http.client import RequestSigner
from protocol.identity.keys import Key
from protocol.identity.signing import unix_ms
from protocol.wire.runs import CheckpointRef, NewCheckpoint, is_numerics_class
from protocol.wire.validators import MOST_VERIFIED, NumericsReceipt
from tests.kit.memory_ledger import MANAGER
from tests.kit.memory_run_ledger import PUBLISHER, VALIDATOR, RunUnderTest
from tests.kit.runs import MakeRun

PATH = "/v1/validators/me/numerics"
AVX2, AVX512, H100 = (f"vllm-0.32.0/bfloat16/{device}" for device in ("cpu-avx2", "cpu-avx512", "sm_90"))
PAID = (AVX2, AVX512, "vllm/bfloat16", "torch/float32")
PAUSE = timedelta(seconds=1)
"""Lifetime of the cache of reports."""


async def report(run: RunUnderTest, *classes: str, key: Key = VALIDATOR) -> httpx.Response:
    return await run.pool.send(key, PATH, {"classes": list(classes)}, method="PUT")


async def reported(run: RunUnderTest, *classes: str, key: Key = VALIDATOR) -> NumericsReceipt:
    answer = await report(run, *classes, key=key)
    assert answer.status_code == 200, answer.text
    return NumericsReceipt.model_validate_json(answer.content)


async def unverifiable(run: RunUnderTest, node: Key) -> tuple[str, ...]:
    """Returns what nodes get with the step; `GET /v1/run` must show the same."""
    checkpoint = (await run.step(node)).checkpoint
    assert checkpoint is not None
    shown = (await run.pool.owner("GET", "/v1/run"))["checkpoint"]
    assert tuple(shown["unverifiable"]) == checkpoint.unverifiable
    assert checkpoint.arithmetic == PAID
    return checkpoint.unverifiable


@pytest.fixture
async def node(run: RunUnderTest) -> Key:
    """A member of the pool, whose run pays for two classes and two pairs."""
    await run.publish(1, arithmetic=PAID)
    return await run.member()


@pytest.fixture
def second(run: RunUnderTest) -> Key:
    """A second validator of the pool."""
    key = Key.generate()
    run.pool.ledger.validators.add(key.address)
    return key


async def test_nothing_is_claimed_before_a_validator_has_reported(run: RunUnderTest, node: Key) -> None:
    assert await unverifiable(run, node) == ()


async def test_paid_classes_that_no_validator_reported_are_unverifiable_and_pairs_never_are(
    run: RunUnderTest, node: Key
) -> None:
    receipt = await reported(run, AVX2, H100, AVX2)
    now_ms = unix_ms(run.pool.clock.now())
    assert receipt.model_dump() == {
        "validator": VALIDATOR.address,
        "classes": (AVX2, H100),
        "expires_at_ms": now_ms + LIFE / timedelta(milliseconds=1),
        "again_in_ms": REPEAT_AFTER / timedelta(milliseconds=1),
    }
    assert await unverifiable(run, node) == (AVX512,)


async def test_an_empty_report_counts_as_a_report(run: RunUnderTest, node: Key) -> None:
    await reported(run)
    assert await unverifiable(run, node) == (AVX2, AVX512)


async def test_a_class_needs_only_one_of_several_validators(run: RunUnderTest, node: Key, second: Key) -> None:
    await reported(run)
    await reported(run, AVX512, key=second)
    assert await unverifiable(run, node) == (AVX2,)
    await reported(run, AVX2)
    assert await unverifiable(run, node) == ()


async def test_a_report_replaces_only_the_validators_own(run: RunUnderTest, node: Key, second: Key) -> None:
    await reported(run, AVX2)
    await reported(run, AVX512, key=second)
    await reported(run, AVX2)  # a repeated report changes nothing
    assert await unverifiable(run, node) == ()
    await reported(run, H100)
    assert await unverifiable(run, node) == (AVX2,)


async def test_reports_expire_and_repeated_ones_do_not(run: RunUnderTest, node: Key, second: Key) -> None:
    await reported(run, AVX2)
    await reported(run, AVX512, key=second)
    await run.pool.clock.turn(LIFE - PAUSE)
    await reported(run, AVX2)
    assert await unverifiable(run, node) == ()
    await run.pool.clock.turn(PAUSE)
    assert await unverifiable(run, node) == (AVX512,), "the second report expired"
    await run.pool.clock.turn(LIFE)
    assert await unverifiable(run, node) == (), "no validator counts as having reported"


async def test_expired_reports_are_deleted_and_redis_expires_the_last_one(run: RunUnderTest, second: Key) -> None:
    database = run.pool.dependencies.database
    await reported(run, AVX2)
    await run.pool.clock.turn(LIFE)
    await reported(run, AVX512, key=second)
    assert await database.ask("HLEN", database.key("numerics")) == 1
    assert 0 < await database.ask("PTTL", database.key("numerics")) <= LIFE / timedelta(milliseconds=1)


async def test_all_orchestrators_of_the_pool_see_a_report(make_run: MakeRun, run: RunUnderTest, node: Key) -> None:
    other = make_run()
    assert await unverifiable(other, node) == ()
    await reported(run, AVX2)
    await run.pool.clock.turn(PAUSE)
    assert await unverifiable(other, node) == (AVX512,)


@pytest.mark.parametrize("key", [Key.generate(), MANAGER, PUBLISHER], ids=["stranger", "manager", "publisher"])
async def test_only_validators_of_the_pool_may_report(run: RunUnderTest, node: Key, key: Key) -> None:
    answer = await report(run, AVX2, key=key)
    assert (answer.status_code, answer.json()["code"]) == (403, "role")
    assert "roles --add-validator" in answer.json()["hint"]
    assert await unverifiable(run, node) == ()


async def test_a_report_needs_a_signature_for_this_orchestrator(run: RunUnderTest) -> None:
    async with run.pool.http() as http:
        token = {"Authorization": f"Bearer {run.pool.token}"}
        answers = [await http.put(PATH, json={"classes": []}, headers=headers) for headers in ({}, token)]
    async with run.pool.http(RequestSigner(VALIDATOR, audience=PUBLISHER.address, clock=run.pool.clock)) as http:
        answers.append(await http.put(PATH, json={"classes": []}))
    assert [(each.status_code, each.json()["code"]) for each in answers] == [
        (401, "unsigned"),
        (401, "unsigned"),
        (401, "wrong-audience"),
    ]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"classes": [f"vllm-0.32.{minor}/bfloat16/cpu-avx2" for minor in range(MOST_VERIFIED)]}, 200),
        ({"classes": [f"vllm-0.32.{minor}/bfloat16/cpu-avx2" for minor in range(MOST_VERIFIED + 1)]}, 422),
        ({"classes": ["Not A Name"]}, 422),
        ({"classes": ["a/b/c\n"]}, 422),
        ({"classes": [f"{'a' * 32}/b/c"]}, 422),
        ({"classes": AVX2}, 422),
        ({}, 422),
        ({"classes": [], "validator": PUBLISHER.address}, 422),
        ({"classes": ["a" * VALIDATOR_BODY]}, 413),
    ],
    ids=["most", "too many", "no name", "line feed", "long name", "no list", "missing", "unknown field", "large"],
)
async def test_reports_are_bounded(run: RunUnderTest, body: Any, status: int) -> None:
    answer = await run.pool.send(VALIDATOR, PATH, body, method="PUT")
    assert answer.status_code == status, answer.text


async def test_the_largest_report_fits_into_the_body_limit(run: RunUnderTest) -> None:
    names = [f"{number:031}/{'b' * 31}/{'c' * 31}" for number in range(MOST_VERIFIED)]
    assert (await reported(run, *names)).classes == tuple(names)


async def test_validators_are_counted_by_class(run: RunUnderTest, second: Key) -> None:
    registry = CollectorRegistry()
    dependencies = run.pool.dependencies
    gauges = PoolGauges(
        registry,
        nodes=dependencies.nodes,
        tasks=dependencies.tasks,
        assignments=dependencies.assignments,
        clock=dependencies.clock,
        numerics=dependencies.numerics,
    )

    async def counted() -> tuple[float | None, dict[str, float]]:
        await gauges.read()
        [verifying] = [each for each in registry.collect() if each.name == "muster_orchestrator_validators_verifying"]
        by_class = {sample.labels["numerics"]: sample.value for sample in verifying.samples}
        return registry.get_sample_value("muster_orchestrator_validators_reported"), by_class

    assert await counted() == (0, {})
    await reported(run, AVX2, AVX512)
    await reported(run, AVX2, key=second)
    assert await counted() == (2, {AVX2: 2, AVX512: 1})
    await reported(run)
    assert await counted() == (2, {AVX2: 1})


def test_the_openapi_document_describes_the_body(run: RunUnderTest) -> None:
    schema = run.pool.app.openapi()
    assert schema["paths"][PATH]["put"]["requestBody"]["required"]
    assert schema["components"]["schemas"]["NumericsReport"]["properties"]["classes"]["maxItems"] == MOST_VERIFIED


@pytest.mark.parametrize(("name", "expected"), [(AVX2, True), ("vllm/bfloat16", False), ("torch/float32", False)])
def test_names_of_three_parts_are_classes(name: str, *, expected: bool) -> None:
    assert is_numerics_class(name) is expected


def test_a_trainer_does_not_say_what_validators_verify() -> None:
    assert "unverifiable" in CheckpointRef.model_fields
    assert "unverifiable" not in NewCheckpoint.model_fields
