"""A validator reports to the orchestrator which numerics classes it can verify."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import httpx
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from cli.validator.status import show_status
from orchestrator.runs.numerics import LIFE
from protocol.clients import NodeClient
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.wire.validators import MOST_VERIFIED
from tests.kit.memory_ledger import PoolUnderTest
from tests.kit.orchestrator import MakePool, make_pool
from tests.kit.redis_aging import age
from tests.kit.validators import Host, PoolWithValidators
from validator.api.views import StatusView
from validator.loops.numerics import LONGEST_SILENCE, RETRY, NumericsReports
from validator.store.keys import keys_of
from validator.store.members import MEMBER_FOR, Condition, Members, MemberState

__all__ = ["make_pool"]

POOL = 7
AVX2, AVX512, H100 = (f"vllm-0.32.0/bfloat16/{device}" for device in ("cpu-avx2", "cpu-avx512", "sm_90"))
SECOND = timedelta(seconds=1)


@dataclass
class Process:
    """A validator process with a report loop."""

    members: Members
    reports: NumericsReports
    client: NodeClient
    classes: list[str]

    async def announce(self) -> None:
        await self.members.announce(Condition(state=MemberState.WELL), since=timedelta())


@dataclass
class Reporting:
    """An orchestrator with validator processes, whose loops the test runs step by step."""

    orchestrator: PoolUnderTest
    redis: Redis
    key: Key = field(default_factory=Key.generate)
    made: list[Process] = field(default_factory=list)

    def process(self, *classes: str, key: Key | None = None) -> Process:
        key, named = key or self.key, list(classes)
        members = Members(
            self.redis,
            keys=keys_of(POOL),
            validator=key.address,
            place=f"process-{len(self.made)}",
            numerics=lambda: named,
        )
        transport = httpx.ASGITransport(app=self.orchestrator.app, raise_app_exceptions=False)
        clock = self.orchestrator.clock
        client = NodeClient("http://127.0.0.1", key=key, clock=clock, transport=transport)
        reports = NumericsReports(members, orchestrator=client, clock=clock)
        self.made.append(Process(members, reports, client, named))
        return self.made[-1]

    async def known(self) -> dict[Address, tuple[str, ...]]:
        """Returns the classes by validator that the orchestrator knows, without its cache."""
        await self.turn(SECOND)
        return {row.validator: row.classes for row in await self.orchestrator.dependencies.numerics.reports()}

    async def turn(self, by: timedelta) -> None:
        await self.orchestrator.clock.turn(by)


@pytest.fixture
async def reporting(make_pool: MakePool, redis: Redis) -> AsyncIterator[Reporting]:
    made = Reporting(make_pool(), redis)
    made.orchestrator.ledger.validators.add(made.key.address)
    yield made
    for process in made.made:
        await process.client.aclose()


def remove_route(pool: PoolUnderTest) -> list[object]:
    """Makes an orchestrator of a release without the route; returns its former routes."""
    routes = list(pool.app.router.routes)
    pool.app.router.routes[:] = [each for each in routes if "/validators/" not in getattr(each, "path", "")]
    assert len(pool.app.router.routes) == len(routes) - 1
    return [*routes]


async def test_a_report_is_sent_at_the_start_and_after_each_change(reporting: Reporting) -> None:
    process = reporting.process()
    await process.reports.round()
    assert await reporting.known() == {reporting.key.address: ()}, "an empty list is reported, too"
    process.classes += [H100, AVX2]
    await process.reports.round()
    assert await reporting.known() == {reporting.key.address: (AVX2, H100)}
    process.classes.remove(H100)
    await process.reports.round()
    assert await reporting.known() == {reporting.key.address: (AVX2,)}


async def test_an_unchanged_report_is_repeated_every_five_minutes_and_never_expires(reporting: Reporting) -> None:
    process, sent = reporting.process(AVX2), 0
    numerics = reporting.orchestrator.dependencies.numerics
    store = numerics._store.put

    async def put(validator: Address, classes: Sequence[str], *, now_ms: int, life_ms: int) -> None:
        nonlocal sent
        sent += 1
        await store(validator, classes, now_ms=now_ms, life_ms=life_ms)

    numerics._store.put = put  # type: ignore[method-assign]
    for _ in range(240):  # an hour
        await process.reports.round()
        assert len(await numerics.reports()) == 1
        await reporting.turn(LIFE / 60)
    assert sent == timedelta(hours=1) / LONGEST_SILENCE


async def test_an_orchestrator_without_the_route_is_logged_once_and_asked_again_after_an_upgrade(
    reporting: Reporting,
) -> None:
    process = reporting.process(AVX2)
    routes = remove_route(reporting.orchestrator)
    with capture_logs() as logs:
        for _ in range(20):
            await process.reports.round()
            await reporting.turn(LONGEST_SILENCE / 5)
    [entry] = [each for each in logs if each["event"] == "numerics-not-reported"]
    assert (entry["log_level"], "release" in entry["why"]) == ("info", True)
    assert await reporting.known() == {}
    reporting.orchestrator.app.router.routes[:] = routes  # type: ignore[assignment]
    await reporting.turn(LONGEST_SILENCE)
    await process.reports.round()
    assert await reporting.known() == {reporting.key.address: (AVX2,)}


async def test_a_refused_report_is_logged_once_and_repeated_after_thirty_seconds(reporting: Reporting) -> None:
    reporting.orchestrator.ledger.validators.clear()
    process = reporting.process(AVX2)
    with capture_logs() as logs:
        for _ in range(10):
            await process.reports.round()
            await reporting.turn(RETRY / 5)
    [entry] = [each for each in logs if each["event"] == "numerics-not-reported"]
    assert (entry["log_level"], entry["code"]) == ("warning", "role")
    reporting.orchestrator.ledger.validators.add(reporting.key.address)
    await reporting.turn(RETRY)
    await process.reports.round()
    assert await reporting.known() == {reporting.key.address: (AVX2,)}


async def test_processes_of_one_key_report_their_classes_together(reporting: Reporting) -> None:
    other_key = Key.generate()
    reporting.orchestrator.ledger.validators.add(other_key.address)
    first, second, other = reporting.process(AVX2), reporting.process(AVX512), reporting.process(H100, key=other_key)
    for each in (first, second, other):
        await each.announce()
    for each in (first, second, other):
        await each.reports.round()
        assert (await reporting.known()).get(reporting.key.address) == (AVX2, AVX512)
    assert (await reporting.known())[other_key.address] == (H100,)
    await second.members.leave()
    await first.reports.round()
    assert (await reporting.known())[reporting.key.address] == (AVX2,)


async def test_classes_of_a_silent_process_are_not_reported(reporting: Reporting) -> None:
    first, second = reporting.process(AVX2), reporting.process(AVX512)
    await second.announce()
    assert await first.members.numerics() == (AVX2, AVX512)
    await age(reporting.redis, keys_of(POOL).prefix, MEMBER_FOR)
    assert await first.members.numerics() == (AVX2,)


async def test_a_process_of_an_older_release_announces_no_classes(reporting: Reporting) -> None:
    first, second = reporting.process(AVX2), reporting.process(AVX512)
    await second.announce()
    await reporting.redis.hdel(f"{keys_of(POOL).prefix}member:{second.members.me}", "numerics")
    assert await first.members.numerics() == (AVX2,)


async def test_at_most_sixteen_classes_are_reported(reporting: Reporting) -> None:
    names = [f"vllm-0.{minor}.0/bfloat16/cpu-avx2" for minor in range(10, 12 + MOST_VERIFIED)]
    process = reporting.process(*names)
    await process.reports.round()
    assert await reporting.known() == {reporting.key.address: tuple(names[:MOST_VERIFIED])}


@pytest.mark.parametrize("classes", [(), (AVX2,)])
async def test_a_validator_service_reports_what_it_was_built_with(
    pool: PoolWithValidators, classes: tuple[str, ...]
) -> None:
    validator = pool.validator(host=Host(numerics=classes))
    await validator.read()
    await validator.loops.numerics.round()
    [row] = await pool.run.pool.dependencies.numerics.reports()
    assert (row.validator, row.classes) == (validator.key.address, classes)


async def test_status_and_metrics_show_the_classes_of_the_process(
    pool: PoolWithValidators, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = [AVX2, H100]
    validator = pool.validator()
    validator.dependencies.members._numerics = lambda: classes
    for shown in ((AVX2, H100), (AVX2,)):  # a class that failed is no longer shown
        classes[:] = shown
        await validator.read()
        await validator.loops.queue_metrics.read()
        status = StatusView.model_validate(await validator.status())
        assert status.members[0].numerics == shown
        show_status(status)
        assert ", ".join(shown) in capsys.readouterr().out
        registry = validator.app.state.registry
        for name in (AVX2, H100):
            found = registry.get_sample_value("muster_validator_numerics", {"numerics": name})
            assert found == (1 if name in shown else None)


async def test_a_machine_of_another_class_after_a_restart_replaces_the_report(reporting: Reporting) -> None:
    before = reporting.process(AVX512, AVX2)
    await before.announce()
    await before.reports.round()
    await before.members.leave()
    after = reporting.process(AVX2)
    await after.announce()
    await after.reports.round()
    assert await reporting.known() == {reporting.key.address: (AVX2,)}
