"""Properties of the Redis scripts: whatever happens in any order, requests and choices are conserved."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.clients.tokens import GatewayRole, TokenQuota, TokenStore
from gateway.settings import GatewaySettings
from gateway.store.database import Database
from gateway.store.scripts import (
    AddPart,
    AdmitClient,
    CancelRequest,
    CloseSession,
    FailAttempt,
    FinishRequest,
    JudgeAnswer,
    OpenSession,
    PollSession,
    Sweep,
    TakeVerification,
)
from protocol.identifiers import address, digest
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import ManualClock
from tests.kit.gateway import DIGEST, POOL, RUN

NODES = [address("0x" + f"{number:02x}" * 20) for number in (17, 18, 19)]
GROUPS, LIMIT = 4, 16
LAST = '{"error": {}}'


@dataclass
class Model:
    """What a test knows about a gateway, without Redis."""

    database: Database
    token: str
    verify: str
    now: int = 1_000_000
    sessions: list[tuple[str, str]] = field(default_factory=list)
    """Ids with their nodes."""
    choices: dict[str, int] = field(default_factory=dict)
    """Choices of each admitted request."""
    open_work: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    """By session, the requests that it took, each with its attempt."""
    accepted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Sessions with requests whose answers the gateway accepted."""

    async def run(self, call: Any) -> Any:
        return await self.database.scripts.run(call)

    async def open(self, pick: int) -> None:
        number = len(self.sessions)
        opened = await self.run(
            OpenSession(
                id=f"{number:032x}",
                token_hash=f"hash{number}",
                work_key=digest(number.to_bytes(32, "big")),
                node=NODES[pick % 3],
                provider=NODES[pick % 3],
                digest=DIGEST,
                version=3,
                arithmetic="torch/float32",
                groups=GROUPS,
                limit=LIMIT,
                ends_ms=self.now + 500_000,
                expiry_ms=self.now + 600_000,
                now_ms=self.now,
                alive_ms=10_000,
                most_of_node=3,
                most_of_provider=3,
                most_sessions=8,
                last=LAST,
            )
        )
        if opened.outcome == "ok":
            self.sessions.append((opened.id, NODES[pick % 3]))
            self.open_work[opened.id] = set()

    async def admit(self, pick: int) -> None:
        identifier = f"{len(self.choices) + 1000:032x}"
        choices = pick % 3 + 1
        admitted = await self.run(
            AdmitClient(
                id=identifier,
                token=self.token,
                replica="one",
                kind="completion",
                digest=DIGEST,
                choices=choices,
                new_tokens=8,
                cost=100,
                seed=DIGEST,
                verify=self.verify,
                with_pieces=False,
                now_ms=self.now,
                most_waiting=5,
                most_tokens=10_000,
                request_ms=600_000,
                form=b"[]",
                body=b"{}",
            )
        )
        if admitted.outcome == "ok":
            self.choices[identifier] = choices

    async def poll(self, pick: int) -> None:
        if not self.sessions:
            return
        session, _ = self.sessions[pick % len(self.sessions)]
        number = int(session, 16)
        polled = await self.run(
            PollSession(
                session=session,
                token_hash=f"hash{number}",
                free=pick % 5,
                now_ms=self.now,
                alive_ms=10_000,
                wait_ms=0,
                slot_ms=60_000,
            )
        )
        rows = polled.requests
        for place in range(0, len(rows), 7):
            self.open_work[session].add((rows[place].decode(), int(rows[place + 1])))

    def _work(self, pick: int) -> tuple[str, str, int] | None:
        found = sorted((session, *one) for session, work in self.open_work.items() for one in work)
        return found[pick % len(found)] if found else None

    async def part(self, pick: int) -> None:
        if (work := self._work(pick)) is not None:
            session, request, attempt = work
            await self.run(
                AddPart(
                    session=session,
                    token_hash=f"hash{int(session, 16)}",
                    request=request,
                    attempt=attempt,
                    part=0,
                    now_ms=self.now,
                    alive_ms=10_000,
                    most_bytes=10_000,
                    content=b"[]",
                    counts={"0": "3"},
                )
            )

    async def finish(self, pick: int) -> None:
        if (work := self._work(pick)) is not None:
            session, request, attempt = work
            finished = await self.run(
                FinishRequest(
                    session=session,
                    token_hash=f"hash{int(session, 16)}",
                    request=request,
                    attempt=attempt,
                    now_ms=self.now,
                    answer=DIGEST,
                    used=5,
                    written=3,
                    sampled=False,
                    verify_ms=60_000,
                    last=b"{}",
                    shown=b"{}",
                )
            )
            if finished.outcome == "ok":
                self.accepted[session, request] += 1

    async def fail(self, pick: int) -> None:
        if (work := self._work(pick)) is not None:
            session, request, attempt = work
            await self.run(
                FailAttempt(
                    session=session,
                    token_hash=f"hash{int(session, 16)}",
                    request=request,
                    attempt=attempt,
                    now_ms=self.now,
                    alive_ms=10_000,
                    client_fault="fault:prompt" if pick % 2 else "",
                    fault=LAST,
                    strike_ms=0,
                    last=LAST,
                )
            )

    async def cancel(self, pick: int) -> None:
        if self.choices:
            await self.run(CancelRequest(id=sorted(self.choices)[pick % len(self.choices)], only_waiting=pick % 2 == 0))

    async def judge(self, pick: int) -> None:
        taken = await self.run(TakeVerification(versions=(DIGEST,)))
        if taken.id:
            verdict = ("valid", "invalid", "unknown")[pick % 3]
            await self.run(
                JudgeAnswer(id=taken.id, verdict=verdict, now_ms=self.now, distrust_ms=1, last=LAST, unverified=LAST)
            )

    async def turn(self, pick: int) -> None:
        self.now += (1_000, 11_000, 61_000)[pick % 3]
        await self.run(Sweep(now_ms=self.now, at_once=100, last=LAST, unverified=LAST))

    async def close(self, pick: int) -> None:
        if self.sessions:
            session, _ = self.sessions[pick % len(self.sessions)]
            await self.served(session)

    async def served(self, session: str) -> list[str]:
        closed = await self.run(
            CloseSession(session=session, token_hash=f"hash{int(session, 16)}", now_ms=self.now, last=LAST)
        )
        return [closed.served[place].decode() for place in range(0, len(closed.served), 6)]

    async def check(self) -> None:
        """Checks what holds after every step."""
        redis, keys = self.database.redis, self.database.keys
        states: Counter[str] = Counter()
        load: Counter[str] = Counter()
        reserved = 0
        waiting = {one.decode() for one in await redis.zrange(keys.of("waiting", DIGEST), 0, -1)}
        for identifier, choices in self.choices.items():
            row = {k.decode(): v.decode() for k, v in (await redis.hgetall(keys.of("request", identifier))).items()}
            states[row["state"]] += 1
            assert (identifier in waiting) == (row["state"] == "waiting")
            assert int(row["attempt"]) < 3
            if row["state"] == "assigned":
                load[row["node"]] += choices
                assert await redis.sismember(keys.of("work", row["session"]), identifier)
            if row["state"] != "done":
                reserved += int(row["reserved"])
        found = {k.decode(): int(v) for k, v in (await redis.hgetall(keys.of("load"))).items()}
        assert found == dict(load)
        open_requests = len(self.choices) - states["done"]
        assert await redis.scard(keys.of("active", self.token)) == open_requests
        assert int(await redis.hget(keys.of("day", self.token), "0") or 0) >= reserved
        for session, _ in self.sessions:
            row = {k.decode(): v.decode() for k, v in (await redis.hgetall(keys.of("session", session))).items()}
            work = [one.decode() for one in await redis.smembers(keys.of("work", session))]
            used = sum(self.choices[one] for one in work)
            used += sum(self.choices[request] for (own, request), _ in self.accepted.items() if own == session)
            assert int(row["left"]) == GROUPS - used >= 0
            assert int(row["active"]) == len(work)


STEPS: dict[str, Callable[[Model, int], Any]] = {
    name: getattr(Model, name)
    for name in ("open", "admit", "poll", "part", "finish", "fail", "cancel", "judge", "turn", "close")
}


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["admit", "poll", "poll", "finish", *STEPS]), st.integers(0, 59)), max_size=40
    ),
    verify=st.sampled_from(["", "before"]),
)
def test_requests_and_choices_are_conserved(redis_server: str, steps: list[tuple[str, int]], verify: str) -> None:
    async def work() -> None:
        redis: Redis = connect_redis(redis_server)
        await redis.flushall()
        try:
            database = Database(
                redis,
                settings=GatewaySettings(pool_id=POOL, run=RUN, public_url="x", deployment=Path("unused")),
                clock=ManualClock(),
            )
            store = TokenStore(database)
            await store.create("app", GatewayRole.CLIENT, TokenQuota())
            (row,) = await store.list()
            model = Model(database, row.id, verify)
            await model.open(0)
            for name, pick in steps:
                await STEPS[name](model, pick)
                await model.check()
            lists = {session: await model.served(session) for session, _ in model.sessions}
            await model.check()
            for session, requests in lists.items():
                assert Counter(requests) == Counter(
                    {request: count for (own, request), count in model.accepted.items() if own == session}
                ), "a list has exactly what was accepted, once"
            if not verify:
                assert max(Counter(chain.from_iterable(lists.values())).values(), default=0) <= 1, (
                    "nothing is paid twice"
                )
        finally:
            await redis.aclose()

    asyncio.run(work())
