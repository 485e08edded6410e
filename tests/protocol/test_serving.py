"""Limits on what a stranger can occupy of a service.

They concern connections, heads, trailers, bodies and time, and are tested on a real port.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from protocol.http.problems import Problem
from protocol.http.rates import CallerAddresses
from protocol.http.serving.answers import LEAST_RATE, STALLED_S, AnswerBudget
from protocol.http.serving.bodies import UNCOUNTED, BodyBudget
from protocol.http.serving.connections import ConnectionGuard, ConnectionLimits
from protocol.http.serving.descriptors import connection_room, raise_descriptor_limit
from protocol.http.serving.http import BODY_S, HEAD_S, LINGER_S, MOST_HEAD, BoundedServer
from protocol.http.serving.service import create_service
from protocol.runtime.clock import ManualClock

MEBIBYTE = 1 << 20
LARGE = bytes(12 * MEBIBYTE)


class Served:
    """A service on a port, and raw connections to it."""

    def __init__(self, app: FastAPI, server: BoundedServer, port: int, stack: AsyncExitStack) -> None:
        self.app = app
        self.server = server
        self.port = port
        self._stack = stack

    async def connect(
        self, sent: bytes = b"", *, ip: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(ip, 0))
        self._stack.callback(writer.close)
        writer.write(sent)
        return reader, writer

    async def enforce(self) -> None:
        """Checks the deadlines at once, as the server does every second."""
        await self.server.on_tick(0)

    def refused(self, limit: str) -> float:
        return self.app.state.registry.get_sample_value("muster_http_refused_total", {"limit": limit}) or 0.0


@asynccontextmanager
async def serving(clock: ManualClock, **options: object) -> AsyncIterator[Served]:
    app = create_service("test", version="1", clock=clock, body_limit=2 * MEBIBYTE, **options)  # type: ignore[arg-type]
    app.state.gate = asyncio.Event()
    app.state.held = []

    @app.post("/whole")
    async def whole(request: Request) -> int:
        return len(await request.body())

    @app.put("/streamed/{name}")
    async def streamed(name: str, request: Request) -> int:
        if name == "later":
            await app.state.gate.wait()
        return sum([len(piece) async for piece in request.stream()])

    @app.post("/unread")
    async def unread() -> str:
        await app.state.gate.wait()
        return "done"

    @app.get("/headers")
    async def headers(request: Request) -> int:
        await asyncio.sleep(0)
        return len(request.headers)

    @app.get("/large")
    async def large() -> Response:
        app.state.held.append(1)
        return Response(LARGE)

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(0)
                yield b"x" * 65536

        return StreamingResponse(pieces())

    server = BoundedServer(app, serving=app.state.serving, drain_s=1, backlog=64)
    listener = server.config.bind_socket()
    running = asyncio.create_task(server._serve(sockets=[listener]))  # without signal handlers
    async with AsyncExitStack() as stack:
        try:
            await until(lambda: server.started)
            yield Served(app, server, listener.getsockname()[1], stack)
        finally:
            app.state.gate.set()
            await stack.aclose()
            server.should_exit = True
            await running


@pytest.fixture
async def served(clock: ManualClock) -> AsyncIterator[Served]:
    async with serving(clock) as place:
        yield place


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.005)


async def answer(reader: asyncio.StreamReader) -> int:
    """Returns the status of the next answer; 0 if the connection was closed without one."""
    async with asyncio.timeout(60):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0
    return int(head[9:12])


async def problem_in(reader: asyncio.StreamReader) -> tuple[int, Problem]:
    """Returns the status of the next answer and the problem in its body."""
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"\r\nretry-after: 5\r\n" in head.lower()
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        return int(head[9:12]), Problem.model_validate_json(await reader.readexactly(length))


def request(method: str, path: str, *fields: bytes) -> bytes:
    return b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), b"Host: a", *fields, b"", b""])


def post(path: str, length: int, *, sent: int) -> bytes:
    return request("POST", path, b"Content-Length: %d" % length) + b"x" * sent


# Heads and trailers


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (request("GET", "/headers", *(b"X-%d: " % n + b"v" * 300 for n in range(100))), 200),
        (request("GET", "/headers", b"X: " + b"v" * (MOST_HEAD - 100)), 200),
        (request("GET", "/headers", b"X: " + b"v" * MOST_HEAD), 431),
        (request("GET", "/headers?" + "q" * MOST_HEAD), 431),
        (request("GET", "/headers", *(b"X-%d: " % n + b"v" * 300 for n in range(120))), 431),
        (request("GET", "/headers", *(b"a:" for _ in range(200))), 431),
        (b"GET /headers HTTP/1.1\r\nX: " + b"v" * (MEBIBYTE // 2), 431),
        (b"\r\n" * MOST_HEAD, 431),
        (b"no request\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ],
    ids=[
        "100-fields",
        "one-large",
        "too-large",
        "long-url",
        "too-many-bytes",
        "200-fields",
        "endless",
        "blank",
        "odd",
        "connect",
        "target",
    ],
)
@pytest.mark.parametrize("pieces", [1, 50])
async def test_a_request_head_is_limited_to_32_kibibytes(served: Served, head: bytes, status: int, pieces: int) -> None:
    reader, writer = await served.connect()
    size = -(-len(head) // pieces)
    for start in range(0, len(head), size):
        writer.write(head[start : start + size])
        await asyncio.sleep(0)
    assert await answer(reader) == status
    if status != 200:
        assert await reader.read() == b""
        assert served.refused("head") + served.refused("malformed") == 1


CHUNKED = b"Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"3\r\nabc\r\n0\r\n\r\n", 200),
        (b"3\r\nabc\r\n0\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n", 400),
        (b"3\r\nabc\r\n0\r\nX: " + b"v" * 300_000, 431),
        (b"3;" + b"e" * 300_000, 431),
    ],
    ids=["none", "one", "endless", "endless-extension"],
)
async def test_trailers_are_refused(served: Served, body: bytes, status: int) -> None:
    """Trailers must not reach the headers.

    httptools would add them there, and signature and caller's address are read from headers.
    """
    reader, writer = await served.connect(request("POST", "/whole", CHUNKED))
    for start in range(0, len(body), 16_384):
        writer.write(body[start : start + 16_384])
        await asyncio.sleep(0)
    assert await answer(reader) == status


async def test_each_request_on_a_connection_has_its_own_limits(served: Served) -> None:
    """Each head has its own limit, even if a packet ends in the middle of the next head."""
    head = request("GET", "/headers", b"X: " + b"v" * 20_000)
    reader, writer = await served.connect(head * 3 + head[:10_000])
    assert [await answer(reader) for _ in range(3)] == [200, 200, 200]
    writer.write(head[10_000:] + post("/whole", 5, sent=5) + head)
    assert [await answer(reader) for _ in range(3)] == [200, 200, 200]


async def test_the_number_of_pipelined_requests_is_limited(served: Served) -> None:
    waiting = post("/unread", 0, sent=0)
    few, _ = await served.connect(waiting * 3)
    many, _ = await served.connect(waiting * 500)
    await until(lambda: served.refused("malformed") == 1)
    served.app.state.gate.set()
    assert [await answer(few) for _ in range(3)] == [200] * 3
    assert [await answer(many) for _ in range(2)] == [200, 0], "requests before the excess one are answered"


async def test_a_bad_request_does_not_discard_the_answer_before_it(served: Served) -> None:
    reader, _ = await served.connect(post("/unread", 0, sent=0) + b"GET /\xff HTTP/1.1\r\n\r\n")
    await until(lambda: served.refused("malformed") == 1)
    served.app.state.gate.set()
    assert [await answer(reader) for _ in range(2)] == [200, 0]


async def test_a_head_after_a_body_has_the_same_limit(served: Served) -> None:
    """The body and the next head may arrive in one read of 256 KiB."""
    long = request("GET", "/headers", b"X: " + b"v" * 150_000)
    reader, _ = await served.connect(post("/whole", 60_000, sent=60_000) + long)
    assert [await answer(reader) for _ in range(2)] == [200, 0]
    assert served.refused("head") == 1


async def test_a_protocol_upgrade_is_ignored(served: Served) -> None:
    fields = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: YQ==")
    reader, _ = await served.connect(request("GET", "/headers", *fields) + b"\x81\x05hello")
    assert await answer(reader) == 200
    assert await reader.read() == b""


# Time


async def test_slow_clients_are_cut_off_and_those_waiting_for_an_answer_are_not(
    served: Served, clock: ManualClock
) -> None:
    answered = request("GET", "/headers")
    slow = {
        "silent": await served.connect(),
        "half a head": await served.connect(answered[:20]),
        "half a second head": await served.connect(answered),
        "blank lines": await served.connect(answered),
        "half a body": await served.connect(post("/whole", 1000, sent=500)),
    }
    for name, sent in (("half a second head", answered[:20]), ("blank lines", b"\r\n")):
        assert await answer(slow[name][0]) == 200
        slow[name][1].write(sent)
    waiting, _ = await served.connect(post("/unread", 1000, sent=1000))
    idle, writer = await served.connect(answered)
    assert await answer(idle) == 200
    await until(lambda: len(served.app.state.serving.guard) == 7)
    await asyncio.sleep(0.05)  # usually the server has read the last bytes by then; if not, the test covers less

    await clock.turn(timedelta(seconds=max(HEAD_S, BODY_S) + 1))
    await served.enforce()
    expected = dict.fromkeys(slow, 408)
    assert {name: await answer(reader) for name, (reader, _) in slow.items()} == expected
    assert served.refused("slow") == 5
    await until(lambda: len(served.app.state.serving.guard) == 2)
    served.app.state.gate.set()
    assert await answer(waiting) == 200
    writer.write(answered)
    assert await answer(idle) == 200


async def test_a_steadily_arriving_body_is_not_cut_off(served: Served, clock: ManualClock) -> None:
    steps, step = 10, LEAST_RATE * 10
    reader, writer = await served.connect(post("/whole", steps * step, sent=0))
    for number in range(1, steps + 1):
        writer.write(b"x" * step)
        arrived = number % steps * step - UNCOUNTED
        await until(lambda arrived=arrived: len(served.app.state.serving.bodies) >= arrived)  # type: ignore[misc]
        await clock.turn(timedelta(seconds=9))
        await served.enforce()
    assert await answer(reader) == 200


async def test_the_unread_rest_of_a_body_is_drained_for_a_bounded_time(served: Served, clock: ManualClock) -> None:
    reader, writer = await served.connect(post("/nowhere", 1 << 40, sent=300_000))
    assert await answer(reader) == 413
    connections = served.server.server_state.connections
    assert [len(each.cycle.body) for each in connections] == [0]  # type: ignore[union-attr]
    writer.write(b"x" * 300_000)
    await asyncio.sleep(0.02)
    await clock.turn(timedelta(seconds=LINGER_S + 1))
    await served.enforce()
    assert await answer(reader) == 0


async def test_a_client_that_reads_no_answer_is_cut_off(served: Served, clock: ManualClock) -> None:
    await served.connect(request("GET", "/endless"))
    await until(lambda: any(each.flow.write_paused for each in served.server.server_state.connections))  # type: ignore[union-attr]
    held = len(served.app.state.serving.answers)
    assert held > 0
    await clock.turn(timedelta(seconds=STALLED_S - 1))
    await served.enforce()
    assert served.refused("stalled") == 0
    await clock.turn(timedelta(seconds=2 + held / LEAST_RATE))
    await served.enforce()
    await until(lambda: len(served.app.state.serving.guard) == 0)
    assert served.refused("stalled") == 1


# Connections


class Line:
    """The methods of a connection that a guard or a budget uses."""

    def __init__(self, unread: int = 0) -> None:
        self.unread = unread
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True


def line(unread: int = 0) -> Any:
    return Line(unread)


def guard_of(*, most: int, per_address: int = 1000) -> tuple[ConnectionGuard, list[str]]:
    refused: list[str] = []
    limits = ConnectionLimits(connections=most, per_address=per_address)
    return ConnectionGuard(limits, callers=CallerAddresses(["10.0.0.0/8"]), refused=refused.append), refused


def test_connections_are_counted_per_network_and_those_of_proxies_only_in_total() -> None:
    guard, refused = guard_of(most=8, per_address=2)
    callers = ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:3", "2001:db8:0:1::1", "192.0.2.1", "192.0.2.2"]
    lines = [line() for _ in callers]
    assert [guard.admit(*each) for each in zip(callers, lines, strict=True)] == [True, True, False, True, True, True]
    proxies = [line() for _ in range(5)]
    assert [guard.admit("10.0.0.1", each) for each in proxies] == [True, True, True, True, False]
    assert refused == ["connections-per-address", "connections-closed", "connections"]
    assert [each.aborted for each in lines] == [True, False, False, False, False, False]
    assert guard.admit("2001:db8::ffff:3", line()) is False
    guard.release(lines[1])
    assert guard.admit("2001:db8::ffff:3", lines[2])
    for each in (*lines, *proxies):
        guard.release(each)
    assert (len(guard), guard._by_address, guard._by_count, guard._busiest) == (0, {}, {}, 0)
    guard.fit(1)
    assert [guard.admit("192.0.2.1", line()), guard.admit("192.0.2.2", line())] == [True, False]


def test_a_full_server_closes_the_longest_idle_connection_of_the_busiest_address() -> None:
    guard, refused = guard_of(most=9)
    crowd = {name: [line() for _ in range(4)] for name in ("192.0.2.1", "192.0.2.2")}
    for name, lines in crowd.items():
        assert all(guard.admit(name, each) for each in lines)
    assert guard.admit("192.0.2.3", line())
    first = crowd["192.0.2.1"]
    guard.busy(first[0])
    guard.busy(first[1])
    guard.idle(first[1])  # now the newest idle connection
    assert not guard.admit("192.0.2.2", line()), "its own address is the busiest"
    assert guard.admit("192.0.2.4", line())
    assert [each.aborted for each in first] == [False, False, True, False]
    assert guard.admit("192.0.2.4", line()), "the other one is the busiest now"
    assert [each.aborted for each in crowd["192.0.2.2"]] == [True, False, False, False]
    for each in (first[1], first[3]):
        guard.busy(each)
    assert not guard.admit("192.0.2.4", line()), "closing one would not reduce any load"
    for number in range(5, 10):
        guard.admit(f"192.0.2.{number}", line())
    assert (len(guard), guard._busiest) == (9, 1)
    assert [each.aborted for each in first] == [True, True, True, False], "each was busy, so the oldest were closed"
    assert refused.count("connections") == 2
    guard.release(first[0])  # as the protocol does when the connection is lost
    assert len(guard) == 9


async def test_a_new_client_is_served_while_others_occupy_all_places(clock: ManualClock) -> None:
    limits = ConnectionLimits(connections=3, per_address=3)
    async with serving(clock, connections=limits) as served:
        asking, _ = await served.connect(post("/unread", 0, sent=0))
        await until(lambda: len(served.server.server_state.tasks) == 1)
        idle, _ = await served.connect()
        other, _ = await served.connect()
        await until(lambda: len(served.app.state.serving.guard) == 3)
        newcomer, _ = await served.connect(request("GET", "/headers"), ip="127.0.0.2")
        assert await answer(newcomer) == 200
        assert await answer(idle) == 0
        assert served.refused("connections-closed") == 1
        served.app.state.gate.set()
        assert await answer(asking) == 200
        del other


# Answers


def test_unread_answers_have_a_budget_and_the_busiest_address_loses_its_oldest() -> None:
    refused: list[str] = []
    callers = CallerAddresses(["10.0.0.0/8"])
    budget = AnswerBudget(callers=callers, most=100, most_of_one=40, refused=refused.append)
    lines = [line(20) for _ in range(3)]
    for each in lines:
        budget.hold(each, "a")
    assert ([each.aborted for each in lines], len(budget)) == ([True, False, False], 40)
    large = line(50)
    budget.hold(large, "b")  # a caller's only answer may exceed the caller's budget
    assert (large.aborted, len(budget)) == (False, 90)
    budget.hold(line(20), "c")
    assert (large.aborted, len(budget)) == (True, 60)
    assert refused == ["answers-per-address", "answers"]
    for each in (*lines, large):
        budget.release(each)
    assert (len(budget), set(budget._by_caller), dict(budget._held)) == (20, {"c"}, {"c": 20})
    proxied = [line(20) for _ in range(3)]  # a proxy carries the answers of many callers
    for each in proxied:
        budget.hold(each, "10.0.0.1")
    assert ([each.aborted for each in proxied], len(budget)) == ([False, False, False], 80)
    budget.hold(line(1000), "d")
    assert len(budget) == 80, "no single answer exceeds the budget"


async def test_unread_answers_of_an_address_occupy_little_memory(served: Served) -> None:
    """Before this limit existed, the server held 200 MiB of unread answers for one address."""
    state = served.app.state
    budget = state.serving.answers
    budget._most_of_one = 2 * len(LARGE)

    def held() -> int:
        return sum(each.transport.get_write_buffer_size() for each in served.server.server_state.connections)

    for number in range(1, 9):
        await served.connect(request("GET", "/large"))
        await until(lambda number=number: len(state.held) == number)  # type: ignore[misc]
        await asyncio.sleep(0)
    await until(lambda: held() == len(budget))
    assert 0 < held() <= budget._most_of_one
    assert served.refused("answers-per-address") >= 4
    reader, _ = await served.connect(request("GET", "/large"))
    assert await answer(reader) == 200, "a reader that takes its answer gets it"
    await served._stack.pop_all().aclose()
    await until(lambda: len(budget) == 0)


async def test_the_next_answer_is_not_made_before_the_last_one_is_read(served: Served) -> None:
    reader, _ = await served.connect(request("GET", "/large") * 2)
    await until(lambda: len(served.app.state.serving.answers) > 0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(served.app.state.held) == 1
    assert [await answer(reader) for _ in range(2)] == [200, 200]
    assert len(served.app.state.held) == 2


# Connections of one address


async def test_the_number_of_connections_per_address_is_limited(clock: ManualClock) -> None:
    async with serving(clock, connections=ConnectionLimits(per_address=2)) as served:
        reader, writer = await served.connect()
        other, _ = await served.connect()
        await until(lambda: len(served.app.state.serving.guard) == 2)
        refused, _ = await served.connect(request("GET", "/headers"))
        assert await answer(refused) == 0
        writer.close()
        await until(lambda: len(served.app.state.serving.guard) == 1)
        reader, _ = await served.connect(request("GET", "/headers"))
        assert await answer(reader) == 200
        assert served.refused("connections-per-address") == 1
        del other


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        assert connection_room() == 896
        assert raise_descriptor_limit() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Bodies


async def test_bodies_in_transit_have_a_memory_budget(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before this limit existed, 300 unsigned bodies held 288 MiB."""
    callers = CallerAddresses(["127.0.0.1"])
    async with serving(clock, callers=callers, body_limits=(("/streamed/", 1 << 30),)) as served:
        bodies = served.app.state.serving.bodies
        bodies._most, bodies._most_of_one = 4 * MEBIBYTE, MEBIBYTE

        async def send(path: str, ip: str, *, sent: int) -> asyncio.StreamReader:
            head = request("PUT" if "streamed" in path else "POST", path, b"X-Forwarded-For: " + ip.encode(),
                           b"Content-Length: %d" % (2 * MEBIBYTE))  # fmt: skip
            reader, _ = await served.connect(head + b"x" * sent)
            return reader

        most = MEBIBYTE - 65536
        for ip in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
            await send("/whole", ip, sent=most)
        await until(lambda: len(bodies) == 3 * (most - UNCOUNTED))
        refused, problem = await problem_in(await send("/whole", "192.0.2.1", sent=200_000))
        assert (refused, problem.code, problem.hint) == (429, "rate-limited", "send fewer requests at a time")
        assert (problem.retryable, problem.retry_after) == (True, 5)
        assert served.refused("bodies-per-address") == 1
        # Small bodies, such as heartbeats, and streamed bodies, such as files, do not count towards the budget.
        small, _ = await served.connect(post("/whole", UNCOUNTED, sent=UNCOUNTED))
        assert await answer(small) == 200
        assert await answer(await send("/streamed/a", "192.0.2.4", sent=2 * MEBIBYTE)) == 200
        # A streamed body is not refused half-way when other bodies from its address wait for the disk.
        later = [await send("/streamed/later", "192.0.2.9", sent=2 * MEBIBYTE) for _ in range(12)]
        served.app.state.gate.set()
        assert [await answer(reader) for reader in later] == [200] * 12
        await send("/whole", "192.0.2.4", sent=most)
        await until(lambda: len(bodies) == 4 * (most - UNCOUNTED))
        refused, problem = await problem_in(await send("/whole", "192.0.2.5", sent=500_000))
        assert (refused, problem.code, problem.hint) == (503, "unavailable", "send the request again in 5 s")
        assert served.refused("bodies") == 1
        # The server holds no bytes for disconnected callers or for answered requests.
        await served._stack.pop_all().aclose()
        await until(lambda: len(bodies) == 0)
        assert bodies._held == {}


async def test_bodies_that_no_route_reads_count_towards_the_budget(served: Served) -> None:
    bodies = served.app.state.serving.bodies
    for _ in range(3):
        await served.connect(post("/unread", MEBIBYTE, sent=50_000))
    await until(lambda: len(bodies) == 3 * (50_000 - UNCOUNTED))
    served.app.state.gate.set()
    await until(lambda: len(bodies) == 0)


def test_the_body_budget_stays_consistent_when_bytes_are_returned() -> None:
    budget = BodyBudget(most=100_000, most_of_one=50_000, refused=lambda _: None)
    assert budget.change("a", 50_000) is None
    refused = budget.change("a", 1)
    assert refused is not None
    assert (refused.status, refused.retryable) == (429, True)
    assert budget.change("b", 50_000) is None
    assert budget.change("c", 1_000) is None  # a caller with few bytes may use the reserve
    refused = budget.change("c", 1_000)
    assert refused is not None
    assert refused.status == 503
    assert budget.change("a", -50_000) is None
    assert budget.change("c", 1) is None
    assert len(budget) == 51_001
