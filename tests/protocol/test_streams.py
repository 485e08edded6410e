"""Server-sent events are parsed at any split and bounded; broken streams are reopened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI, Header, Query, Response
from fastapi.responses import StreamingResponse
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from orchestrator.store.events import EventsExpired
from protocol.clients import OrchestratorClient
from protocol.clients.streams import MOST_EVENT_BYTES, EventReader, ServerEvent
from protocol.errors import Forbidden, RateLimited
from protocol.http.client import BadAnswer
from protocol.http.serving.problem_answers import install_problem_answers
from protocol.identifiers import address
from protocol.runtime.clock import ManualClock
from protocol.wire.events import PoolEvent
from protocol.wire.logs import LogLine

NODE = address("0x" + "11" * 20)
LINES = st.text(st.characters(exclude_characters="\r\n\x00", exclude_categories=["Cs"]), max_size=40)


def written(events: list[ServerEvent]) -> bytes:
    text = ": hello\n\n"
    for event in events:
        text += f"id: {event.id}\nevent: {event.name}\n"
        text += "".join(f"data: {line}\n" for line in event.data.split("\n")) + "\n: comment\n\n"
    return text.encode()


@given(
    events=st.lists(st.builds(ServerEvent, id=LINES, name=LINES, data=st.lists(LINES, min_size=1).map("\n".join))),
    cuts=st.lists(st.integers(0, 2000)),
)
def test_events_are_complete_wherever_the_stream_is_split(events: list[ServerEvent], cuts: list[int]) -> None:
    data, reader, found = written(events), EventReader(), []
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        found += reader.feed(data[begin:end])
    assert found == events


@given(st.binary(max_size=300))
def test_any_bytes_give_events_or_one_error_class(data: bytes) -> None:
    with suppress(BadAnswer):
        EventReader().feed(data)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    reader = EventReader()
    for _ in range(MOST_EVENT_BYTES // len(piece)):
        assert reader.feed(piece) == []
    with pytest.raises(BadAnswer):
        reader.feed(piece)


def line(sequence: int) -> LogLine:
    return LogLine(sequence=sequence, time_ms=1, stream="stdout", text=f"line {sequence}")


class BreakingPool:
    """A pool whose stream breaks after every three lines; it records the requests."""

    def __init__(self, *, then: Exception | None = None) -> None:
        self.asked: list[int | None] = []
        self.app = FastAPI()
        install_problem_answers(self.app)

        @self.app.get(f"/v1/nodes/{NODE}/logs")
        async def logs(
            tail: int | None = None, since: int | None = None, follow: Annotated[bool, Query()] = False
        ) -> StreamingResponse:
            assert follow
            if self.asked and then is not None:
                raise then
            self.asked.append(since)
            first = since or 0

            async def three() -> AsyncIterator[str]:
                for sequence in range(first, first + 3):
                    yield f"id: {sequence}\ndata: {line(sequence).model_dump_json()}\n\n"

            return StreamingResponse(three(), media_type="text/event-stream")

    def client(self, clock: ManualClock) -> OrchestratorClient:
        transport = httpx.ASGITransport(app=self.app)
        return OrchestratorClient("http://127.0.0.1", token="mst_0", clock=clock, transport=transport)


async def take(client: OrchestratorClient, clock: ManualClock, count: int) -> list[int]:
    found: list[int] = []

    async def follow() -> None:
        async for one in client.follow_logs(NODE, tail=5):
            found.append(one.sequence)
            if len(found) == count:
                return

    task = asyncio.create_task(follow())
    async with asyncio.timeout(60):
        while not task.done():
            await clock.turn(timedelta(seconds=1))
            await asyncio.sleep(0)
    await task
    return found


async def test_a_broken_stream_is_reopened_where_it_stopped(clock: ManualClock) -> None:
    pool = BreakingPool()
    assert await take(pool.client(clock), clock, 8) == list(range(8))
    assert pool.asked == [None, 3, 6]


async def test_a_refusal_ends_the_stream(clock: ManualClock) -> None:
    pool = BreakingPool(then=Forbidden("no more", hint="", code="scope"))
    with pytest.raises(Forbidden):
        await take(pool.client(clock), clock, 8)


async def test_a_limit_on_followers_is_retried(clock: ManualClock) -> None:
    pool = BreakingPool(then=RateLimited("crowded", retry_after=timedelta(seconds=30)))
    client = pool.client(clock)
    found: list[int] = []

    async def follow() -> None:
        async for one in client.follow_logs(NODE):
            found[len(found) :] = [one.sequence]

    task = asyncio.create_task(follow())
    for _ in range(60):
        await clock.turn(timedelta(seconds=1))
        await asyncio.sleep(0)
    assert (found, task.done()) == ([0, 1, 2], False)
    task.cancel()


async def test_a_follower_of_events_is_warned_of_deleted_events_and_goes_on(clock: ManualClock) -> None:
    app = FastAPI()
    install_problem_answers(app)
    asked: list[tuple[str | None, str | None]] = []
    events = {name: PoolEvent(id=name, time_ms=1, kind="task.created", detail="", actor="a") for name in ("2-0", "9-0")}

    @app.get("/v1/events")
    async def stream(after: str, follow: bool, last_event_id: Annotated[str | None, Header()] = None) -> Response:
        assert follow
        asked.append((after, last_event_id))
        if last_event_id == "2-0":
            raise EventsExpired("the event 2-0 is no longer kept")
        event = events["2-0" if after == "1-0" else "9-0"]
        return Response(f"id: {event.id}\ndata: {event.model_dump_json()}\n\n", media_type="text/event-stream")

    async def three() -> list[str]:
        client = OrchestratorClient("http://127.0.0.1", token="mst_0", clock=clock, transport=httpx.ASGITransport(app))
        following = client.follow_events(after="1-0")
        return [(await anext(following)).id for _ in range(3)]

    with capture_logs() as logs:
        task = asyncio.create_task(three())
        async with asyncio.timeout(60):
            while not task.done():
                await clock.turn(timedelta(seconds=1))
                await asyncio.sleep(0)
    assert await task == ["2-0", "9-0", "9-0"]
    assert asked == [("1-0", "1-0"), ("2-0", "2-0"), ("2-0", None), ("9-0", "9-0")]
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == ["events-lost"]
