"""A hostile relay: a real HTTP server that passes on an origin's answers, each spoilt in one way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from shardcast.manifest.records import BLOCK, MOST_VERSION
from tests.kit.manifests import RUN, STRANGER, author, lines_of

Spoil = Callable[["HostileRelay", web.Request, web.StreamResponse, bytes], Awaitable[web.StreamResponse]]


class HostileRelay:
    """Passes on an origin's answers, but spoils those whose path contains `where`.

    Args:
        upstream: The origin.
        where: The answers to spoil: `/files/`, `/manifest`, `/versions`, ...
        spoil: The function that spoils them.
    """

    def __init__(self, upstream: str, where: str, spoil: Spoil) -> None:
        self.spoilt = 0
        """The number of spoilt answers."""
        self.trapped = 0
        """Requests that followed a redirect."""
        self.url = ""
        self._upstream = upstream
        self._where = where
        self._spoil = spoil
        self.leaving = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/trap", self._trap)
        app.router.add_get("/{path:.*}", self._answer)
        # Ends an answer that its reader has abandoned; otherwise a hundred of them would soon be waiting.
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._session = aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leaving.set()
        await self._session.close()
        await self._runner.cleanup()

    async def _trap(self, _request: web.Request) -> web.Response:
        self.trapped += 1
        return web.Response(body=b"x" * BLOCK)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {"Range": request.headers["Range"]} if "Range" in request.headers else {}
        async with self._session.get(self._upstream + request.path_qs, headers=headers) as answer:
            spoiling = self._where in request.path
            if "follow" in request.query or (request.path.endswith("/manifest") and not spoiling):
                return await self._stream(request, answer, spoiling=spoiling)
            body = await answer.read()
            kept = {name: answer.headers[name] for name in ("Content-Range", "Content-Type") if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=kept)
            if spoiling:
                self.spoilt += 1
                return await self._spoil(self, request, response, body)
            response.content_length = len(body)
            await response.prepare(request)
            await response.write(body)
            return response

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, *, spoiling: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for line in answer.content:
            if spoiling and line.strip():
                self.spoilt += 1
                return await self._spoil(self, request, response, line)
            await response.write(line)
        return response


async def _send(request: web.Request, response: web.StreamResponse, body: bytes) -> web.StreamResponse:
    if not response.prepared:
        response.content_length = len(body)
        await response.prepare(request)
    await response.write(body)
    return response


async def flip(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Flips one bit."""
    at = len(body) // 2
    return await _send(request, response, body[:at] + bytes((body[at] ^ 1,)) + body[at + 1 :])


async def cut(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Closes the connection half-way."""
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    assert request.transport is not None
    request.transport.abort()
    return response


async def shorten(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends fewer bytes with a matching header."""
    return await _send(request, response, body[:-1])


async def stall(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends half of the answer and then nothing."""
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    await relay.leaving.wait()
    return response


async def silence(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends no answer at all."""
    await relay.leaving.wait()
    return response


async def drip(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends a byte now and then, so that no single wait is long."""
    response.content_length = len(body)
    await response.prepare(request)
    for at in range(len(body)):
        await response.write(body[at : at + 1])
        await asyncio.sleep(0.05)
        if relay.leaving.is_set():
            break
    return response


async def other_range(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Names and sends another range than requested."""
    response.headers["Content-Range"] = f"bytes 1-{len(body)}/*"
    return await _send(request, response, body)


async def lying_range(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Names the requested range, but sends another."""
    return await _send(request, response, body[1:] + body[:1])


async def error_page(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends an HTML page with status 200."""
    return web.Response(text="<html>503 Service Unavailable</html>", content_type="text/html")


async def refuse(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Answers with status 503."""
    return web.Response(status=503)


async def redirect(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Redirects to another address."""
    return web.Response(status=302, headers={"Location": f"{relay.url}/trap"})


async def endless(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends endless bytes without a line end."""
    if not response.prepared:
        await response.prepare(request)
    while not relay.leaving.is_set():
        await response.write(b"x" * BLOCK)
    return response


async def more(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends more bytes than requested."""
    return await _send(request, response, body + b"more")


async def close_each(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends a correct answer and then closes the connection."""
    response.force_close()
    return await _send(request, response, body)


async def compress(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Declares compression, which could unpack to any size."""
    response.headers["Content-Encoding"] = "gzip"
    return await _send(request, response, body)


async def strangers_manifest(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends a valid manifest of another publisher."""
    return await _send(request, response, b"".join(lines_of({"a": b"poison"}, writer=author(publisher=STRANGER))))


async def altered_manifest(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends the publisher's manifest with another size in it."""
    return await _send(request, response, body.replace(b'"size":5242957', b'"size":5242958'))


async def unsealed_manifest(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends the manifest without its end, as if it were complete."""
    return await _send(request, response, b"".join(body.splitlines(keepends=True)[:-1]))


async def from_the_future(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Lists a version that was never published."""
    listing = json.loads(body)
    listing["versions"].insert(0, listing["versions"][0] | {"version": MOST_VERSION})
    await _send(request, response, json.dumps(listing).encode() + b"\n")
    await relay.leaving.wait()
    return response


async def from_the_past(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Lists the oldest version only."""
    listing = json.loads(body)
    listing["versions"] = listing["versions"][-1:]
    await _send(request, response, json.dumps(listing).encode() + b"\n")
    await relay.leaving.wait()
    return response


async def ghost(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Lists a version that was never published, and keeps announcing that its manifest is about to come."""
    if str(MOST_VERSION) in request.path:
        response = web.StreamResponse()
        return await hush(relay, request, response, body)
    if request.path.endswith("/versions"):
        return await from_the_future(relay, request, response, body)
    return await _send(request, response, body)


async def hush(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends empty lines forever, as a peer without news does."""
    await response.prepare(request)
    while not relay.leaving.is_set():
        await response.write(b"\n")
        await asyncio.sleep(0.01)
    return response


async def dribble(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends all lines, but so slowly that no single wait reaches a time-out."""
    await response.prepare(request)
    for line in body.splitlines(keepends=True):
        await response.write(line)
        await asyncio.sleep(0.4)
        if relay.leaving.is_set():
            break
    return response


async def junk(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends a line that is no listing."""
    return await _send(request, response, b'{"run": "' + RUN.encode() + b'", "versions": 1e999}\n')


SPOILT_BLOCKS = (
    flip,
    cut,
    shorten,
    stall,
    silence,
    drip,
    other_range,
    lying_range,
    error_page,
    refuse,
    redirect,
    endless,
    more,
    compress,
)
"""Faults of block answers; `close_each` is only slow."""

SPOILT_MANIFESTS = (
    flip,
    cut,
    silence,
    stall,
    error_page,
    refuse,
    redirect,
    endless,
    strangers_manifest,
    altered_manifest,
    unsealed_manifest,
    compress,
)

SPOILT_LISTINGS = (junk, from_the_future, from_the_past, endless, flip)
