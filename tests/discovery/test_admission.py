"""Admission of requests to discovery: signature, nonce, audience, age and rate."""

from __future__ import annotations

from datetime import timedelta

import pytest

from protocol.identity.keys import Key
from protocol.identity.signing import sign_request
from tests.kit.discovery import NODE, ORCHESTRATOR, POOL, SERVICE, Place, registration
from tests.kit.fuzzing import operations

OPEN = ("/healthz", "/readyz", "/metrics", "/v1/identity")
OWN = f"/v1/nodes/{NODE.address}"


async def test_every_route_except_identity_and_health_requires_a_signature(place: Place) -> None:
    found = [one for one in operations(place.app) if one[1] not in OPEN]
    assert len(found) == 8
    for method, path in found:
        where = path.format(node=NODE.address, pool_id=POOL, nonce=1)
        answer = await place.http().request(method, where, content=b"{}" if method in {"PUT", "POST"} else None)
        assert (answer.status_code, answer.json()["code"]) == (401, "unsigned"), (method, path)


@pytest.mark.parametrize(
    ("what", "status", "code"),
    [
        ("as it should be", 200, None),
        ("twice", 409, "replayed"),
        ("for another service", 401, "wrong-audience"),
        ("too late", 401, "clock"),
        ("too early", 401, "clock"),
        ("with another query", 422, "unknown-parameter"),
        ("with another body", 401, "bad-signature"),
        ("by another method", 401, "bad-signature"),
        ("under another name", 401, "bad-signature"),
    ],
)
async def test_an_altered_late_or_repeated_request_is_refused(
    place: Place, what: str, status: int, code: str | None
) -> None:
    shift = {"too late": timedelta(seconds=-61), "too early": timedelta(seconds=61)}.get(what, timedelta())
    body = registration().model_dump_json().encode()
    stamp = sign_request(
        NODE,
        audience=Key.generate().address if what == "for another service" else SERVICE.address,
        method="PUT",
        target=OWN,
        body=body,
        at=place.clock.now() + shift,
    )
    headers = stamp.headers()
    if what == "under another name":
        headers["X-Muster-Address"] = ORCHESTRATOR.address
    method = "DELETE" if what == "by another method" else "PUT"
    target = OWN + ("?limit=1" if what == "with another query" else "")
    content = body.replace(b"A CPU", b"B CPU") if what == "with another body" else body
    http = place.http()
    answer = await http.request(method, target, content=content, headers=headers)
    if what == "twice":
        assert answer.status_code == 200
        answer = await http.request(method, target, content=content, headers=headers)
    assert answer.status_code == status
    if code is not None:
        problem = answer.json()
        assert problem["code"] == code
        assert problem["detail"]
        assert answer.headers["content-type"].startswith("application/problem+json")


async def test_the_request_rate_of_one_node_is_limited(place: Place) -> None:
    statuses, http = [], place.http()
    for _ in range(220):
        stamp = sign_request(NODE, audience=SERVICE.address, method="GET", target=OWN, at=place.clock.now())
        answer = await http.get(OWN, headers=stamp.headers())
        statuses.append(answer.status_code)
        if answer.status_code == 429:
            assert int(answer.headers["Retry-After"]) >= 1
            break
    assert statuses[-1] == 429
