"""Signed requests: every invalid form is refused with its error code."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from protocol.errors import Conflict, InvalidInput, RateLimited, Unauthenticated
from protocol.http.rates import Rate
from protocol.http.replay_guard import ReplayGuard
from protocol.http.verification import RequestVerifier
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.secp256k1 import HALF_ORDER
from protocol.identity.signing import RequestStamp, check_signature, read_stamp, sign_request
from protocol.redis.connection import RedisKeys, connect_redis
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import ManualClock
from tests.protocol.conftest import BODY_LIMIT, NODE, OTHER_SERVICE, SERVICE, STRANGER, build_app
from tests.protocol.scripts import CountAdmitted

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
GOOD_BODY = json.dumps({"text": "hello"}).encode()


@dataclass(frozen=True)
class Sent:
    """A signed request before it is sent; tests alter it."""

    headers: dict[str, str]
    method: str = "POST"
    target: str = "/v1/notes"
    body: bytes = GOOD_BODY
    extra: list[tuple[str, str]] = field(default_factory=list)

    async def to(self, http: httpx.AsyncClient) -> httpx.Response:
        headers = [*self.headers.items(), *self.extra]
        return await http.request(self.method, self.target, headers=headers, content=self.body)


def signed(
    clock: ManualClock,
    *,
    key: Key = NODE,
    audience: Address = SERVICE.address,
    method: str = "POST",
    target: str = "/v1/notes",
    body: bytes = GOOD_BODY,
    later: timedelta = timedelta(),
) -> Sent:
    stamp = sign_request(key, audience=audience, method=method, target=target, body=body, at=clock.now() + later)
    return Sent(stamp.headers(), method=method, target=target, body=body)


def with_header(name: str, change: Callable[[str], str]) -> Callable[[ManualClock], Sent]:
    def make(clock: ManualClock) -> Sent:
        sent = signed(clock)
        return replace(sent, headers=sent.headers | {name: change(sent.headers[name])})

    return make


def without(name: str) -> Callable[[ManualClock], Sent]:
    def make(clock: ManualClock) -> Sent:
        sent = signed(clock)
        return replace(sent, headers={key: value for key, value in sent.headers.items() if key != name})

    return make


def twin_signature(signature: str) -> str:
    """Returns the other valid signature of the same message: s mirrored, v flipped."""
    raw = bytes.fromhex(signature[2:])
    s = ORDER - int.from_bytes(raw[32:64], "big")
    assert s > HALF_ORDER
    return "0x" + (raw[:32] + s.to_bytes(32, "big") + bytes((55 - raw[64],))).hex()


def low_v(signature: str) -> str:
    return signature[:-2] + f"{int(signature[-2:], 16) - 27:02x}"


WRONG: dict[str, tuple[Callable[[ManualClock], Sent], int, str]] = {
    "no address": (without("X-Muster-Address"), 401, "unsigned"),
    "no audience": (without("X-Muster-Audience"), 401, "unsigned"),
    "no timestamp": (without("X-Muster-Timestamp"), 401, "unsigned"),
    "no nonce": (without("X-Muster-Nonce"), 401, "unsigned"),
    "no signature": (without("X-Muster-Signature"), 401, "unsigned"),
    "altered body": (lambda clock: replace(signed(clock), body=b'{"text":"altered"}'), 401, "bad-signature"),
    "body taken away": (lambda clock: replace(signed(clock), body=b""), 401, "bad-signature"),
    "other method": (lambda clock: replace(signed(clock), method="PUT"), 401, "bad-signature"),
    "query added": (lambda clock: replace(signed(clock), target="/v1/notes?q=1"), 401, "bad-signature"),
    "query changed": (
        lambda clock: replace(signed(clock, target="/v1/notes?a=1"), target="/v1/notes?a=2"),
        401,
        "bad-signature",
    ),
    "signed for another service": (lambda clock: signed(clock, audience=OTHER_SERVICE.address), 401, "wrong-audience"),
    "audience rewritten": (with_header("X-Muster-Audience", lambda _: OTHER_SERVICE.address), 401, "bad-signature"),
    "somebody else's name": (with_header("X-Muster-Address", lambda _: STRANGER.address), 401, "bad-signature"),
    "stale by 61 s": (lambda clock: signed(clock, later=timedelta(seconds=-61)), 401, "clock"),
    "from 61 s ahead": (lambda clock: signed(clock, later=timedelta(seconds=61)), 401, "clock"),
    "timestamp rewritten": (with_header("X-Muster-Timestamp", lambda t: str(int(t) + 1)), 401, "bad-signature"),
    "timestamp in seconds": (with_header("X-Muster-Timestamp", lambda t: t[:-3]), 400, "malformed-header"),
    "timestamp with a sign": (with_header("X-Muster-Timestamp", lambda t: "+" + t), 400, "malformed-header"),
    "nonce rewritten": (with_header("X-Muster-Nonce", lambda _: "0" * 32), 401, "bad-signature"),
    "nonce too short": (with_header("X-Muster-Nonce", lambda n: n[:-2]), 400, "malformed-header"),
    "nonce in capitals": (with_header("X-Muster-Nonce", lambda _: "A" * 32), 400, "malformed-header"),
    "lower-case address": (with_header("X-Muster-Address", str.lower), 400, "malformed-header"),
    "upper-case address": (with_header("X-Muster-Address", lambda a: "0x" + a[2:].upper()), 400, "malformed-header"),
    "address with a typing error": (with_header("X-Muster-Address", lambda a: a.swapcase()), 400, "malformed-header"),
    "lower-case audience": (with_header("X-Muster-Audience", str.lower), 400, "malformed-header"),
    "upper-case signature": (
        with_header("X-Muster-Signature", lambda s: "0x" + s[2:].upper()),
        400,
        "malformed-header",
    ),
    "signature without 0x": (with_header("X-Muster-Signature", lambda s: s[2:]), 400, "malformed-header"),
    "signature of zeros": (with_header("X-Muster-Signature", lambda _: "0x" + "00" * 65), 401, "bad-signature"),
    "r beyond the curve": (
        with_header("X-Muster-Signature", lambda s: "0x" + "ff" * 32 + s[66:]),
        401,
        "bad-signature",
    ),
    "malleable twin": (with_header("X-Muster-Signature", twin_signature), 401, "bad-signature"),
    "v of 0 or 1": (with_header("X-Muster-Signature", low_v), 401, "bad-signature"),
    "header twice": (
        lambda clock: replace(signed(clock), extra=[("X-Muster-Address", STRANGER.address)]),
        400,
        "malformed-header",
    ),
    "oversized": (lambda clock: signed(clock, body=b"x" * (BODY_LIMIT + 1)), 413, "too-large"),
    "unknown address": (lambda clock: signed(clock, key=STRANGER), 403, "forbidden"),
    "not JSON": (lambda clock: signed(clock, body=b"{"), 422, "unprocessable"),
    "a field missing": (lambda clock: signed(clock, body=b"{}"), 422, "unprocessable"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_an_invalid_request_is_refused_with_its_error_code(
    name: str, http: httpx.AsyncClient, clock: ManualClock
) -> None:
    make, status, code = WRONG[name]
    response = await make(clock).to(http)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["detail"]
    assert problem["instance"].endswith(response.headers["x-request-id"])


async def test_a_valid_request_is_served_as_its_signer(http: httpx.AsyncClient, clock: ManualClock) -> None:
    response = await signed(clock).to(http)
    assert response.status_code == 200
    assert response.json() == {"address": NODE.address, "text": "hello"}


@pytest.mark.parametrize("seconds", [-60, 60])
async def test_the_edge_of_the_clock_window_is_accepted(
    seconds: int, http: httpx.AsyncClient, clock: ManualClock
) -> None:
    assert (await signed(clock, later=timedelta(seconds=seconds)).to(http)).status_code == 200


@pytest.mark.parametrize("target", ["/v1/notes?a=1&b=%20", "/v1/notes?q=a%2Fb+c", "/v1/notes?a=1&a=2&"])
async def test_the_query_is_signed_as_sent(target: str, http: httpx.AsyncClient, clock: ManualClock) -> None:
    sent = signed(clock, method="GET", target=target, body=b"")
    assert (await sent.to(http)).status_code == 200


async def test_a_replayed_request_is_refused_as_long_as_its_timestamp_is_valid(
    http: httpx.AsyncClient, clock: ManualClock
) -> None:
    sent = signed(clock, later=timedelta(seconds=59))
    assert (await sent.to(http)).status_code == 200
    for seconds in (0, 60, 58):
        await clock.turn(timedelta(seconds=seconds))
        assert (await sent.to(http)).json()["code"] == "replayed"
    await clock.turn(timedelta(seconds=2))
    assert (await sent.to(http)).json()["code"] == "clock"


async def test_a_nonce_is_kept_longer_than_its_request_is_valid(
    http: httpx.AsyncClient, clock: ManualClock, redis: Redis
) -> None:
    await signed(clock).to(http)
    (nonce,) = await redis.keys("muster:{7}:nonce:*")
    assert await redis.pttl(nonce) > 120_000


async def test_an_address_over_its_rate_gets_retry_after(http: httpx.AsyncClient, clock: ManualClock) -> None:
    answers = [await signed(clock).to(http) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    assert answers[-1].headers["retry-after"] == "1"
    assert answers[-1].json()["retryable"]
    await clock.turn(timedelta(seconds=1))
    assert (await signed(clock).to(http)).status_code == 200


async def test_replays_do_not_count_towards_the_signers_rate(http: httpx.AsyncClient, clock: ManualClock) -> None:
    sent = signed(clock)
    for _ in range(20):
        await sent.to(http)
    assert [(await signed(clock).to(http)).status_code for _ in range(4)] == [200] * 4


async def test_a_backward_clock_jump_locks_no_caller_out(http: httpx.AsyncClient, clock: ManualClock) -> None:
    await signed(clock).to(http)
    clock.jump(timedelta(days=-30))
    assert (await signed(clock).to(http)).status_code == 200


async def test_a_chunked_body_is_stopped_at_the_limit(http: httpx.AsyncClient, clock: ManualClock) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b"x" * 500

    response = await http.post("/v1/notes", headers=signed(clock).headers, content=endless())
    assert response.status_code == 413
    assert response.json()["code"] == "too-large"


async def test_an_invalid_content_length_is_refused(http: httpx.AsyncClient, clock: ManualClock) -> None:
    response = await http.post("/v1/notes", headers=signed(clock).headers | {"Content-Length": "1e3"}, content=b"")
    assert response.json()["code"] == "malformed-header"


async def test_without_redis_requests_are_refused(clock: ManualClock) -> None:
    down = connect_redis("redis://127.0.0.1:1/0", timeout=timedelta(milliseconds=200), retries=0)
    transport = httpx.ASGITransport(app=build_app(down, clock))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        response = await signed(clock).to(http)
    problem = response.json()
    assert (response.status_code, problem["code"], problem["retryable"]) == (503, "store-unavailable", True)


async def test_cheap_checks_come_before_expensive_ones(http: httpx.AsyncClient, clock: ManualClock) -> None:
    """Each request has two faults; the cheaper check must report its fault."""
    oversized = replace(signed(clock, body=b"x" * (BODY_LIMIT + 1)), headers={})
    assert (await oversized.to(http)).status_code == 413
    stale = signed(clock, later=timedelta(hours=-1), audience=OTHER_SERVICE.address)
    assert (await stale.to(http)).json()["code"] == "clock"
    forged = replace(signed(clock, audience=OTHER_SERVICE.address), body=b"altered")
    assert (await forged.to(http)).json()["code"] == "bad-signature"
    elsewhere = signed(clock, audience=OTHER_SERVICE.address, key=STRANGER)
    assert (await elsewhere.to(http)).json()["code"] == "wrong-audience"
    sent = signed(clock, key=STRANGER)
    assert [(await sent.to(http)).json()["code"] for _ in range(2)] == ["forbidden", "forbidden"]


async def test_a_refused_request_stores_nothing_in_redis(
    http: httpx.AsyncClient, clock: ManualClock, redis: Redis
) -> None:
    await signed(clock, key=STRANGER).to(http)
    await replace(signed(clock), body=b"altered").to(http)
    assert await redis.dbsize() == 0


async def test_two_audiences_are_accepted_while_a_key_is_rotated(app: FastAPI, http: httpx.AsyncClient) -> None:
    clock = app.state.clock
    admission = app.state.verifier.admission
    app.state.verifier = RequestVerifier(
        audience=lambda: (SERVICE.address, OTHER_SERVICE.address), admission=admission, clock=clock
    )
    for service in (SERVICE, OTHER_SERVICE):
        assert (await signed(clock, audience=service.address).to(http)).status_code == 200


async def test_a_fast_route_admits_and_works_in_one_script(redis: Redis, clock: ManualClock) -> None:
    admission = ReplayGuard(
        redis, keys=RedisKeys("7"), rate=Rate(count=1, per=timedelta(seconds=1), burst=2), clock=clock
    )
    scripts = ScriptRunner(redis, keys=RedisKeys("7"))
    limits = admission.limits
    scripts.set_constants(
        CountAdmitted,
        nonce_kept_ms=limits.nonce_kept_ms,
        interval_us=limits.interval_us,
        tolerance_us=limits.tolerance_us,
    )

    async def beat(nonce: str) -> None:
        call = CountAdmitted(address=NODE.address, nonce=nonce, now_us=admission.now_us())
        reply = await scripts.run(call)
        admission.check(reply.outcome, reply.wait_us)

    await beat("a" * 32)
    await beat("b" * 32)
    with pytest.raises(Conflict, match="before"):
        await beat("a" * 32)
    with pytest.raises(RateLimited):
        await beat("c" * 32)
    assert await redis.get("muster:{7}:beats") == b"2"


async def test_many_simultaneous_requests_queue_for_redis_and_are_admitted(redis_url: str, clock: ManualClock) -> None:
    few = connect_redis(redis_url, connections=3)
    rate = Rate(count=1000, per=timedelta(seconds=1), burst=1000)
    admission = ReplayGuard(few, keys=RedisKeys("7"), rate=rate, clock=clock)
    await asyncio.gather(*(admission.admit(NODE.address, f"{number:032x}") for number in range(300)))
    await few.aclose()


async def test_one_of_many_simultaneous_replays_is_admitted(redis: Redis, clock: ManualClock) -> None:
    rate = Rate(count=1000, per=timedelta(seconds=1), burst=1000)
    admission = ReplayGuard(redis, keys=RedisKeys("7"), rate=rate, clock=clock)
    tries = [admission.admit(NODE.address, "a" * 32) for _ in range(50)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 49


STAMP = sign_request(
    NODE, audience=SERVICE.address, method="POST", target="/v1/notes?a=1", body=GOOD_BODY, at=ManualClock().now()
)
WHOLE = (STAMP, "POST", "/v1/notes?a=1", GOOD_BODY)

alterations = st.tuples(
    st.fixed_dictionaries(
        {},
        optional={
            "address": st.sampled_from([NODE.address, STRANGER.address, SERVICE.address]),
            "audience": st.sampled_from([SERVICE.address, OTHER_SERVICE.address]),
            "timestamp_ms": st.integers(10**11, 10**14),
            "nonce": st.binary(min_size=16, max_size=16).map(bytes.hex),
            "signature": st.one_of(
                st.binary(min_size=65, max_size=65),
                st.tuples(st.integers(0, 64), st.integers(1, 255)).map(
                    lambda change: bytes(
                        b ^ (change[1] if i == change[0] else 0) for i, b in enumerate(STAMP.signature)
                    )
                ),
            ),
        },
    ),
    st.sampled_from(["POST", "PUT", "GET", "DELETE"]),
    st.one_of(st.just(WHOLE[2]), st.from_regex(r"/[!-~]{0,30}", fullmatch=True)),
    st.one_of(st.just(GOOD_BODY), st.binary(max_size=40)),
)


@given(alterations)
def test_no_altered_request_is_accepted(altered: tuple[dict[str, object], str, str, bytes]) -> None:
    changes, method, target, body = altered
    stamp = replace(STAMP, **changes)  # type: ignore[arg-type]  # the strategy's values have the fields' types
    whole = (stamp, method, target, body)
    try:
        again = read_stamp(stamp.headers())
        check_signature(again, method=method, target=target, body_sha256=hashlib.sha256(body).hexdigest())
        refused = False
    except (InvalidInput, Unauthenticated):
        refused = True
    assert refused == (whole != WHOLE)


@given(st.dictionaries(st.sampled_from(list(STAMP.headers())), st.text(max_size=140), max_size=5))
def test_any_headers_are_parsed_or_raise_a_muster_error(garbage: dict[str, str]) -> None:
    try:
        stamp = read_stamp(STAMP.headers() | garbage)
    except (InvalidInput, Unauthenticated):
        stamp = STAMP
    assert isinstance(stamp, RequestStamp)


def test_a_bad_signature_is_reported_with_a_hint() -> None:
    with pytest.raises(Unauthenticated) as caught:
        check_signature(STAMP, method="POST", target="/v1/other", body_sha256="0" * 64)
    assert "path with query" in caught.value.hint
