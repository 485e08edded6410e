"""Reads server-sent events (HTML standard, section 9.2) with bounds on size and time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode

import httpx

from protocol.http.client import BadAnswer, NoAnswer, Unreachable
from protocol.http.problems import error_of_answer
from protocol.http.trust import trust_of
from protocol.versions import SPOKEN, VERSION_HEADER

MOST_EVENT_BYTES = 256 * 1024
"""Maximum size of one event, in bytes."""
MOST_PROBLEM_BYTES = 64 * 1024
"""Maximum number of bytes that are read from an error response."""
SILENCE = timedelta(seconds=60)
"""Time without data after which a connection counts as dead. Services send a comment every 15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvent:
    """One event of a stream."""

    id: str
    """Id of the event; empty if it has none."""
    name: str
    """Type of the event; `message` unless the service names another type."""
    data: str


class EventReader:
    """Parses the bytes of a stream into events, piece by piece."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}
        self._size = 0

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Parses the next bytes; returns the events that they complete.

        Raises:
            BadAnswer: An event is longer than `MOST_EVENT_BYTES`, or is not UTF-8.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found = []
        for line in lines:
            event = self._line(line.rstrip(b"\r"))
            if event is not None:
                found.append(event)
        if len(self._rest) + self._size > MOST_EVENT_BYTES:
            raise BadAnswer(f"an event is longer than {MOST_EVENT_BYTES} bytes")
        return found

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            fields, self._fields, self._size = self._fields, {}, 0
            if "data" not in fields:
                return None
            return ServerEvent(id=fields.get("id", ""), name=fields.get("event", "message"), data=fields["data"])
        if line.startswith(b":"):
            return None
        self._size += len(line)
        if self._size > MOST_EVENT_BYTES:
            raise BadAnswer(f"an event is longer than {MOST_EVENT_BYTES} bytes")
        try:
            name, _, value = line.decode().partition(":")
        except UnicodeDecodeError:
            raise BadAnswer("an event is not UTF-8") from None
        value = value.removeprefix(" ")
        self._fields[name] = f"{self._fields[name]}\n{value}" if name == "data" and "data" in self._fields else value
        return None


@asynccontextmanager
async def listening(
    url: str,
    *,
    query: Mapping[str, str | int | Sequence[str]],
    auth: httpx.Auth,
    last_event_id: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[AsyncIterator[ServerEvent]]:
    """Opens a stream and yields its events; the iteration ends when the service closes it.

    Args:
        url: URL without a query.
        query: Query parameters; one with a sequence is repeated for each element.
        auth: Authentication of the client.
        last_event_id: Id of the last event that was received, for the header `Last-Event-ID`.
        transport: Transport that replaces the network in tests.

    Raises:
        MusterError: The service refused the request; `Unreachable` if it can't be reached.
    """
    timeout = httpx.Timeout(10, read=SILENCE.total_seconds())
    headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", VERSION_HEADER: str(SPOKEN)}
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    async with httpx.AsyncClient(transport=transport, verify=trust_of(url), timeout=timeout, headers=headers) as http:
        request = http.build_request("GET", f"{url}?{urlencode(query, doseq=True)}")
        try:
            response = await http.send(request, auth=auth, stream=True)
        except httpx.TransportError as error:
            raise Unreachable(f"can't reach {request.url.host}: {type(error).__name__}") from error
        try:
            kind = response.headers.get("content-type", "")
            if response.status_code != 200 or not kind.startswith("text/event-stream"):
                raise error_of_answer(response.status_code, kind, await _some(response))
            yield _events(response)
        finally:
            await response.aclose()


async def _events(response: httpx.Response) -> AsyncIterator[ServerEvent]:
    reader = EventReader()
    try:
        async for piece in response.aiter_raw():
            for event in reader.feed(piece):
                yield event
    except httpx.TransportError as error:
        raise NoAnswer(f"the connection of the stream broke: {type(error).__name__}") from error


async def _some(response: httpx.Response) -> bytes:
    body = b""
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MOST_PROBLEM_BYTES:
            break
    return body[:MOST_PROBLEM_BYTES]
