"""Files in the local store: permissions, validation, quotas, and the state after errors."""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx
import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from orchestrator.chain.interface import MemberEvent
from orchestrator.storage import local
from protocol.clients.node import NodeClient
from protocol.errors import NotFound
from protocol.identifiers import digest
from protocol.identity.keys import Key
from protocol.runtime.clock import ManualClock
from protocol.wire.uploads import LARGEST_OBJECT, ObjectKey, ObjectLink, UploadKind, UploadRequest, UploadTicket
from tests.kit.memory_ledger import MANAGER, POOL, PoolUnderTest
from tests.kit.orchestrator import MakePool

CONTENT = b"rollouts" * 1000
SHA = digest(hashlib.sha256(CONTENT).digest())
ASKED: dict[str, Any] = {"kind": "file", "sha256": SHA, "size": len(CONTENT)}


@pytest.fixture
async def node(pool: PoolUnderTest) -> Key:
    return await pool.member()


async def ask(pool: PoolUnderTest, key: Key, **changes: Any) -> httpx.Response:
    return await pool.send(key, "/v1/uploads", ASKED | changes)


async def ticket(pool: PoolUnderTest, key: Key, **changes: Any) -> UploadTicket:
    answer = await ask(pool, key, **changes)
    assert answer.status_code == 200, answer.text
    return UploadTicket.model_validate_json(answer.content)


async def put(pool: PoolUnderTest, given: UploadTicket, content: Any = CONTENT, **more: Any) -> httpx.Response:
    target = httpx.URL(given.url).raw_path.decode()
    async with pool.http() as http:
        return await http.put(target, content=content, headers=given.headers | more)


async def upload(pool: PoolUnderTest, key: Key, **changes: Any) -> UploadTicket:
    given = await ticket(pool, key, **changes)
    assert (await put(pool, given)).status_code == 201
    return given


async def link(pool: PoolUnderTest, reader: Key, key: str) -> ObjectLink:
    answer = await pool.send(reader, f"/v1/objects?key={key}", None, method="GET")
    assert answer.status_code == 200, answer.text
    return ObjectLink.model_validate_json(answer.content)


async def read(pool: PoolUnderTest, url: str, method: str = "GET", **headers: str) -> httpx.Response:
    async with pool.http() as http:
        return await http.request(method, httpx.URL(url).raw_path.decode(), headers=headers)


def stored(tmp_path: Path) -> list[str]:
    """Returns everything in the store except its secret."""
    root = tmp_path / "objects"
    return sorted(path.name for path in root.rglob("*") if path.is_file() and path.name != "url.secret")


# Successful uploads


async def test_a_file_is_stored_under_its_nodes_prefix_and_can_be_downloaded(
    pool: PoolUnderTest, node: Key, tmp_path: Path
) -> None:
    given = await upload(pool, node)
    assert given.key == f"{POOL}/{node.address}/{SHA[2:]}"
    assert given.url.startswith(f"http://127.0.0.1:8002/v1/blobs/{given.key}?")
    found = await link(pool, node, given.key)
    assert found.size == len(CONTENT)
    answer = await read(pool, found.url)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert stored(tmp_path) == [SHA[2:]]


async def test_a_repeated_upload_costs_no_quota_and_is_not_needed(make_pool: MakePool) -> None:
    pool = make_pool(uploads_per_hour=1)
    node = await pool.member()
    first, second = await ticket(pool, node), await ticket(pool, node)  # a second ticket while the first is open
    assert (await put(pool, first)).status_code == 201
    assert (await put(pool, second)).status_code == 201
    again = await ticket(pool, node)
    assert (again.already_there, again.url) == (True, "")


async def test_equal_bytes_of_two_nodes_are_stored_as_two_objects(pool: PoolUnderTest, node: Key) -> None:
    other = await pool.member()
    given = await upload(pool, node)
    theirs = await ticket(pool, other)
    assert not theirs.already_there
    assert theirs.key != given.key


async def test_an_object_can_be_read_in_part_and_by_head(pool: PoolUnderTest, node: Key) -> None:
    given = await upload(pool, node)
    url = (await link(pool, node, given.key)).url
    part = await read(pool, url, range="bytes=8-15")
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"rollouts", "bytes 8-15/8000")
    assert (await read(pool, url, range="bytes=9000-")).status_code == 416
    head = await read(pool, url, "HEAD")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "8000", b"")
    assert head.headers["etag"] == f'"{SHA[2:]}"'


async def test_the_typed_client_gets_tickets_and_links(pool: PoolUnderTest, node: Key) -> None:
    transport = httpx.ASGITransport(app=pool.app)
    async with NodeClient("http://127.0.0.1:8002", key=node, clock=pool.clock, transport=transport) as client:
        given = await client.request_upload(UploadRequest(kind=UploadKind.FILE, sha256=SHA, size=len(CONTENT)))
        with pytest.raises(NotFound):
            await client.object_link(ObjectKey.parse(given.key))
        await put(pool, given)
        assert (await client.object_link(ObjectKey.parse(given.key))).size == len(CONTENT)


# Refused uploads


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (CONTENT[:-1], "invalid-input"),
        (CONTENT + b"x", "invalid-input"),
        (b"", "invalid-input"),
        (b"R" + CONTENT[1:], "other-bytes"),
    ],
    ids=["cut", "longer", "empty", "of-another-hash"],
)
async def test_bytes_that_differ_from_the_announcement_are_refused_and_not_kept(
    pool: PoolUnderTest, node: Key, tmp_path: Path, content: bytes, code: str
) -> None:
    given = await ticket(pool, node)
    answer = await put(pool, given, content)
    assert answer.status_code in {400, 422}
    assert answer.json()["code"] == code
    assert stored(tmp_path) == []
    assert (await put(pool, given)).status_code == 201  # the ticket is still good


@pytest.mark.parametrize(("cut", "status"), [(7999, 422), (8001, 413)])
async def test_a_chunked_upload_is_held_to_the_announced_size(
    pool: PoolUnderTest, node: Key, tmp_path: Path, cut: int, status: int
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, cut, 1000):
            yield (CONTENT + b"xx")[start : min(start + 1000, cut)]

    answer = await put(pool, await ticket(pool, node), pieces())
    assert answer.status_code == status
    assert stored(tmp_path) == []


async def test_a_broken_connection_leaves_no_partial_file(pool: PoolUnderTest, node: Key, tmp_path: Path) -> None:
    url = httpx.URL((await ticket(pool, node)).url)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "PUT",
        "scheme": "http",
        "path": url.path,
        "raw_path": url.path.encode(),
        "query_string": url.query,
        "headers": [(b"content-type", b"application/octet-stream"), (b"content-length", b"8000")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    coming = iter([{"type": "http.request", "body": CONTENT[:4000], "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(coming)

    async def send(message: Any) -> None:
        sent.append(message)

    await pool.app(scope, receive, send)
    assert sent == []
    assert stored(tmp_path) == []


async def test_an_upload_below_the_least_rate_is_aborted_and_can_be_retried(
    pool: PoolUnderTest, node: Key, tmp_path: Path, clock: ManualClock
) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        yield CONTENT[:1000]
        await clock.turn(timedelta(seconds=61))
        yield CONTENT[1000:2000]  # a second after the first minute, in which 16 KiB per second are required

    given = await ticket(pool, node)
    answer = await put(pool, given, trickle())
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "upload-too-slow", True)
    assert stored(tmp_path) == []
    assert (await put(pool, given)).status_code == 201


async def test_a_stalled_upload_is_aborted(
    pool: PoolUnderTest, node: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PIECE_TIMEOUT", timedelta(milliseconds=50))

    async def silence() -> AsyncIterator[bytes]:
        yield CONTENT[:1000]
        await asyncio.Event().wait()

    given = await ticket(pool, node)
    answer = await asyncio.wait_for(put(pool, given, silence()), 60)
    assert (answer.status_code, answer.json()["code"]) == (503, "upload-too-slow")
    assert stored(tmp_path) == []


async def test_a_stored_object_of_the_wrong_size_is_neither_accepted_nor_replaced(
    pool: PoolUnderTest, node: Key, tmp_path: Path
) -> None:
    await upload(pool, node)
    (path,) = (path for path in (tmp_path / "objects").rglob(SHA[2:]) if path.is_file())
    path.write_bytes(CONTENT[:100])  # a disk that lost the end of the file
    answer = await ask(pool, node)
    assert (answer.status_code, answer.json()["code"]) == (409, "other-object")
    assert path.read_bytes() == CONTENT[:100]


async def test_pools_that_share_a_store_cannot_read_each_others_objects(
    pool: PoolUnderTest, node: Key, tmp_path: Path
) -> None:
    given = await upload(pool, node)
    (path,) = (path for path in (tmp_path / "objects").rglob(SHA[2:]) if path.is_file())
    other = Path(str(path).replace(f"/{POOL}/", f"/{POOL + 1}/"))
    other.parent.mkdir(parents=True)
    other.write_bytes(CONTENT)
    key = given.key.replace(f"{POOL}/", f"{POOL + 1}/", 1)
    answer = await pool.send(node, f"/v1/objects?key={key}", None, method="GET")
    assert (answer.status_code, answer.json()["code"]) == (404, "no-object")


async def test_an_object_is_never_overwritten_and_equal_bytes_succeed(
    pool: PoolUnderTest, node: Key, tmp_path: Path
) -> None:
    given = await ticket(pool, node)
    assert (await put(pool, given)).status_code == 201
    (path,) = (path for path in (tmp_path / "objects").rglob(SHA[2:]) if path.is_file())
    before = path.stat()
    assert (await put(pool, given)).status_code == 201
    assert (await put(pool, given, b"R" + CONTENT[1:])).status_code == 422
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns, path.read_bytes()) == (before.st_ino, before.st_mtime_ns, CONTENT)


async def test_an_upload_url_expires(pool: PoolUnderTest, node: Key, clock: ManualClock) -> None:
    given = await upload(pool, node)
    url = (await link(pool, node, given.key)).url
    await clock.turn(timedelta(seconds=901))
    late = await put(pool, given)
    assert (late.status_code, late.json()["code"]) == (403, "url-expired")
    assert (await read(pool, url)).status_code == 200
    await clock.turn(timedelta(hours=1))
    assert (await read(pool, url)).json()["code"] == "url-expired"


async def test_an_upload_still_running_when_its_url_expires_is_aborted(
    make_pool: MakePool, tmp_path: Path, clock: ManualClock
) -> None:
    pool = make_pool(upload_url_life_s=40)
    node = await pool.member()

    async def slow() -> AsyncIterator[bytes]:
        for begin in range(0, len(CONTENT), 1000):
            yield CONTENT[begin : begin + 1000]
            await clock.turn(timedelta(seconds=7))

    given = await ticket(pool, node)
    answer = await put(pool, given, slow())
    assert (answer.status_code, answer.json()["code"]) == (403, "url-expired")
    assert answer.json()["detail"].startswith("the URL expired after ")
    assert stored(tmp_path) == []
    assert (await put(pool, await ticket(pool, node))).status_code == 201


async def test_an_upload_stalled_until_its_url_expires_is_aborted(
    make_pool: MakePool, tmp_path: Path, clock: ManualClock
) -> None:
    pool = make_pool(upload_url_life_s=40)

    async def silence() -> AsyncIterator[bytes]:
        await clock.turn(timedelta(seconds=39.95))
        yield CONTENT[:1000]
        await asyncio.Event().wait()

    answer = await asyncio.wait_for(put(pool, await ticket(pool, await pool.member()), silence()), 20)
    assert (answer.status_code, answer.json()["code"]) == (403, "url-expired")
    assert stored(tmp_path) == []


async def test_a_url_permits_only_the_operation_it_was_signed_for(pool: PoolUnderTest, node: Key) -> None:
    given = await upload(pool, node)
    other = await pool.member()
    path, query = given.url.split("?")
    terms = dict(parse_qsl(query))
    changed = [
        f"{path}?{urlencode(terms | {'size': '8001'})}",
        f"{path}?{urlencode(terms | {'expires': str(int(terms['expires']) + 1)})}",
        f"{path}?{urlencode(terms | {'type': 'text/html'})}",
        f"{path}?{urlencode(terms | {'signature': '0' * 64})}",
        f"{path}?{urlencode(terms | {'signature': 'é'})}",
        f"{path}?{urlencode(terms | {'more': '1'})}",
        f"{path}?{query}&size=8000",
        path,
        f"{path.replace(node.address, other.address)}?{query}",
        f"{path.replace(f'/{POOL}/', f'/{POOL}/audits/')}?{query}",
        f"{path.replace(SHA[2:], 'ab' * 32)}?{query}",
    ]
    for url in changed:
        answer = await put(pool, given.model_copy(update={"url": url}))
        assert answer.status_code in {400, 403, 422}, url
        assert answer.json()["code"] in {"bad-url", "invalid-input", "unknown-parameter"}
    for size, kind in ((len(CONTENT), "text/html"), (len(CONTENT) - 1, given.headers["Content-Type"])):
        # Bytes and headers match the changed URL: only its signature is wrong.
        url = f"{path}?{urlencode(terms | {'size': str(size), 'type': kind})}"
        answer = await put(pool, given.model_copy(update={"url": url}), CONTENT[:size], **{"Content-Type": kind})
        assert (answer.status_code, answer.json()["code"]) == (403, "bad-url")
    assert (await read(pool, given.url)).status_code == 403  # a URL for writing is not valid for reading
    assert (await put(pool, given, **{"Content-Type": "text/html"})).status_code == 400


@pytest.mark.parametrize(
    "key",
    [
        "../../../etc/passwd",
        "7/../7",
        f"0/{MANAGER.address}/{'ab' * 32}",
        f"7/{MANAGER.address.lower()}/{'ab' * 32}",
        f"7/{MANAGER.address}/{'AB' * 32}",
        f"7/{MANAGER.address}/{'ab' * 32}\n",
        f"7/other/{MANAGER.address}/{'ab' * 32}",
        f"{10**19}/{MANAGER.address}/{'ab' * 32}",
        "",
    ],
)
async def test_a_malformed_object_key_is_not_found(pool: PoolUnderTest, node: Key, key: str) -> None:
    target = "/v1/objects?" + urlencode({"key": key})
    assert (await pool.send(node, target, None, method="GET")).status_code == 400
    async with pool.http() as http:
        answer = await http.get("/v1/blobs/" + key.replace("\n", "%0A"))
    assert answer.status_code in {400, 403, 404}


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 0},
        {"size": -1},
        {"size": 2**63},
        {"sha256": "ab" * 32},
        {"sha256": "0x" + "ab" * 31},
        {"content_type": "text/html; charset=utf-8"},
        {"content_type": "text/html\r\nx: y"},
        {"kind": "secret"},
        {"node": MANAGER.address},
    ],
)
async def test_a_malformed_ticket_request_is_refused(pool: PoolUnderTest, node: Key, changes: dict[str, Any]) -> None:
    assert (await ask(pool, node, **changes)).status_code == 422


async def test_a_file_above_the_pools_limit_is_refused_before_the_upload(make_pool: MakePool) -> None:
    pool = make_pool(upload_most_bytes=7999)
    answer = await ask(pool, await pool.member())
    assert (answer.status_code, answer.json()["retryable"]) == (413, False)


def test_a_pools_upload_limit_is_at_most_what_validators_accept(make_pool: MakePool) -> None:
    make_pool(upload_most_bytes=LARGEST_OBJECT)
    with pytest.raises(ValidationError, match="upload_most_bytes"):
        make_pool(upload_most_bytes=LARGEST_OBJECT + 1)


# Permissions


async def test_strangers_and_banned_nodes_get_no_ticket(pool: PoolUnderTest, node: Key) -> None:
    stranger = await ask(pool, Key.generate())
    assert (stranger.status_code, stranger.json()["code"], stranger.json()["retryable"]) == (403, "not-a-member", True)
    pool.ledger.happen(node.address, MemberEvent.BANNED, member=False, banned=True)
    await pool.sync.round()
    banned = await ask(pool, node)
    assert (banned.status_code, banned.json()["retryable"]) == (403, False)


async def test_only_validators_write_audit_files_and_every_caller_reads_them(
    pool: PoolUnderTest, node: Key, tmp_path: Path
) -> None:
    validator = Key.generate()
    pool.ledger.validators.add(validator.address)
    refused = await ask(pool, node, kind="audit")
    assert (refused.status_code, refused.json()["code"]) == (403, "not-a-validator")
    given = await upload(pool, validator, kind="audit", content_type="application/json")
    assert given.key == f"{POOL}/audits/{validator.address}/{SHA[2:]}"
    for reader in (node, Key.generate()):  # the node may have been evicted because of this file
        assert (await link(pool, reader, given.key)).size == len(CONTENT)
    assert (await ask(pool, validator)).status_code == 403  # only members upload work


async def test_a_removed_validator_loses_read_and_write_access_within_seconds(
    pool: PoolUnderTest, node: Key, clock: ManualClock
) -> None:
    key, validator = (await upload(pool, node)).key, Key.generate()
    pool.ledger.validators.add(validator.address)
    assert (await link(pool, validator, key)).key == key
    pool.ledger.validators.remove(validator.address)
    await clock.turn(timedelta(seconds=11))
    assert (await pool.send(validator, f"/v1/objects?key={key}", None, method="GET")).status_code == 403
    assert (await ask(pool, validator, kind="audit")).status_code == 403


async def test_a_rollout_file_can_be_read_by_its_node_by_validators_and_by_the_owner(
    pool: PoolUnderTest, node: Key
) -> None:
    key = (await upload(pool, node)).key
    validator = Key.generate()
    pool.ledger.validators.add(validator.address)
    for reader in (node, validator, MANAGER):
        assert (await link(pool, reader, key)).key == key
    assert (await pool.owner("GET", f"/v1/objects?key={key}"))["key"] == key
    for nobody in (await pool.member(), Key.generate()):
        answer = await pool.send(nobody, f"/v1/objects?key={key}", None, method="GET")
        assert (answer.status_code, answer.json()["code"]) == (403, "not-yours")
    async with pool.http() as http:
        assert (await http.get(f"/v1/objects?key={key}")).status_code == 401
    assert (
        await pool.send(node, f"/v1/objects?key={key.replace('7/', '8/', 1)}", None, method="GET")
    ).status_code == 404


async def test_while_the_chain_is_down_unknown_nodes_get_no_ticket(pool: PoolUnderTest) -> None:
    pool.ledger.down = True
    answer = await ask(pool, Key.generate())
    assert (answer.status_code, answer.json()["retryable"]) == (503, True)


# Quotas


async def test_open_tickets_files_and_bytes_are_counted_per_node(make_pool: MakePool, clock: ManualClock) -> None:
    pool = make_pool(uploads_open=2, uploads_per_hour=4, upload_bytes_per_hour=25_000)
    node, other = await pool.member(), await pool.member()

    async def refused(key: Key, number: int, size: int = 8000) -> str:
        answer = await ask(pool, key, sha256=f"0x{number:064x}", size=size)
        if answer.status_code == 200:
            return ""
        assert answer.status_code == 429, answer.text
        assert (answer.json()["code"], answer.json()["retry_after"] > 0) == ("upload-quota", True)
        return str(answer.json()["detail"])

    assert [await refused(node, 1), await refused(node, 2)] == ["", ""]
    assert "2 open uploads" in await refused(node, 3)
    assert await refused(node, 1) == ""  # an open ticket may be requested again
    assert await refused(other, 1) == ""  # each node has a separate quota
    await clock.turn(timedelta(minutes=16))
    assert await refused(node, 3) == ""
    assert "bytes" in await refused(node, 4)
    assert await refused(node, 5, size=1000) == ""
    await clock.turn(timedelta(minutes=16))
    assert "4 files" in await refused(node, 6, size=1)
    await clock.turn(timedelta(hours=1))
    assert await refused(node, 6) == ""


async def test_the_byte_quota_counts_the_largest_size_requested_for_a_file(make_pool: MakePool) -> None:
    pool = make_pool(upload_bytes_per_hour=10_000)
    node = await pool.member()
    assert (await ask(pool, node, size=1)).status_code == 200
    assert (await ask(pool, node, size=8000)).status_code == 200
    answer = await ask(pool, node, size=9000)
    assert (answer.status_code, answer.json()["code"]) == (429, "upload-quota")


async def test_parallel_slow_uploads_to_one_url_leave_places_for_other_nodes(
    pool: PoolUnderTest, node: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MOST_OF_ONE", 2)
    given, other = await upload(pool, node), await pool.member()  # the object exists: nothing is locked any more
    begun, gate = asyncio.Semaphore(0), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        begun.release()
        await gate.wait()
        yield CONTENT

    waiting = [asyncio.create_task(put(pool, given, slowly())) for _ in range(2)]
    for _ in waiting:
        await begun.acquire()
    assert (await put(pool, given)).status_code == 429
    assert (await put(pool, await ticket(pool, other))).status_code == 201
    gate.set()
    assert [(await each).status_code for each in waiting] == [201, 201]
    assert (await put(pool, given)).status_code == 201


async def test_the_number_of_parallel_uploads_is_limited_and_places_are_freed(
    pool: PoolUnderTest, node: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MOST_AT_ONCE", 1)
    given, other = await ticket(pool, node), await pool.member()
    theirs, begun, gate = await ticket(pool, other), asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        begun.set()
        await gate.wait()
        yield CONTENT

    waiting = asyncio.create_task(put(pool, given, slowly()))
    await asyncio.wait_for(begun.wait(), 60)
    refused = await put(pool, theirs)
    assert (refused.status_code, refused.json()["retry_after"]) == (429, 5)
    gate.set()
    assert (await waiting).status_code == 201
    assert (await put(pool, theirs)).status_code == 201


async def test_a_completed_upload_frees_its_place(make_pool: MakePool) -> None:
    pool = make_pool(uploads_open=1)
    node = await pool.member()
    given = await ticket(pool, node)
    assert (await ask(pool, node, sha256="0x" + "ab" * 32)).status_code == 429
    await put(pool, given)
    assert (await ticket(pool, node)).already_there
    assert (await ask(pool, node, sha256="0x" + "ab" * 32)).status_code == 200


# The disk


async def test_a_full_disk_is_reported_before_the_upload(make_pool: MakePool) -> None:
    pool = make_pool(storage_reserve_bytes=1 << 60)
    with capture_logs() as lines:
        answer = await ask(pool, await pool.member())
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (507, "storage-full", True)
    assert answer.json()["hint"] == "try again later, and tell the pool's owner"
    [line] = [line for line in lines if line["event"] == "storage-full"]
    assert line["hint"] == "free space on this disk, or lower the reserve in the settings"


async def test_a_disk_that_filled_after_the_ticket_refuses_the_upload_until_there_is_room(
    pool: PoolUnderTest, node: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = await ticket(pool, node)
    with monkeypatch.context() as patched:
        patched.setattr("protocol.runtime.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=len(CONTENT) - 1))
        answer = await put(pool, given)
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (507, "storage-full", True)
    assert stored(tmp_path) == []
    assert (await put(pool, given)).status_code == 201


async def test_a_ticket_refused_for_lack_of_disk_space_costs_no_quota(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(uploads_open=1)
    node = await pool.member()
    with monkeypatch.context() as patched:
        patched.setattr("protocol.runtime.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        assert (await ask(pool, node)).status_code == 507
    assert (await ask(pool, node, sha256="0x" + "ab" * 32)).status_code == 200


async def test_parallel_uploads_leave_the_disk_reserve_free(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, root = 1000, tmp_path / "objects"
    disk = len(CONTENT) * 2 + reserve
    least = [disk]

    def usage(_: object) -> SimpleNamespace:
        least.append(disk - sum(path.stat().st_size for path in {*root.glob("incoming/*"), *root.rglob("0x*")}))
        return SimpleNamespace(free=least[-1])

    monkeypatch.setattr("protocol.runtime.disk.shutil.disk_usage", usage)
    pool = make_pool(storage_reserve_bytes=reserve)
    tickets = [await ticket(pool, await pool.member()) for _ in range(4)]
    begun, gate = asyncio.Semaphore(0), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        begun.release()
        await gate.wait()
        yield CONTENT

    waiting = [asyncio.create_task(put(pool, each, slowly())) for each in tickets]
    for _ in range(2):
        await asyncio.wait_for(begun.acquire(), 60)
    assert (await ask(pool, await pool.member())).status_code == 507  # no ticket for space that is already reserved
    gate.set()
    answers = await asyncio.gather(*waiting)
    assert sorted(answer.status_code for answer in answers) == [201, 201, 507, 507]
    assert {answer.json()["code"] for answer in answers if answer.status_code == 507} == {"storage-full"}
    assert len(stored(tmp_path)) == 2
    assert min(least) >= reserve


async def test_repeated_uploads_of_a_stored_object_reserve_no_disk_space(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(storage_reserve_bytes=1000)
    node, other = await pool.member(), await pool.member()
    given, theirs = await upload(pool, node), await ticket(pool, other)
    free = [1000 + 2 * len(CONTENT)]
    monkeypatch.setattr("protocol.runtime.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=free[0]))
    begun, gate = asyncio.Semaphore(0), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        begun.release()
        await gate.wait()
        yield CONTENT

    waiting = [asyncio.create_task(put(pool, given, slowly())) for _ in range(3)]
    for _ in range(2):
        await asyncio.wait_for(begun.acquire(), 60)
    assert (await put(pool, theirs)).status_code == 201
    free[0] = 0
    gate.set()
    assert [(await each).status_code for each in waiting] == [201] * 3


async def test_the_disk_reserve_is_kept_when_other_programs_fill_the_disk(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [1 << 30]
    monkeypatch.setattr("protocol.runtime.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=free[0]))
    pool = make_pool(storage_reserve_bytes=1000)
    given = await ticket(pool, await pool.member())

    async def filling() -> AsyncIterator[bytes]:
        free[0] = 1000
        yield CONTENT

    answer = await put(pool, given, filling())
    assert (answer.status_code, answer.json()["code"]) == (507, "storage-full")
    assert stored(tmp_path) == []
    free[0] = 1 << 30
    assert (await put(pool, given)).status_code == 201


async def test_a_disk_that_fills_during_an_upload_leaves_no_partial_file(
    pool: PoolUnderTest, node: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = await ticket(pool, node)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.storage.receiver.os.write", full)
        answer = await put(pool, given)
    assert (answer.status_code, answer.json()["code"]) == (507, "storage-full")
    assert stored(tmp_path) == []
    assert (await put(pool, given)).status_code == 201


async def test_orchestrators_with_a_shared_directory_accept_each_others_urls(
    make_pool: MakePool, tmp_path: Path
) -> None:
    one, two = make_pool(), make_pool()
    node = await one.member()
    given = await ticket(one, node)
    assert (await put(two, given)).status_code == 201
    assert (tmp_path / "objects" / "url.secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "objects").stat().st_mode & 0o777 == 0o700
    assert len((tmp_path / "objects" / "url.secret").read_bytes()) == 32


async def test_an_unknown_object_is_not_found(pool: PoolUnderTest, node: Key) -> None:
    answer = await pool.send(node, f"/v1/objects?key={POOL}/{node.address}/{'ab' * 32}", None, method="GET")
    assert (answer.status_code, answer.json()["code"]) == (404, "no-object")


async def test_an_unusable_store_is_logged_at_startup_and_the_service_runs(make_pool: MakePool, tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file where the directory should be")
    app = make_pool().app
    with capture_logs() as lines:
        async with app.router.lifespan_context(app):
            async with asyncio.timeout(60):
                while not (found := [line for line in lines if line["event"] == "storage-unusable"]):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    assert "File exists" in found[0]["detail"]
