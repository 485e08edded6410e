"""Presigned URLs are checked before use; errors of a store become Muster's errors."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from protocol.errors import MusterError, NotFound, RateLimited, TooLarge, Unavailable
from protocol.http.object_transfer import BytesRefused, ObjectTransfer, TransferError, UrlRefused, UrlStale
from protocol.identifiers import digest
from protocol.runtime.clock import ManualClock, SystemClock
from protocol.runtime.disk import DiskReserved, DiskSpace
from protocol.wire.uploads import UploadTicket

CONTENT = b"rollouts" * 1000
SHA = digest(hashlib.sha256(CONTENT).digest())
KEY = f"7/0x52908400098527886E0F7030069857D2E4169EE7/{SHA[2:]}"
NAMES = {
    "pool.example": ["93.184.215.14"],
    "store.example": ["93.184.215.15"],
    "inside.example": ["10.0.0.9"],
    "half-inside.example": ["10.0.0.9", "93.184.215.16"],
    "metadata.example": ["169.254.169.254"],
    "mapped-metadata.example": ["::ffff:169.254.169.254"],
    "translated-metadata.example": ["64:ff9b::a9fe:a9fe"],
    "pool.lan": ["10.0.0.1"],
    "half-pool.example": ["10.0.0.1", "93.184.215.14"],
    "rebound.example": ["127.0.0.1"],
    "127.0.0.1": ["127.0.0.1"],
    "10.0.0.9": ["10.0.0.9"],
    "::1": ["::1"],
}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolved(host: str, port: int) -> list[str]:
        assert port in {80, 443, 8000, 9000}
        if host not in NAMES:
            raise Unavailable(f"the host name {host} can't be resolved")
        return NAMES[host]

    monkeypatch.setattr("protocol.http.object_transfer.addresses_of", resolved)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "made"
    path.write_bytes(CONTENT)
    return path


class Store:
    """Records its requests and gives one fixed answer."""

    def __init__(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        self.asked: list[tuple[httpx.Request, bytes]] = []
        self._answer = (status, body, headers)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request, await request.aread()))
        status, body, headers = self._answer
        return httpx.Response(
            status, headers={k.replace("_", "-"): v for k, v in headers.items()}, stream=httpx.ByteStream(body)
        )


def transfer(
    store: Any,
    own: str = "https://pool.example",
    *,
    plain: bool = False,
    private: Sequence[IPv4Network] | None = None,
) -> ObjectTransfer:
    transport = httpx.MockTransport(store)
    return ObjectTransfer(own, clock=SystemClock(), allow_plain_http=plain, private=private, transport=transport)


def ticket(url: str, **headers: str) -> UploadTicket:
    return UploadTicket(key=KEY, already_there=False, url=url, headers=headers)


@pytest.mark.parametrize(
    ("url", "own", "plain"),
    [
        ("https://store.example/x?signature=1", "https://pool.example", False),
        ("https://pool.example/v1/blobs/x", "https://pool.example", False),
        ("http://127.0.0.1:9000/x", "http://127.0.0.1:8000", False),
        ("http://[::1]:9000/x", "http://127.0.0.1:8000", False),
        ("https://inside.example/x", "https://pool.lan", False),
        ("http://10.0.0.9:9000/x", "http://pool.lan", True),
        ("http://store.example/x", "https://pool.example", True),
    ],
)
async def test_a_store_is_public_with_https_or_the_orchestrator_or_in_an_allowed_private_network(
    file: Path, url: str, own: str, plain: bool
) -> None:
    store = Store()
    await transfer(store, own, plain=plain).put(ticket(url), file, size=len(CONTENT))
    ((request, body),) = store.asked
    assert (request.method, body) == ("PUT", CONTENT)
    assert (request.headers["host"], request.headers["content-length"]) == (httpx.URL(url).netloc.decode(), "8000")
    assert "transfer-encoding" not in request.headers


@pytest.mark.parametrize(
    ("url", "own", "plain", "private", "allowed"),
    [
        ("https://inside.example/x", "https://half-pool.example", False, None, False),
        ("https://inside.example/x", "https://pool.lan", False, (), False),
        ("https://inside.example/x", "https://pool.lan", True, ("10.0.1.0/24",), False),
        ("https://half-inside.example/x", "https://pool.example", False, ("10.0.0.9/32",), True),
        ("http://127.0.0.1:9000/x", "https://pool.lan", True, (), False),
        ("http://127.0.0.1:9000/x", "http://rebound.example", True, (), False),
        ("http://127.0.0.1:9000/x", "http://localhost:8000", False, (), True),
        ("http://[::1]:9000/x", "http://127.0.0.1:8000", False, (), True),
        ("https://store.example/x", "https://pool.example", False, (), True),
    ],
)
async def test_a_private_store_needs_an_orchestrator_that_is_private_only_or_a_named_network(
    file: Path, url: str, own: str, plain: bool, private: Sequence[str] | None, allowed: bool
) -> None:
    store = Store()
    named = None if private is None else [IPv4Network(network) for network in private]
    with nullcontext() if allowed else pytest.raises(UrlRefused, match="in a private network"):
        await transfer(store, own, plain=plain, private=named).put(ticket(url), file, size=len(CONTENT))
    assert len(store.asked) == allowed


async def test_the_transfer_connects_to_the_checked_address_with_the_original_host_name(file: Path) -> None:
    store = Store()
    await transfer(store).put(ticket("https://store.example/x?y=1"), file, size=len(CONTENT))
    ((request, _),) = store.asked
    assert str(request.url) == "https://93.184.215.15/x?y=1"
    assert (request.headers["host"], request.extensions["sni_hostname"]) == ("store.example", "store.example")


@pytest.mark.parametrize(
    "url",
    [
        "http://store.example/x",
        "https://inside.example/x",
        "https://half-inside.example/x",
        "https://metadata.example/x",
        "http://127.0.0.1:9000/x",
        "http://pool.example/x",
        "https://user:secret@store.example/x",
        "ftp://store.example/x",
        "https:///x",
        "file:///etc/passwd",
        "not a url",
    ],
)
async def test_a_private_or_unencrypted_url_is_refused_without_a_request(file: Path, url: str) -> None:
    store = Store()
    with pytest.raises(UrlRefused) as caught:
        await transfer(store).put(ticket(url), file, size=len(CONTENT))
    with pytest.raises(UrlRefused):
        await transfer(store).fetch(url, file, sha256=SHA, most_bytes=1)
    assert store.asked == []
    assert "secret" not in caught.value.detail


@pytest.mark.parametrize("host", ["metadata.example", "mapped-metadata.example", "translated-metadata.example"])
async def test_a_metadata_service_is_refused_even_where_private_networks_are_allowed(file: Path, host: str) -> None:
    with pytest.raises(UrlRefused, match="link-local"):
        await transfer(Store(), "http://pool.lan", plain=True).put(ticket(f"http://{host}/x"), file, size=len(CONTENT))


async def test_an_unresolvable_host_is_a_retryable_error(file: Path) -> None:
    with pytest.raises(Unavailable):
        await transfer(Store()).put(ticket("https://nobody.example/x"), file, size=len(CONTENT))


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "elsewhere"},
        {"Authorization": "Bearer x"},
        {"Transfer-Encoding": "chunked"},
        {"Cookie": "a=b"},
        {"Content-Length": "7999"},
        {"Content-Type": "a/b", "content-type": "c/d"},
    ],
)
async def test_headers_in_a_ticket_that_no_store_needs_are_refused(file: Path, headers: dict[str, str]) -> None:
    store = Store()
    with pytest.raises(UrlRefused):
        await transfer(store).put(ticket("https://store.example/x", **headers), file, size=len(CONTENT))
    assert store.asked == []


def problem(status: int, code: str, *, retryable: bool = False) -> Store:
    body = {"status": status, "code": code, "detail": "in words", "retryable": retryable}
    return Store(status, json.dumps(body).encode(), content_type="application/problem+json")


def xml(status: int, code: str) -> Store:
    return Store(status, f"<Error><Code>{code}</Code></Error>".encode())


@pytest.mark.parametrize(
    ("store", "kind", "retryable"),
    [
        (xml(403, "AccessDenied"), UrlStale, True),
        (xml(403, "SignatureDoesNotMatch"), UrlStale, True),
        (problem(403, "url-expired"), UrlStale, True),
        (xml(400, "BadDigest"), BytesRefused, False),
        (problem(422, "other-bytes"), BytesRefused, False),
        (xml(400, "EntityTooLarge"), TooLarge, False),
        (problem(413, "too-large"), TooLarge, False),
        (xml(503, "SlowDown"), RateLimited, True),
        (Store(429), RateLimited, True),
        (problem(409, "being-uploaded", retryable=True), MusterError, True),
        (problem(507, "storage-full", retryable=True), Unavailable, True),
        (xml(404, "NoSuchBucket"), TransferError, True),
        (Store(500), TransferError, True),
        (Store(302, location="https://store.example/y"), TransferError, True),
        (Store(400, b"<Code>" + b"x" * 100_000), TransferError, True),
    ],
)
async def test_a_stores_refusal_is_mapped_to_an_error_class(
    file: Path, store: Store, kind: type[MusterError], retryable: bool
) -> None:
    with pytest.raises(kind) as caught:
        await transfer(store).put(ticket("https://store.example/x"), file, size=len(CONTENT))
    assert caught.value.retryable is retryable
    assert len(store.asked) == 1
    assert len(caught.value.detail) < 200


@pytest.mark.parametrize("status", [200, 201, 204, 412])
async def test_an_object_that_already_exists_counts_as_uploaded(file: Path, status: int) -> None:
    await transfer(Store(status)).put(ticket("https://store.example/x"), file, size=len(CONTENT))


def breaking(error: Exception) -> Callable[[httpx.Request], httpx.Response]:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    return answer


@pytest.mark.parametrize(
    "error",
    [httpx.ConnectError("x"), httpx.ReadTimeout("x"), httpx.WriteError("x"), httpx.RemoteProtocolError("x")],
)
async def test_a_broken_connection_is_retryable(file: Path, error: Exception) -> None:
    with pytest.raises(TransferError, match="did not answer"):
        await transfer(breaking(error)).put(ticket("https://store.example/x"), file, size=len(CONTENT))


async def test_an_endless_answer_of_a_store_times_out(file: Path, clock: ManualClock) -> None:
    asked = asyncio.Event()

    async def never(_: httpx.Request) -> httpx.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    slow = ObjectTransfer("https://pool.example", clock=clock, transport=httpx.MockTransport(never))
    put = asyncio.create_task(slow.put(ticket("https://store.example/x"), file, size=len(CONTENT)))
    await asked.wait()
    await clock.turn(timedelta(minutes=5))
    with pytest.raises(TransferError, match="not done in time"):
        await put


# Reading


async def test_a_fetched_file_is_complete_and_verified(tmp_path: Path) -> None:
    target = tmp_path / "fetched"
    size = await transfer(Store(200, CONTENT)).fetch("https://store.example/x", target, sha256=SHA, most_bytes=8000)
    assert (size, target.read_bytes()) == (8000, CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["fetched"]


async def _cut() -> AsyncIterator[bytes]:
    yield CONTENT[:100]
    raise httpx.ReadError("cut")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Store(200, CONTENT[:-1]), BytesRefused),
        (Store(200, b"X" + CONTENT[1:]), BytesRefused),
        (Store(200, CONTENT + b"x"), TooLarge),
        (Store(404), NotFound),
        (Store(403), UrlStale),
        (Store(206, CONTENT), TransferError),
        (Store(500), TransferError),
        (lambda _: httpx.Response(200, content=_cut()), TransferError),
    ],
    ids=["cut", "other", "longer", "missing", "stale", "a-part", "broken", "breaks-off"],
)
async def test_a_file_that_fails_verification_is_not_kept(tmp_path: Path, answer: Any, kind: type[MusterError]) -> None:
    with pytest.raises(kind):
        await transfer(answer).fetch("https://store.example/x", tmp_path / "fetched", sha256=SHA, most_bytes=8000)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(kind):
        await transfer(answer).verify("https://store.example/x", sha256=SHA, size=8000)


async def test_an_object_is_verified_by_hash_and_size() -> None:
    await transfer(Store(200, CONTENT)).verify("https://store.example/x", sha256=SHA, size=8000)
    with pytest.raises(BytesRefused, match=r"8000 bytes .* 8001"):
        await transfer(Store(200, CONTENT)).verify("https://store.example/x", sha256=SHA, size=8001)


async def test_a_disk_that_fills_during_a_fetch_ends_it_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [1 << 30]

    async def store(request: httpx.Request) -> httpx.Response:
        free[0] = 1000  # as if another program had filled the disk
        return httpx.Response(200, stream=httpx.ByteStream(CONTENT))

    monkeypatch.setattr("protocol.runtime.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=free[0]))
    space = DiskSpace(tmp_path, reserve=1000)
    with pytest.raises(DiskReserved), space.claim(len(CONTENT)) as claim:
        await transfer(store).fetch(
            "https://store.example/x", tmp_path / "file", sha256=SHA, most_bytes=len(CONTENT), claim=claim
        )
    assert list(tmp_path.iterdir()) == []
