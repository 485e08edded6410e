"""Files in an S3-compatible store: a real one, and one that gives broken answers."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import botocore.auth
import httpx
import pytest

from orchestrator.storage import ObjectMissing, StorageUnavailable
from orchestrator.storage.s3 import Bucket, S3Store
from protocol.errors import InvalidInput
from protocol.http.object_transfer import BytesRefused, ObjectTransfer, UrlStale
from protocol.identifiers import Digest, digest
from protocol.identity.keys import Key
from protocol.runtime.clock import SystemClock
from protocol.wire.uploads import ObjectKey, ObjectLink, UploadTicket
from tests.kit.memory_ledger import POOL, PoolUnderTest
from tests.kit.orchestrator import MakePool
from tests.orchestrator.storage.conftest import Swift

CONTENT = b"rollouts" * 1000
OWNER = Key.generate().address
LIFE = timedelta(minutes=5)
MakeStore = Callable[..., S3Store]


def sha(content: bytes) -> Digest:
    return digest(hashlib.sha256(content).digest())


def key_of(content: bytes) -> ObjectKey:
    return ObjectKey(pool_id=POOL, owner=OWNER, sha256=sha(content))


@pytest.fixture
async def make_store(swift: Swift) -> AsyncIterator[MakeStore]:
    made: list[S3Store] = []

    def make(**changes: Any) -> S3Store:
        terms = {
            "name": swift.bucket,
            "endpoint": swift.endpoint,
            "access_key": swift.access_key,
            "secret_key": swift.secret_key,
        }
        made.append(S3Store(Bucket(**{**terms, **changes}), clock=SystemClock()))
        return made[-1]

    yield make
    for store in made:
        await store.aclose()


@pytest.fixture
def store(make_store: MakeStore) -> S3Store:
    return make_store()


async def put(url: str, content: bytes, headers: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.put(url, content=content, headers=headers)


async def get(url: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(url, headers=headers)


async def test_a_file_is_uploaded_to_the_bucket_and_downloaded_again(make_pool: MakePool, swift: Swift) -> None:
    pool: PoolUnderTest = make_pool(
        storage_bucket=swift.bucket,
        storage_endpoint=swift.endpoint,
        storage_access_key=swift.access_key,
        storage_secret_key=swift.secret_key,
    )
    node = await pool.member()
    asked = {"kind": "file", "sha256": sha(CONTENT), "size": len(CONTENT)}

    async def ticket() -> UploadTicket:
        answer = await pool.send(node, "/v1/uploads", asked)
        assert answer.status_code == 200, answer.text
        return UploadTicket.model_validate_json(answer.content)

    given = await ticket()
    assert given.url.startswith(swift.endpoint)
    assert (await put(given.url, CONTENT, given.headers)).status_code == 200
    assert (await ticket()).already_there
    answer = await pool.send(node, f"/v1/objects?key={given.key}", None, method="GET")
    link = ObjectLink.model_validate_json(answer.content)
    assert (link.size, (await get(link.url)).content) == (len(CONTENT), CONTENT)
    async with pool.http() as http:
        # the bytes do not pass through the orchestrator
        assert (await http.get(f"/v1/blobs/{given.key}")).status_code == 404
    await pool.dependencies.objects.aclose()


async def test_a_stored_object_can_be_looked_up_opened_and_read_in_part(store: S3Store) -> None:
    content = b"looked up" * 1000
    key = key_of(content)
    assert await store.head(key) is None
    with pytest.raises(ObjectMissing):
        async with store.open(key):
            pass
    given = await store.presign_put(key, size=len(content), content_type="text/plain", expires=LIFE)
    assert (await put(given.url, content, given.headers)).status_code == 200
    facts = await store.head(key)
    assert facts is not None
    assert facts.size == len(content)
    async with store.open(key) as pieces:
        assert b"".join([piece async for piece in pieces]) == content
    url = await store.presign_get(key, expires=LIFE)
    part = await get(url, range="bytes=7-9")
    assert (part.status_code, part.content) == (206, content[7:10])
    assert part.headers["content-disposition"] == "attachment"
    await store.check()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda url, content, headers: (url, b"X" + content[1:], headers), 400),
        (lambda url, content, headers: (url, content[:-1], headers | {"Content-Length": str(len(content) - 1)}), 403),
        (lambda url, content, headers: (url, content + b"x", headers | {"Content-Length": str(len(content) + 1)}), 403),
        (lambda url, content, headers: (url, content, headers | {"Content-Type": "text/html"}), 403),
        (lambda url, content, headers: (url, content, headers | {"x-amz-checksum-sha256": "A" * 43 + "="}), 403),
        (lambda url, content, headers: (url, content, {"Content-Length": str(len(content))}), 403),
        (lambda url, content, headers: (url.replace(OWNER, Key.generate().address), content, headers), 403),
        (lambda url, content, headers: (url.replace("Expires=300", "Expires=3000"), content, headers), 403),
    ],
    ids=["other-bytes", "cut", "longer", "another-type", "another-hash", "no-headers", "another-node", "longer-life"],
)
async def test_an_upload_that_differs_from_its_announcement_is_refused(
    store: S3Store, change: Any, status: int
) -> None:
    content = b"announced" * 100
    key = key_of(content)
    given = await store.presign_put(key, size=len(content), content_type="text/plain", expires=LIFE)
    url, sent, headers = change(given.url, content, dict(given.headers))
    assert (await put(url, sent, headers)).status_code == status
    assert await store.head(key) is None


async def test_the_nodes_client_uploads_to_and_reads_from_a_real_store(store: S3Store, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    key, made = key_of(content), tmp_path / "made"
    made.write_bytes(content)
    given = await store.presign_put(key, size=len(content), content_type="text/plain", expires=LIFE)
    ticket = UploadTicket(key=str(key), already_there=False, url=given.url, headers=dict(given.headers))
    transfer = ObjectTransfer("http://127.0.0.1:1", clock=SystemClock())
    other = tmp_path / "other"
    other.write_bytes(b"X" + content[1:])
    with pytest.raises(BytesRefused):
        await transfer.put(ticket, other, size=len(content))
    forged = ticket.model_copy(update={"url": ticket.url.replace(OWNER, Key.generate().address)})
    with pytest.raises(UrlStale):
        await transfer.put(forged, made, size=len(content))
    for _ in range(2):  # the second upload finds the object
        await transfer.put(ticket, made, size=len(content))
    url = await store.presign_get(key, expires=LIFE)
    fetched = tmp_path / "fetched"
    assert await transfer.fetch(url, fetched, sha256=key.sha256, most_bytes=len(content)) == len(content)
    assert fetched.read_bytes() == content
    await transfer.aclose()


async def test_an_existing_object_is_not_overwritten(store: S3Store) -> None:
    content = b"once" * 100
    given = await store.presign_put(key_of(content), size=400, content_type="text/plain", expires=LIFE)
    assert [(await put(given.url, content, given.headers)).status_code for _ in range(2)] == [200, 412]


async def test_a_store_without_checksum_support_is_asked_for_fewer_checks(make_store: MakeStore) -> None:
    content = b"elsewhere" * 100
    store = make_store(checks_sha256=False, checks_absence=False)
    given = await store.presign_put(key_of(content), size=900, content_type="text/plain", expires=LIFE)
    assert given.headers == {"Content-Type": "text/plain", "Content-Length": "900"}
    assert [(await put(given.url, content, given.headers)).status_code for _ in range(2)] == [200, 200]
    assert (await put(given.url, content + b"x", dict(given.headers) | {"Content-Length": "901"})).status_code == 403


async def test_a_url_that_has_expired_is_refused(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"late" * 100
    real = botocore.auth.get_current_datetime
    with monkeypatch.context() as patched:
        patched.setattr(botocore.auth, "get_current_datetime", lambda: real() - timedelta(minutes=6))
        given = await store.presign_put(key_of(content), size=400, content_type="text/plain", expires=LIFE)
    assert (await put(given.url, content, given.headers)).status_code == 403


async def test_wrong_credentials_and_buckets_are_reported_without_the_secret(make_store: MakeStore) -> None:
    for changes, words in (
        ({"secret_key": "wrong-and-secret"}, "refuses the orchestrator's credentials"),
        ({"access_key": "test:nobody"}, "refuses the orchestrator's credentials"),
        ({"name": "another"}, "there is no bucket another"),
    ):
        with pytest.raises(StorageUnavailable, match=words) as caught:
            await make_store(**changes).check()
        assert caught.value.retryable
        assert "wrong-and-secret" not in f"{caught.value.detail} {caught.value.hint}"


@asynccontextmanager
async def broken(answer: bytes | None, asked: list[str] | None = None) -> AsyncIterator[str]:
    """Runs an HTTP server that gives one answer, or none, to every request; records the methods."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if asked is not None:
            asked.append(request.split()[0].decode())
        if answer is not None:
            writer.write(answer)
            await writer.drain()
            writer.close()
        else:
            await reader.read()  # until the client gives up
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "refuses the orchestrator's credentials"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "answered 500"),
        (b"HTTP/1.1 301 Gone\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "answered 301|not answer"),
        (b"not http at all\r\n\r\n", "does not answer"),
        (None, "does not answer"),
    ],
    ids=["403", "500", "redirect", "nonsense", "never"],
)
async def test_an_invalid_answer_is_a_retryable_storage_error(
    answer: bytes | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.storage.s3._ATTEMPTS", 1)
    async with broken(answer) as endpoint:
        patience = timedelta(milliseconds=200) if answer is None else timedelta(seconds=60)
        bucket = Bucket(name="pool", endpoint=endpoint, access_key="a", secret_key="s", timeout=patience)
        store = S3Store(bucket, clock=SystemClock())
        with pytest.raises(StorageUnavailable, match=words) as caught:
            await store.head(key_of(CONTENT))
        assert caught.value.retryable
        await store.aclose()


async def test_an_answer_without_an_object_size_is_a_storage_error() -> None:
    async with broken(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") as endpoint:
        store = S3Store(Bucket(name="pool", endpoint=endpoint, access_key="a", secret_key="s"), clock=SystemClock())
        with pytest.raises(StorageUnavailable, match="does not report the size") as caught:
            await store.head(key_of(CONTENT))
        assert caught.value.retryable
        await store.aclose()


async def test_a_store_that_reports_clock_skew_hints_at_the_clock() -> None:
    refusal = b"<Error><Code>RequestTimeTooSkewed</Code></Error>"
    answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%s" % (len(refusal), refusal)
    async with broken(answer) as endpoint:
        store = S3Store(Bucket(name="pool", endpoint=endpoint, access_key="a", secret_key="s"), clock=SystemClock())
        with pytest.raises(StorageUnavailable, match="RequestTimeTooSkewed") as caught:
            async with store.open(key_of(CONTENT)):
                pass
        assert "clock" in (caught.value.hint or "")
        await store.aclose()


async def test_an_object_stored_with_another_size_gives_no_upload_ticket(make_pool: MakePool) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 7999\r\n\r\n"
    async with broken(head) as endpoint:
        pool = make_pool(storage_bucket="b", storage_endpoint=endpoint, storage_access_key="a", storage_secret_key="s")
        answer = await pool.send(
            await pool.member(), "/v1/uploads", {"kind": "file", "sha256": sha(CONTENT), "size": 8000}
        )
        assert (answer.status_code, answer.json()["code"]) == (409, "other-object")
        await pool.dependencies.objects.aclose()


async def test_a_failing_store_is_retried_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("orchestrator.storage.s3._ATTEMPTS", 2)
    async with broken(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", asked) as endpoint:
        store = S3Store(Bucket(name="pool", endpoint=endpoint, access_key="a", secret_key="s"), clock=SystemClock())
        with pytest.raises(StorageUnavailable):
            await store.head(key_of(CONTENT))
        assert asked == ["HEAD"] * 2
        await store.aclose()


async def test_a_pool_whose_store_is_down_gives_a_retryable_error_instead_of_a_ticket(make_pool: MakePool) -> None:
    async with broken(b"HTTP/1.1 503 Down\r\nContent-Length: 0\r\n\r\n") as endpoint:
        pool = make_pool(
            storage_bucket="b", storage_endpoint=endpoint, storage_access_key="a", storage_secret_key="hunter2"
        )
        answer = await pool.send(
            await pool.member(), "/v1/uploads", {"kind": "file", "sha256": sha(CONTENT), "size": 1}
        )
        assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (
            503,
            "storage-unavailable",
            True,
        )
        assert "hunter2" not in answer.text
        await pool.dependencies.objects.aclose()


@pytest.mark.parametrize(
    "settings",
    [
        {"storage_bucket": "b", "storage_access_key": "a"},
        {"storage_bucket": "b", "storage_endpoint": "http://store.example"},
        {"storage_bucket": "b", "storage_endpoint": "ftp://store.example"},
    ],
)
def test_invalid_store_settings_are_refused_at_startup(make_pool: MakePool, settings: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        make_pool(**settings)


async def test_objects_are_listed_in_pages_and_deleted(store: S3Store) -> None:
    nodes = sorted(Key.generate().address for _ in range(2))
    pool_id = POOL + 1  # the bucket contains nothing else
    contents = [b"listed %d" % number for number in range(3)]
    keys = [ObjectKey(pool_id=pool_id, owner=node, sha256=sha(content)) for node in nodes for content in contents]
    audit = ObjectKey(pool_id=pool_id, owner=OWNER, sha256=sha(contents[0]), audit=True)
    for key, content in zip([*keys, audit], [*contents, *contents, contents[0]], strict=True):
        given = await store.presign_put(key, size=len(content), content_type="text/plain", expires=LIFE)
        assert (await put(given.url, content, given.headers)).status_code == 200
    found, cursor, pages = [], "", 0
    while pages < 20:
        page = await store.page(pool_id, after=cursor, limit=2)
        found += [each.key for each in page.objects]
        assert {each.size for each in page.objects} <= {len(content) for content in contents}
        assert all(abs(SystemClock().now() - each.modified) < LIFE for each in page.objects)
        pages, cursor = pages + 1, page.following
        if not cursor:
            break
    assert found == sorted(keys, key=str), "and no audit file"
    assert pages <= 4
    audits = await store.page(pool_id, audits=True, after="", limit=2)
    assert [(each.key, each.size) for each in audits.objects] == [(audit, len(contents[0]))]
    await store.delete(keys[0])
    await store.delete(keys[0])  # deleting again is no error
    assert await store.head(keys[0]) is None
    assert await store.head(audit) is not None
