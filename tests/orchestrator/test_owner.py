"""Routes of the pool's owner: nodes, logs, events, webhooks, and access to them."""

from __future__ import annotations

import hmac
import re
from datetime import timedelta
from typing import Any

import httpx
import pytest

from orchestrator.api.logs import Backlog, reader
from orchestrator.domain.event_kinds import wants
from orchestrator.loops.webhooks import NEW_SIGNATURE_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, WebhookDelivery
from protocol.http.client import RequestSigner
from protocol.identity.keys import Key
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.wire.heartbeat import CommandKind
from protocol.wire.logs import BATCH_LINES, LogLine
from protocol.wire.nodes import NodeState
from tests.kit.memory_ledger import MANAGER, PoolUnderTest
from tests.kit.orchestrator import READER, MakePool

S = NodeState


async def ask(
    pool: PoolUnderTest, method: str, path: str, *, token: str | None = None, body: Any = None
) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with pool.http() as http:
        return await http.request(method, path, json=body, headers=headers)


OWNERS = [
    ("GET", "/v1/tasks", "read"),
    ("POST", "/v1/tasks", "operate"),
    ("GET", f"/v1/tasks/{'0' * 32}", "read"),
    ("PATCH", f"/v1/tasks/{'0' * 32}", "operate"),
    ("DELETE", f"/v1/tasks/{'0' * 32}", "operate"),
    ("PUT", f"/v1/tasks/{'0' * 32}/secrets", "operate"),
    ("GET", "/v1/assignments", "read"),
    ("GET", f"/v1/assignments/{'0' * 32}", "read"),
    ("GET", f"/v1/assignments/{'0' * 32}/logs", "read"),
    ("GET", f"/v1/tasks/{'0' * 32}/assignments", "read"),
    ("GET", "/v1/nodes", "read"),
    ("GET", "/v1/nodes/allowlist", "admin"),
    ("GET", f"/v1/nodes/0x{'1' * 40}", "read"),
    ("GET", f"/v1/nodes/0x{'1' * 40}/history", "read"),
    ("GET", f"/v1/nodes/0x{'1' * 40}/logs", "read"),
    ("GET", f"/v1/nodes/0x{'1' * 40}/metrics", "read"),
    ("POST", f"/v1/nodes/0x{'1' * 40}/restart", "operate"),
    ("POST", f"/v1/nodes/0x{'1' * 40}/drain", "operate"),
    ("POST", f"/v1/nodes/0x{'1' * 40}/resume", "operate"),
    ("POST", f"/v1/nodes/0x{'1' * 40}/ban", "admin"),
    ("POST", f"/v1/nodes/0x{'1' * 40}/unban", "admin"),
    ("GET", "/v1/groups", "read"),
    ("GET", "/v1/pool", "read"),
    ("GET", "/v1/events", "read"),
    ("GET", "/v1/webhooks", "admin"),
    ("POST", "/v1/webhooks", "admin"),
    ("DELETE", f"/v1/webhooks/{'0' * 32}", "admin"),
    ("POST", f"/v1/webhooks/{'0' * 32}/secret", "admin"),
]


@pytest.mark.parametrize(("method", "path", "scope"), OWNERS)
async def test_owner_endpoints_are_closed_to_nodes_strangers_and_lower_scopes(
    pool: PoolUnderTest, method: str, path: str, scope: str
) -> None:
    assert (await ask(pool, method, path)).json()["code"] == "no-token"
    assert (await ask(pool, method, path, token="mst_00000000_" + "x" * 43)).json()["code"] == "bad-token"
    if scope != "read":
        assert (await ask(pool, method, path, token=READER, body={})).json()["code"] == "scope"
    node = await pool.send(await pool.member(), path, None, method=method)
    assert (node.status_code, node.json()["code"]) == (403, "role")


async def test_the_managers_signature_replaces_a_token(pool: PoolUnderTest) -> None:
    signer = RequestSigner(MANAGER, audience=pool.dependencies.key.address, clock=pool.clock)
    async with pool.http(signer) as http:
        assert (await http.get("/v1/nodes")).status_code == 200
        pool.ledger.down = True  # roles are cached for a while
        await pool.clock.turn(timedelta(minutes=1))
        assert (await http.get("/v1/nodes")).status_code == 200


async def test_nodes_are_listed_in_pages_with_filters(pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [await pool.member(labels={"zone": "eu" if number % 2 else "us"}) for number in range(5)]
    seen: list[str] = []
    cursor = ""
    while True:
        page = await pool.owner("GET", f"/v1/nodes?limit=2{cursor}")
        seen += [node["address"] for node in page["nodes"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == sorted(key.address for key in keys)
    for path, count in (
        ("state=healthy", 5),
        ("state=dead", 0),
        ("state=dead&state=healthy", 5),
        ("label=zone%3Deu", 2),
        ("label=zone%3Deu&limit=1", 1),
    ):
        assert len((await pool.owner("GET", f"/v1/nodes?{path}"))["nodes"]) == count
    task = await pool.run(replicas=1)
    assert len((await pool.owner("GET", f"/v1/nodes?task={task}"))["nodes"]) == 1
    assert (await ask(pool, "GET", "/v1/nodes?label=zone", token=pool.token)).status_code == 422
    monkeypatch.setattr("orchestrator.api.paging.READ_AT_ONCE", 2)
    monkeypatch.setattr("orchestrator.api.paging.READS_PER_REQUEST", 2)
    first = await pool.owner("GET", "/v1/nodes?state=dead")
    assert (first["nodes"], first["next_cursor"]) == ([], seen[3]), "reads are bounded, and the next request continues"
    assert (await pool.owner("GET", f"/v1/nodes?state=dead&cursor={seen[3]}"))["next_cursor"] is None


async def test_a_drained_node_finishes_its_task_and_gets_no_new_one_until_resumed(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.run(replicas=1, restart={"kind": "always"})
    assert (await pool.beat(key)).assignment is not None
    drained = await pool.owner("POST", f"/v1/nodes/{key.address}/drain", {"reason": "maintenance"})
    assert (drained["state"], drained["reason"]) == ("draining", "maintenance")
    await pool.scheduler.tick()
    answer = await pool.beat(key)
    assert (answer.state, answer.assignment) == (S.DRAINING, None)
    assert [command.kind for command in answer.commands] == [CommandKind.DRAIN]
    again = await pool.beat(key, acknowledged=[command.id for command in answer.commands])
    assert not again.commands
    await pool.owner("POST", f"/v1/nodes/{key.address}/resume")
    await pool.scheduler.tick()
    answer = await pool.beat(key)
    assert answer.state is S.HEALTHY
    assert answer.assignment is not None


async def test_a_drained_node_stays_drained_after_being_dead(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.owner("POST", f"/v1/nodes/{key.address}/drain")
    await pool.liveness.tick()
    for _ in range(160):
        await pool.clock.turn(timedelta(seconds=0.5))
        await pool.liveness.tick()
    assert (await pool.dependencies.nodes.get(key.address)).state is S.DEAD
    assert (await pool.beat(key)).state is S.DRAINING


async def test_a_ban_is_sent_to_the_ledger_and_persists_until_lifted(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.run()
    banned = await pool.owner("POST", f"/v1/nodes/{key.address}/ban", {"reason": "forged rollouts"})
    assert banned["state"] == "banned"
    assert pool.ledger.nodes[key.address].banned
    await pool.sync.round()
    await pool.scheduler.tick()
    answer = await pool.beat(key)
    assert (answer.state, answer.assignment) == (S.BANNED, None)
    assert "forged rollouts" in answer.reason
    (listed,) = (await pool.owner("GET", "/v1/nodes?state=banned"))["nodes"]
    assert listed["reason"] == "forged rollouts"
    (event,) = [each for each in (await pool.owner("GET", "/v1/events"))["events"] if each["kind"] == "node.banned"]
    assert (event["detail"], event["actor"], event["node"]) == ("forged rollouts", "boss", key.address)
    lifted = await pool.owner("POST", f"/v1/nodes/{key.address}/unban")
    assert lifted["state"] == "discovered"
    history = (await pool.owner("GET", f"/v1/nodes/{key.address}/history"))["entries"]
    assert [(one["event"], one["actor"]) for one in history[:2]] == [("unbanned", "boss"), ("banned", "boss")]


@pytest.mark.parametrize(
    ("body", "deprecated"), [(None, True), ({}, True), ({"reason": " "}, True), ({"reason": "forged"}, False)]
)
async def test_a_ban_without_a_reason_is_deprecated(pool: PoolUnderTest, body: Any, deprecated: bool) -> None:
    path = f"/v1/nodes/{(await pool.member()).address}/ban"
    answer = await ask(pool, "POST", path, token=pool.token, body=body)
    assert (answer.status_code, answer.json()["state"]) == (200, "banned")
    assert answer.json()["reason"] == ("the owner banned it and gave no reason" if deprecated else "forged")
    assert ({"deprecation", "sunset", "link"} <= answer.headers.keys()) is deprecated
    too_long = await ask(pool, "POST", path, token=pool.token, body={"reason": "x" * 201})
    assert (too_long.status_code, too_long.json()["fields"].keys()) == (422, {"reason"})


async def test_a_ban_that_the_chain_refused_is_not_recorded(pool: PoolUnderTest) -> None:
    key = await pool.member()
    pool.ledger.down = True
    answer = await ask(pool, "POST", f"/v1/nodes/{key.address}/ban", token=pool.token, body={})
    assert answer.status_code == 503
    assert (await pool.beat(key)).state is S.HEALTHY


@pytest.mark.parametrize("verb", ["restart", "resume"])
async def test_an_action_that_the_nodes_state_forbids_is_a_conflict(pool: PoolUnderTest, verb: str) -> None:
    key = await pool.member()
    answer = await ask(pool, "POST", f"/v1/nodes/{key.address}/{verb}", token=pool.token)
    assert answer.status_code == 409


async def test_an_unknown_node_is_404_and_a_malformed_address_422(pool: PoolUnderTest) -> None:
    stranger = Key.generate().address
    for path in ("", "/history", "/metrics", "/logs"):
        assert (await ask(pool, "GET", f"/v1/nodes/{stranger}{path}", token=pool.token)).status_code == 404
    assert (await ask(pool, "GET", "/v1/nodes/0x12", token=pool.token)).status_code == 422
    swapped = stranger.swapcase().replace("0X", "0x")
    assert (await ask(pool, "GET", f"/v1/nodes/{swapped}", token=pool.token)).status_code == 422


async def test_a_node_can_read_only_its_own_history(pool: PoolUnderTest) -> None:
    key, other = await pool.member(), await pool.member()
    mine = await pool.send(key, "/v1/nodes/me", None, method="GET")
    assert mine.json()["node"]["address"] == key.address
    assert {entry["event"] for entry in mine.json()["history"]} == {"joined", "heartbeat"}
    assert other.address not in mine.text
    assert (await pool.send(Key.generate(), "/v1/nodes/me", None, method="GET")).status_code == 404


def line(sequence: int, text: str = "hello") -> dict[str, Any]:
    return {"sequence": sequence, "time_ms": 1, "stream": "stdout", "text": text}


async def test_logs_are_requested_pushed_once_and_kept_after_the_task_ends(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    assert (await pool.owner("GET", f"/v1/nodes/{key.address}/logs"))["lines"] == []
    commands = (await pool.beat(key)).commands
    assert [(one.kind, one.text, one.since) for one in commands] == [(CommandKind.SEND_LOGS, assignment.id, 0)]
    batch = {"assignment_id": assignment.id, "lines": [line(0), line(1), line(2)]}
    for _ in range(2):  # the second one repeats a request whose answer was lost
        receipt = (await pool.send(key, "/v1/logs", batch)).json()
        assert receipt["next_sequence"] == 3
        assert receipt["wanted_until_ms"] > 0
    await pool.send(key, "/v1/logs", {"assignment_id": assignment.id, "lines": [line(7, "after a gap")]})
    await pool.owner("DELETE", f"/v1/tasks/{task}")
    await pool.scheduler.tick()
    found = await pool.owner("GET", f"/v1/nodes/{key.address}/logs")
    assert [one["sequence"] for one in found["lines"]] == [0, 1, 2, 7]
    assert found["next_sequence"] == 8
    assert [one["sequence"] for one in (await pool.owner("GET", f"/v1/nodes/{key.address}/logs?tail=1"))["lines"]] == [
        7
    ]
    since = await pool.owner("GET", f"/v1/nodes/{key.address}/logs?since=2&assignment={assignment.id}")
    assert [one["sequence"] for one in since["lines"]] == [2, 7]


async def test_a_log_is_bounded_in_bytes_and_the_newest_lines_are_kept(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.assignments.MOST_LOG_BYTES", 40_000)
    key = await pool.member()
    await pool.run(replicas=1)
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    for start in range(0, 60, 20):
        lines = [line(number, "x" * 4000) for number in range(start, start + 20)]
        assert (await pool.send(key, "/v1/logs", {"assignment_id": assignment.id, "lines": lines})).status_code == 200
    kept = (await pool.owner("GET", f"/v1/nodes/{key.address}/logs"))["lines"]
    assert [one["sequence"] for one in kept] == list(range(51, 60))


async def test_all_logs_together_are_bounded_and_the_largest_loses_lines(pool: PoolUnderTest) -> None:
    keys = [await pool.member() for _ in range(3)]
    task = await pool.run(replicas=3)
    found = [(await pool.beat(key)).assignment for key in keys]
    names = [one.id for one in found if one is not None]
    assignments = pool.dependencies.assignments
    assignments._most_log_bytes = 60_000

    async def push(number: int, *, lines: int, size: int = 4000) -> None:
        body = {"assignment_id": names[number], "lines": [line(each, "x" * size) for each in range(lines)]}
        assert (await pool.send(keys[number], "/v1/logs", body)).status_code == 200

    async def kept(number: int) -> list[int]:
        return [one.sequence for one in await assignments.lines(names[number], since=0, limit=100)]

    await push(0, lines=10)
    await push(1, lines=2)
    await push(2, lines=9)
    assert [await kept(number) for number in range(3)] == [list(range(7, 10)), [0, 1], list(range(9))]
    assert 50_000 < await assignments.log_bytes() <= 60_000
    await pool.dependencies.redis.delete(pool.dependencies.database.key("logs", names[2]))  # it expired in Redis
    await push(1, lines=6)
    assert await kept(1) == list(range(6)), "an expired log no longer counts"
    await pool.owner("PATCH", f"/v1/tasks/{task}", {"desired_state": "stopped"})
    await pool.scheduler.tick()
    await pool.clock.turn(timedelta(days=8))
    for _ in range(3):
        await assignments.forget_ended(now_ms=unix_ms(pool.clock.now()))
    assert await assignments.log_bytes() == 0


async def test_following_a_previously_unread_log_with_tail_shows_that_many_lines(
    pool: PoolUnderTest,
) -> None:
    key = await pool.member()
    await pool.run(replicas=1)
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    opened = unix_ms(pool.clock.now())
    backlog = Backlog(2, opened_ms=opened, wait_until_ms=opened + 5_000)
    read = reader(pool.dependencies, key.address, assignment.id, (), backlog=backlog)

    async def push(numbers: range, time_ms: int) -> None:
        lines = [{**line(number), "time_ms": time_ms} for number in numbers]
        assert (await pool.send(key, "/v1/logs", {"assignment_id": assignment.id, "lines": lines})).status_code == 200

    assert await read() == [], "the node has not been asked yet"
    await push(range(BATCH_LINES), opened - 1)
    assert await read() == [], "a full batch, so more follows"
    await push(range(BATCH_LINES, BATCH_LINES + 10), opened - 1)
    assert [name for name, _ in await read()] == [str(BATCH_LINES + 8), str(BATCH_LINES + 9)]
    await push(range(BATCH_LINES + 10, BATCH_LINES + 14), opened + 1)
    assert [name for name, _ in await read()] == [str(BATCH_LINES + number) for number in range(10, 14)]


async def test_a_silent_node_does_not_delay_the_lines_already_stored(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.run(replicas=1)
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    opened = unix_ms(pool.clock.now())
    kept = [LogLine.model_validate(line(number)) for number in range(5)]
    backlog = Backlog(2, opened_ms=opened, wait_until_ms=opened + 5_000)
    read = reader(pool.dependencies, key.address, assignment.id, kept[-2:], backlog=backlog)
    assert await read() == []
    await pool.clock.turn(timedelta(seconds=6))
    assert [name for name, _ in await read()] == ["3", "4"]


@pytest.mark.parametrize(
    ("path", "named", "hint"),
    [
        ("/v1/nodes?stat=healthy", "'stat'", "did you mean state?"),
        ("/v1/tasks?state=running&limits=1", "'limits'", "did you mean limit?"),
        ("/v1/pool?x=1", "'x'", "this route takes no parameters"),
    ],
)
async def test_a_misspelt_filter_is_refused(pool: PoolUnderTest, path: str, named: str, hint: str) -> None:
    answer = await ask(pool, "GET", path, token=pool.token)
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-parameter")
    assert named in answer.json()["detail"]
    assert hint in answer.json()["hint"]
    wrong = {f"query.{name}" for name in re.findall("'([a-z]+)'", named)}
    assert answer.json()["fields"].keys() == wrong


@pytest.mark.parametrize(("sequence", "status"), [(2**53 - 2, 200), (2**53 - 1, 422), (2**63, 422), (2**70, 422)])
async def test_log_line_numbers_out_of_range_are_refused(pool: PoolUnderTest, sequence: int, status: int) -> None:
    key = await pool.member()
    await pool.run(replicas=1)
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    for _ in range(2):
        answer = await pool.send(key, "/v1/logs", {"assignment_id": assignment.id, "lines": [line(sequence)]})
        assert answer.status_code == status


async def test_a_node_cannot_push_into_another_nodes_log(pool: PoolUnderTest) -> None:
    key, other = await pool.member(), await pool.member()
    await pool.run(replicas=1)
    holder = key if (await pool.beat(key)).assignment else other
    thief = other if holder is key else key
    assignment = (await pool.beat(holder)).assignment
    assert assignment is not None
    answer = await pool.send(thief, "/v1/logs", {"assignment_id": assignment.id, "lines": [line(0)]})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown-assignment")
    assert (await pool.owner("GET", f"/v1/nodes/{holder.address}/logs"))["lines"] == []
    assert (
        await ask(pool, "GET", f"/v1/nodes/{thief.address}/logs?assignment={assignment.id}", token=pool.token)
    ).status_code == 404


async def test_the_last_log_lines_are_requested_when_a_task_ends(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.run(replicas=1)
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    await pool.beat(key, assignment={"id": assignment.id, "generation": 1, "state": "completed"})
    await pool.scheduler.tick()
    answer = await pool.beat(key)
    assert answer.assignment is None
    assert [(one.kind, one.text) for one in answer.commands] == [(CommandKind.SEND_LOGS, assignment.id)]


async def test_events_are_listed_in_order(pool: PoolUnderTest) -> None:
    start = (await pool.owner("GET", "/v1/events"))["next_cursor"]
    key = await pool.member()
    task = await pool.run(replicas=1)
    events = (await pool.owner("GET", f"/v1/events?after={start}&limit=100"))["events"]
    kinds = [event["kind"] for event in events]
    assert kinds == ["node.joined", "node.healthy", "task.created", "assignment.placed", "task.running"]
    assert (events[1]["node"], events[2]["task_id"], events[2]["actor"]) == (key.address, task, "boss")
    later = await pool.owner("GET", f"/v1/events?after={events[2]['id']}")
    assert [event["kind"] for event in later["events"]] == kinds[3:]


@pytest.mark.parametrize(
    ("patterns", "kind", "expected"),
    [
        ((), "node.dead", True),
        (("node.",), "node.dead", True),
        (("node.dead",), "node.dead", True),
        (("node",), "node.dead", False),
        (("task.", "node.healthy"), "node.dead", False),
    ],
)
def test_webhook_filters_select_events(patterns: tuple[str, ...], kind: str, expected: bool) -> None:
    assert wants(patterns, kind) is expected


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://127.0.0.1/",
        "https://localhost/x",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://169.254.169.254/latest/meta-data",
        "https://10.1.2.3:8443/",
        "https://0.0.0.0/",
        "https://user:word@203.0.113.9/",
        "ftp://203.0.113.9/",
        "https://",
    ],
)
async def test_a_webhook_url_into_a_private_network_is_refused(pool: PoolUnderTest, url: str) -> None:
    answer = await ask(pool, "POST", "/v1/webhooks", token=pool.token, body={"url": url})
    assert answer.status_code in {400, 422}, answer.text
    assert not (await pool.owner("GET", "/v1/webhooks"))["webhooks"]


async def test_a_webhooks_secret_is_rotated_with_an_overlap(make_pool: MakePool) -> None:
    pool = make_pool(webhooks_to_private_networks=True)
    taken: list[httpx.Request] = []

    def receiver(request: httpx.Request) -> httpx.Response:
        taken.append(request)
        return httpx.Response(204)

    made = await pool.owner("POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/hook", "events": ["task.created"]})
    path, secrets = f"/v1/webhooks/{made['webhook']['id']}", [made["secret"]]
    lease = LeaderLease(pool.dependencies.database, "webhooks", lifetime=timedelta(seconds=10))

    async def valid() -> dict[str, list[int]]:
        """Delivers an event; returns which of the secrets, by number, verifies each signature."""
        taken.clear()
        await pool.run()
        async with httpx.AsyncClient(transport=httpx.MockTransport(receiver)) as http:
            postman = WebhookDelivery(pool.dependencies, lease=lease, http=http)
            await postman.round()
            await postman.finish()
        (request,) = taken
        signed = request.headers[TIMESTAMP_HEADER].encode() + b"." + request.content
        made = [hmac.new(secret.encode(), signed, "sha256").hexdigest() for secret in secrets]
        headers = [name for name in (SIGNATURE_HEADER, NEW_SIGNATURE_HEADER) if name in request.headers]
        return {name: [made.index(request.headers[name])] for name in headers}

    async def rotate(body: Any = None) -> dict[str, Any]:
        rotated: dict[str, Any] = await pool.owner("POST", f"{path}/secret", body)
        secrets.append(rotated["secret"])
        return dict(rotated["webhook"])

    assert await valid() == {SIGNATURE_HEADER: [0]}
    until = (await rotate())["old_secret_until_ms"]
    assert until == unix_ms(pool.clock.now()) + 86_400_000
    assert await valid() == {SIGNATURE_HEADER: [0], NEW_SIGNATURE_HEADER: [1]}
    assert secrets[1] not in (await ask(pool, "GET", path, token=pool.token)).text
    again = await ask(pool, "POST", f"{path}/secret", token=pool.token)
    assert (again.status_code, again.json()["code"]) == (409, "rotation-in-progress")
    await pool.clock.turn(timedelta(days=1))
    assert await valid() == {SIGNATURE_HEADER: [1]}
    assert (await pool.owner("GET", path))["old_secret_until_ms"] is None
    await rotate({"overlap_seconds": 60})
    await rotate({"overlap_seconds": 0})  # it leaked
    assert await valid() == {SIGNATURE_HEADER: [3]}
    assert (
        await ask(pool, "POST", f"{path}/secret", token=pool.token, body={"overlap_seconds": 604_801})
    ).status_code == 422
    for _ in range(2):  # the first request died before its answer was stored
        call = pool.dependencies.webhooks.rotate(made["webhook"]["id"], overlap=timedelta(days=1), rotation="r")
        secrets.append((await call).secret.get_secret_value())
    assert secrets[-1] == secrets[-2]


async def test_a_webhook_gets_signed_events_in_order_and_retries_until_accepted(make_pool: MakePool) -> None:
    pool = make_pool(webhooks_to_private_networks=True)
    taken: list[httpx.Request] = []
    down = True

    def receiver(request: httpx.Request) -> httpx.Response:
        if down:
            return httpx.Response(500)
        taken.append(request)
        return httpx.Response(204)

    created = await pool.owner("POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/hook", "events": ["node."]})
    lease = LeaderLease(pool.dependencies.database, "webhooks", lifetime=timedelta(seconds=10))
    async with httpx.AsyncClient(transport=httpx.MockTransport(receiver)) as http:
        postman = WebhookDelivery(pool.dependencies, lease=lease, http=http)
        await pool.member()
        await pool.run()
        await postman.round()
        await postman.finish()
        seen = (await pool.owner("GET", "/v1/webhooks"))["webhooks"][0]
        assert (seen["waiting"], seen["last_error"]) == (True, "the receiver answered 500")
        assert "secret" not in seen
        await postman.round()  # it is not due yet
        down = False
        await pool.clock.turn(timedelta(seconds=2))
        await postman.round()
        await postman.finish()
    assert [httpx.Response(200, content=one.content).json()["kind"] for one in taken] == [
        "node.joined",
        "node.healthy",
    ]
    first = taken[0]
    expected = hmac.new(
        created["secret"].encode(), first.headers[TIMESTAMP_HEADER].encode() + b"." + first.content, "sha256"
    ).hexdigest()
    assert first.headers[SIGNATURE_HEADER] == expected
    seen = (await pool.owner("GET", "/v1/webhooks"))["webhooks"][0]
    assert (seen["waiting"], seen["delivered"]) == (False, 2)
    await pool.owner("DELETE", f"/v1/webhooks/{seen['id']}")
    assert not (await pool.owner("GET", "/v1/webhooks"))["webhooks"]


async def test_two_orchestrators_serve_one_pool(make_pool: MakePool) -> None:
    first, second = make_pool(), make_pool()
    key = await first.member()
    task = (await second.owner("POST", "/v1/tasks", {"spec": {"name": "a", "image": "b"}, "secrets": {"S": "x"}}))["id"]
    await first.scheduler.tick()
    for pool in (first, second, first):
        answer = await pool.beat(key)
        assert answer.assignment is not None
        assert answer.assignment.task_id == task
        assert answer.assignment.secrets["S"].get_secret_value() == "x"


async def test_health_identity_and_openapi_are_served(pool: PoolUnderTest) -> None:
    assert (await ask(pool, "GET", "/healthz")).status_code == 200
    assert (await ask(pool, "GET", "/readyz")).json()["checks"]["redis"] == "ok"
    identity = (await ask(pool, "GET", "/v1/identity")).json()
    assert (identity["service"], identity["address"]) == ("orchestrator", pool.dependencies.key.address)
    await pool.member()
    metrics = (await ask(pool, "GET", "/metrics")).text
    assert 'route="/v1/heartbeat",status="200"' in metrics
    schema = (await ask(pool, "GET", "/openapi.json")).json()
    assert "/v1/heartbeat" in schema["paths"]
    text = str(schema)
    names = set(schema["components"]["schemas"])
    assert {"Heartbeat", "NewTask", "TaskPatch", "LogBatch", "Cause", "NewWebhook"} <= names
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= names
