"""Uploads files to an object store and downloads them, through presigned URLs.

The pool's orchestrator issues the URLs; the client does not trust them. A URL must be https unless it has the same
origin as the orchestrator's URL. It must not lead into a private network, unless the orchestrator itself is in one, the
settings allow plain http, or they name the network. Redirects are refused. Downloads are hashed while they arrive, and
kept only if size and hash are the expected ones. `verify` hashes a file without storing it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import TypeVar

import httpx

from protocol.errors import MusterError, TooLarge
from protocol.http.object_store_errors import BytesRefused, TransferError, UrlRefused, UrlStale, refusal
from protocol.http.trust import authorities
from protocol.http.url_safety import addresses_of, directed_to, is_in, is_link_local, is_loopback, is_public
from protocol.identifiers import Digest
from protocol.runtime.clock import Clock
from protocol.runtime.disk import DiskClaim
from protocol.runtime.retry import Deadline, DeadlinePassed
from protocol.runtime.threads import run_in_thread
from protocol.wire.uploads import UploadTicket

__all__ = ["BytesRefused", "ObjectTransfer", "TransferError", "UrlRefused", "UrlStale"]

T = TypeVar("T")

SILENCE_TIMEOUT = timedelta(seconds=60)
"""Default time limit for the store's next bytes."""

SHORTEST = timedelta(minutes=5)
"""Minimum time limit of a whole transfer."""
LEAST_RATE = 32 * 1024
"""Transfer rate in bytes per second that sets the time limit of large files: size / `LEAST_RATE`."""

_PIECE = 1 << 20
"""Size of the pieces in which files are read and written, in bytes."""
_MOST_ANSWER = 64 * 1024
"""Maximum number of bytes that are read from an error response."""
_HEADERS = re.compile(r"content-(type|length|md5)|if-none-match|x-(amz|goog)-[a-z0-9-]{1,48}")
"""Names of the headers that an upload ticket may contain."""


class ObjectTransfer:
    """Uploads and downloads objects of one pool.

    Args:
        orchestrator_url: URL of the pool's orchestrator. URLs of the same origin are allowed without further checks.
        clock: Clock that measures time limits.
        allow_plain_http: Whether plain http URLs are allowed; and URLs into private networks, if `private` is None.
        private: The only private networks in which stores may be. None: stores may be in private networks if all
            addresses of the orchestrator are private. With networks, even if there are none in the list, a store may
            also be on loopback if the orchestrator's URL names loopback; its name is not resolved for that.
        timeout: Time limit for the store's next bytes.
        transport: Transport that replaces the network when tests run the orchestrator in the same process.
    """

    def __init__(
        self,
        orchestrator_url: str,
        *,
        clock: Clock,
        allow_plain_http: bool = False,
        private: Sequence[IPv4Network] | None = None,
        timeout: timedelta = SILENCE_TIMEOUT,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._own = httpx.URL(orchestrator_url)
        self._clock = clock
        self._allow_plain_http = allow_plain_http
        self._private = private
        self._http = httpx.AsyncClient(
            transport=transport,
            verify=authorities(),
            follow_redirects=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "muster"},
            timeout=httpx.Timeout(timeout.total_seconds(), connect=min(10.0, timeout.total_seconds())),
        )

    async def put(self, ticket: UploadTicket, path: Path, *, size: int) -> None:
        """Uploads a file; returns when the store has it.

        If the object exists already, the upload succeeds too.

        Raises:
            UrlStale: The URL has expired; request another ticket.
            BytesRefused: The store received other bytes than announced.
            TooLarge: The file is larger than the store accepts.
            UrlRefused: The ticket's URL or headers are not allowed.
            RateLimited, TransferError: The store can't accept the file now.
        """
        headers = _checked_headers(ticket.headers, size)
        await self._in_time(self._put(ticket.url, headers, path), size=size, what="sending a file to the store")

    async def fetch(
        self, url: str, target: Path, *, sha256: Digest, most_bytes: int, claim: DiskClaim | None = None
    ) -> int:
        """Downloads an object into a file; returns its size in bytes.

        The file appears only when the download is complete and verified.

        Args:
            url: Presigned URL.
            target: Path of the new file. Its directory must exist.
            sha256: Expected SHA-256.
            most_bytes: Size limit of the object, in bytes.
            claim: Reserved disk space for the file, or None. With it, the free space is checked before each piece.

        Raises:
            DiskReserved: The disk was filled during the download.
            UrlStale: The URL has expired; request another one.
            BytesRefused: The store sent bytes with another SHA-256.
            TooLarge: The object is larger than `most_bytes`.
            NotFound: The store does not have the object.
            UrlRefused: The URL is not allowed.
            RateLimited, TransferError: The store can't send the object now.
        """
        work = self._fetch(url, target, sha256=sha256, most_bytes=most_bytes, claim=claim)
        return await self._in_time(work, size=most_bytes, what="reading a file from the store")

    async def verify(self, url: str, *, sha256: Digest, size: int) -> None:
        """Reads an object without storing it, and checks its hash and size.

        Args:
            url: Presigned URL.
            sha256: Expected SHA-256.
            size: Expected size in bytes.

        Raises:
            BytesRefused: The store sent bytes with another SHA-256, or fewer than `size`.
            TooLarge: The object is larger than `size`.
            UrlStale, NotFound, UrlRefused, RateLimited, TransferError: The same causes as for `fetch`.
        """
        await self._in_time(
            self._verify(url, sha256=sha256, size=size), size=size, what="reading a file from the store"
        )

    async def aclose(self) -> None:
        """Closes the client's connections."""
        await self._http.aclose()

    async def _in_time(self, work: Awaitable[T], *, size: int, what: str) -> T:
        longest = max(SHORTEST, timedelta(seconds=size / LEAST_RATE))
        try:
            return await Deadline.after(longest, clock=self._clock).bound(work, what=what)
        except DeadlinePassed as error:
            raise TransferError(error.detail) from error

    async def _put(self, url: str, headers: Mapping[str, str], path: Path) -> None:
        async with self._answer("PUT", url, headers, content=_pieces(path)) as response:
            # 412 means that the object exists, probably from an earlier PUT of ours whose answer was lost.
            if not response.is_success and response.status_code != 412:
                raise await _refused(response)

    async def _fetch(self, url: str, target: Path, *, sha256: Digest, most_bytes: int, claim: DiskClaim | None) -> int:
        partial = target.with_name(f".{target.name}.part")
        size = 0
        try:
            with partial.open("wb") as file:
                async with aclosing(self._read(url, sha256=sha256, most_bytes=most_bytes)) as pieces:
                    async for piece in pieces:
                        size += len(piece)
                        with nullcontext() if claim is None else claim.writing(len(piece)):
                            await run_in_thread(file.write, piece)
                file.flush()
                await run_in_thread(os.fsync, file.fileno())  # in a thread: a slow disk must not block the loop
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        return size

    async def _verify(self, url: str, *, sha256: Digest, size: int) -> None:
        async with aclosing(self._read(url, sha256=sha256, most_bytes=size)) as pieces:
            found = sum([len(piece) async for piece in pieces])
        if found != size:
            raise BytesRefused(f"the store sent {found} bytes of {sha256} instead of {size}")

    async def _read(self, url: str, *, sha256: Digest, most_bytes: int) -> AsyncGenerator[bytes]:
        """Yields an object's bytes in pieces.

        After the last piece it raises `BytesRefused` if the hash differs.
        """
        digest, size = hashlib.sha256(), 0
        async with self._answer("GET", url, {}) as response:
            if response.status_code != 200:
                raise await _refused(response)
            async for piece in response.aiter_raw(_PIECE):
                size += len(piece)
                if size > most_bytes:
                    raise TooLarge(f"the object is larger than {most_bytes} bytes")
                digest.update(piece)
                yield piece
        if digest.digest() != bytes.fromhex(sha256[2:]):
            raise BytesRefused(f"the store sent bytes with the SHA-256 0x{digest.hexdigest()}, not {sha256}")

    @asynccontextmanager
    async def _answer(
        self, method: str, url: str, headers: Mapping[str, str], *, content: AsyncIterator[bytes] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Sends one request; converts every failure of the connection into `TransferError`."""
        parsed, address = await self._destination(url)
        store = parsed.netloc.decode("ascii")
        request = self._http.build_request(
            method,
            parsed,
            content=content,
            headers={**headers, "Host": store},
        )
        if address is not None:
            request = directed_to(request, address)
        try:
            response = await self._http.send(request, stream=True)
            try:
                yield response
            finally:
                await response.aclose()
        except (httpx.TransportError, httpx.StreamError) as error:
            raise TransferError(f"the store {store} did not answer: {type(error).__name__}") from error

    async def _destination(self, url: str) -> tuple[httpx.URL, str | None]:
        """Returns the parsed URL and the IP address to connect to.

        The address is None for a URL of the orchestrator's origin, which needs no check. The name must not be resolved
        again, because it may then lead to another address.
        """
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise UrlRefused("the store's URL is malformed") from error
        if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.userinfo or parsed.fragment:
            raise UrlRefused(
                f"the store's URL {parsed.scheme}://{parsed.host} must be http or https, with a host, "
                "and without user info and fragment"
            )
        if _origin(parsed) == _origin(self._own):
            return parsed, None
        found = await addresses_of(parsed.host, parsed.port or _PORTS[parsed.scheme])
        private = [one for one in found if not is_public(one)]
        if any(is_link_local(one) for one in found):
            raise UrlRefused(
                f"the store's host {parsed.host} is link-local", hint="a link-local address can't be a store"
            )
        for each in private:
            if not await self._may_be_private(each):
                setting = "allow_plain_http" if self._private is None else "allow_networks"
                raise UrlRefused(
                    f"the store's host {parsed.host} has the address {each} in a private network",
                    hint=f"ask the pool's owner; {setting} in the settings also allows stores in private networks",
                )
        if parsed.scheme == "http" and not self._allow_plain_http and not all(map(is_loopback, found)):
            raise UrlRefused(
                f"plain http to {parsed.host} would let others on the network path read files",
                hint="ask the pool's owner to use https; or allow plain http inside an encrypted network",
            )
        return parsed, found[0]

    async def _may_be_private(self, address: str) -> bool:
        """Returns whether a store may have this private address.

        The orchestrator's name must not lead to any public address: its owner could add a private one to it.
        """
        if self._private is not None:
            return is_in(address, self._private) or (is_loopback(address) and is_loopback(self._own.host))
        if self._allow_plain_http:
            return True
        own = await addresses_of(self._own.host, self._own.port or _PORTS[self._own.scheme])
        return not any(is_public(one) for one in own)


_PORTS = {"http": 80, "https": 443}


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme, 0)


def _checked_headers(given: Mapping[str, str], size: int) -> dict[str, str]:
    """Returns the ticket's headers with the content length.

    Headers that no store needs are refused, because the issuer of the ticket is not trusted.
    """
    headers = {name.lower(): value for name, value in given.items()}
    strange = [name for name in headers if not _HEADERS.fullmatch(name)]
    if strange or len(headers) != len(given):
        raise UrlRefused(
            f"the ticket contains headers that no store needs: {', '.join(strange) or 'one of them twice'}"
        )
    if headers.setdefault("content-length", str(size)) != str(size):
        raise UrlRefused(f"the ticket is for {headers['content-length'][:20]} bytes, but the file has {size}")
    return headers


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    file = await run_in_thread(path.open, "rb")
    try:
        while piece := await run_in_thread(file.read, _PIECE):
            yield piece
    finally:
        file.close()


async def _refused(response: httpx.Response) -> MusterError:
    """Returns the exception for an error response, from the beginning of its body."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > _MOST_ANSWER:
            break
    return refusal(response.status_code, response.headers.get("content-type", ""), bytes(body[:_MOST_ANSWER]))
