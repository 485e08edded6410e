"""A hostile relay: passes on an origin's answers, with one kind of fault."""

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

Fault = Callable[["HostileRelay", web.Request, web.StreamResponse, bytes], Awaitable[web.StreamResponse]]
"""Function that sends a faulty answer.

It gets the relay, the request, a response with the headers of the origin's answer, and the body of that answer.
"""


class HostileRelay:
    """Passes on an origin's answers, except for requests whose path contains `where`.

    Args:
        upstream: URL of the origin.
        where: Part of the path of requests with a faulty answer, such as `/files/`, `/manifest` or `/versions`.
        fault: Function that sends the faulty answer.
    """

    def __init__(self, upstream: str, where: str, fault: Fault) -> None:
        self.faults = 0
        """Number of faulty answers so far."""
        self.trapped = 0
        """Number of requests to the address that the fault `redirect` names."""
        self.url = ""
        self._upstream = upstream
        self._where = where
        self._fault = fault
        self.leaving = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/trap", self._trap)
        app.router.add_get("/{path:.*}", self._answer)
        # aiohttp cancels the handler when its reader closes the connection. Otherwise the handlers of silent answers
        # would accumulate.
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
            is_faulty = self._where in request.path
            if "follow" in request.query or (request.path.endswith("/manifest") and not is_faulty):
                return await self._stream(request, answer, is_faulty=is_faulty)
            body = await answer.read()
            kept = {name: answer.headers[name] for name in ("Content-Range", "Content-Type") if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=kept)
            if is_faulty:
                self.faults += 1
                return await self._fault(self, request, response, body)
            response.content_length = len(body)
            await response.prepare(request)
            await response.write(body)
            return response

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, *, is_faulty: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for line in answer.content:
            if is_faulty and line.strip():
                self.faults += 1
                return await self._fault(self, request, response, line)
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
    """Flips one bit in the middle of the answer."""
    at = len(body) // 2
    return await _send(request, response, body[:at] + bytes((body[at] ^ 1,)) + body[at + 1 :])


async def cut(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Closes the connection after half of the answer."""
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    assert request.transport is not None
    request.transport.abort()
    return response


async def shorten(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends one byte too few, with a `Content-Length` that matches."""
    return await _send(request, response, body[:-1])


async def stall(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends half of the answer, and then keeps the connection open without another byte."""
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    await relay.leaving.wait()
    return response


async def silence(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Keeps the connection open without any answer."""
    await relay.leaving.wait()
    return response


async def byte_by_byte(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends one byte every 50 ms, so that a time-out between two bytes never ends the answer."""
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
    """Names another range than the requested one in `Content-Range`."""
    response.headers["Content-Range"] = f"bytes 1-{len(body)}/*"
    return await _send(request, response, body)


async def bytes_of_another_range(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Names the requested range in `Content-Range`, but sends its bytes in another order."""
    return await _send(request, response, body[1:] + body[:1])


async def error_page(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends the HTML page of an error, but with status 200."""
    return web.Response(text="<html>503 Service Unavailable</html>", content_type="text/html")


async def refuse(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Answers with status 503."""
    return web.Response(status=503)


async def redirect(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Redirects to another address, at which the relay counts requests."""
    return web.Response(status=302, headers={"Location": f"{relay.url}/trap"})


async def endless_bytes(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends an endless stream of bytes without a line end."""
    if not response.prepared:
        await response.prepare(request)
    while not relay.leaving.is_set():
        await response.write(b"x" * BLOCK)
    return response


async def too_many_bytes(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends more bytes than were requested."""
    return await _send(request, response, body + b"more")


async def close_each(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends a correct answer, and then closes the connection."""
    response.force_close()
    return await _send(request, response, body)


async def compress(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Declares that the answer is compressed.

    A client that unpacked such an answer could get any number of bytes.
    """
    response.headers["Content-Encoding"] = "gzip"
    return await _send(request, response, body)


async def manifest_of_another_publisher(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends a valid manifest that another publisher signed."""
    return await _send(request, response, b"".join(lines_of({"a": b"poison"}, writer=author(publisher=STRANGER))))


async def altered_manifest(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends the publisher's manifest with an altered size of a file."""
    return await _send(request, response, body.replace(b'"size":5242957', b'"size":5242958'))


async def unsealed_manifest(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends the manifest without its last line, the seal, and ends the answer."""
    return await _send(request, response, b"".join(body.splitlines(keepends=True)[:-1]))


async def future_version(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Adds a version to the listing that was never published."""
    listing = json.loads(body)
    listing["versions"].insert(0, listing["versions"][0] | {"version": MOST_VERSION})
    await _send(request, response, json.dumps(listing).encode() + b"\n")
    await relay.leaving.wait()
    return response


async def oldest_version_only(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Removes all versions but the oldest one from the listing."""
    listing = json.loads(body)
    listing["versions"] = listing["versions"][-1:]
    await _send(request, response, json.dumps(listing).encode() + b"\n")
    await relay.leaving.wait()
    return response


async def unpublished_version(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Lists a version that was never published, and sends only keep-alive lines as its manifest."""
    if str(MOST_VERSION) in request.path:
        response = web.StreamResponse()
        return await keep_alives_only(relay, request, response, body)
    if request.path.endswith("/versions"):
        return await future_version(relay, request, response, body)
    return await _send(request, response, body)


async def keep_alives_only(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends only empty lines, as a peer does that has nothing new."""
    await response.prepare(request)
    while not relay.leaving.is_set():
        await response.write(b"\n")
        await asyncio.sleep(0.01)
    return response


async def slow_lines(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends one line every 0.4 s, so that no time-out between two lines ends the answer."""
    await response.prepare(request)
    for line in body.splitlines(keepends=True):
        await response.write(line)
        await asyncio.sleep(0.4)
        if relay.leaving.is_set():
            break
    return response


async def invalid_listing(
    relay: HostileRelay, request: web.Request, response: web.StreamResponse, body: bytes
) -> web.StreamResponse:
    """Sends a line that is not a valid listing."""
    return await _send(request, response, b'{"run": "' + RUN.encode() + b'", "versions": 1e999}\n')


BLOCK_FAULTS = (
    flip,
    cut,
    shorten,
    stall,
    silence,
    byte_by_byte,
    other_range,
    bytes_of_another_range,
    error_page,
    refuse,
    redirect,
    endless_bytes,
    too_many_bytes,
    compress,
)
"""Faults of answers with blocks, except `close_each`, which only makes a transfer slow."""

MANIFEST_FAULTS = (
    flip,
    cut,
    silence,
    stall,
    error_page,
    refuse,
    redirect,
    endless_bytes,
    manifest_of_another_publisher,
    altered_manifest,
    unsealed_manifest,
    compress,
)

LISTING_FAULTS = (invalid_listing, future_version, oldest_version_only, endless_bytes, flip)
