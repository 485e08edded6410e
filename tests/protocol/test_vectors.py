"""The code reproduces the test vectors in docs/protocol.md and protocol/vectors.json, and refuses those to refuse."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import pytest

from protocol.identity.keys import Key
from protocol.identity.signing import (
    check_response,
    check_signature,
    read_stamp,
    request_message,
    response_message,
    sign_request,
    sign_response,
)
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Invite
from tests.kit.vectors import GROUPS, generate, reason, written

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
VECTORS = (files("protocol") / "vectors.json").read_text(encoding="utf-8")
NODE, SERVICE = Key(b"\x01" * 32), Key(b"\x02" * 32)
NONCE = bytes(range(16)).hex()
REQUEST_BODY, ANSWER_BODY = b'{"pool_id":7}', b'{"task":null}'
AT = datetime(2026, 1, 1, tzinfo=UTC)


def block(name: str) -> str:
    match = re.search(rf"```text {name}\n(.*?)\n```", PAGE, re.DOTALL)
    assert match is not None
    return match[1]


def headers(name: str) -> dict[str, str]:
    return dict(line.split(": ") for line in block(name).splitlines())


def test_the_request_vector_on_the_page_is_reproduced() -> None:
    stamp = sign_request(
        NODE,
        audience=SERVICE.address,
        method="POST",
        target="/v1/heartbeat?dry=1",
        body=REQUEST_BODY,
        at=AT,
        nonce=NONCE,
    )
    assert stamp.headers() == headers("request-headers")
    digest = hashlib.sha256(REQUEST_BODY).hexdigest()
    message = request_message(
        audience=SERVICE.address,
        method="POST",
        target="/v1/heartbeat?dry=1",
        body_sha256=digest,
        timestamp_ms=1767225600000,
        nonce=NONCE,
    )
    assert message.decode() == block("request-message")
    check_signature(
        read_stamp(headers("request-headers")), method="POST", target="/v1/heartbeat?dry=1", body_sha256=digest
    )


def test_the_answer_vector_on_the_page_is_reproduced() -> None:
    assert sign_response(SERVICE, address=NODE.address, nonce=NONCE, status=200, body=ANSWER_BODY) == headers(
        "response-headers"
    )
    digest = hashlib.sha256(ANSWER_BODY).hexdigest()
    message = response_message(address=NODE.address, nonce=NONCE, status=200, body_sha256=digest)
    assert message.decode() == block("response-message")
    check_response(
        headers("response-headers"),
        service=SERVICE.address,
        address=NODE.address,
        nonce=NONCE,
        status=200,
        body=ANSWER_BODY,
    )


def test_the_invite_vector_on_the_page_is_reproduced() -> None:
    invite = Invite(pool_id=7, domain_id=1, node=NODE.address, nonce=42, expiry=1767229200, url="https://pool.example")
    domain = SigningDomain(31337, SERVICE.address)
    assert headers("invite") == {
        "struct hash": invite.hash,
        "signing hash": "0x" + invite.signing_hash(domain).hex(),
        "signature": "0x" + invite.sign(SERVICE, domain).hex(),
    }


def test_the_file_of_vectors_is_the_one_that_the_code_writes() -> None:
    assert written(generate()) == VECTORS, "run `python -m tests.kit.vectors`, and check each changed line"


@pytest.mark.parametrize("name", GROUPS)
def test_vectors_in_the_file_are_accepted_or_refused_for_their_reason(name: str) -> None:
    _, check, _ = GROUPS[name]
    group = json.loads(VECTORS)["vectors"][name]
    assert [check(case["input"]) for case in group["accepted"]] == [case["output"] for case in group["accepted"]]
    assert [reason(check, case["input"]) for case in group["refused"]] == [case["reason"] for case in group["refused"]]
    assert group["accepted"]
    assert group["refused"]
    assert all(case["reason"] for case in group["refused"])
