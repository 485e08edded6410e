"""Owner routes accept a token of sufficient scope or the manager's signature, nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from pydantic import ValidationError

import protocol.http.tokens
from protocol.errors import InvalidInput, Unauthenticated
from protocol.http.client import RequestSigner
from protocol.http.tokens import OwnerRequest, TokenBook, TokenSetting, hash_token, new_token, owner_access
from protocol.identifiers import Address
from protocol.identity.scopes import Scope
from protocol.runtime.clock import ManualClock
from tests.protocol.conftest import NODE, SERVICE, STRANGER, Note

TOKENS = {scope: new_token() for scope in Scope}
HASHES = [TokenSetting(name=f"{scope} token", scope=scope, hash=hash_token(token)) for scope, token in TOKENS.items()]


@pytest.fixture
async def pool(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    app.state.tokens = TokenBook(HASHES)

    async def is_manager(address: Address, _request: Request) -> bool:
        return address == NODE.address

    for scope in Scope:
        access = Depends(owner_access(scope, is_manager=is_manager, body_limit=100))

        @app.post(f"/pool/{scope}")
        async def act(owner: OwnerRequest = access) -> dict[str, str]:
            return {"name": owner.name, "text": owner.read(Note).text}

    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://pool") as client:
        yield client


async def act(pool: httpx.AsyncClient, scope: Scope, authorization: str | None, text: str = "x") -> httpx.Response:
    headers = {} if authorization is None else {"Authorization": authorization}
    return await pool.post(f"/pool/{scope}", json={"text": text}, headers=headers)


@pytest.mark.parametrize("held", Scope)
@pytest.mark.parametrize("needed", Scope)
async def test_a_scope_includes_lower_scopes(held: Scope, needed: Scope, pool: httpx.AsyncClient) -> None:
    answer = await act(pool, needed, f"Bearer {TOKENS[held]}")
    enough = list(Scope).index(held) >= list(Scope).index(needed)
    assert answer.status_code == (200 if enough else 403)
    if enough:
        assert answer.json()["name"] == f"{held} token"
    else:
        assert answer.json()["code"] == "scope"


def last_letter_changed(token: str) -> str:
    return token[:-2] + ("AA" if token[-2:] != "AA" else "BB")


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        pytest.param(None, "no-token", id="no header"),
        pytest.param("", "no-token", id="empty"),
        pytest.param("Bearer", "no-token", id="only the scheme"),
        pytest.param("Basic dXNlcjpwdw==", "no-token", id="another scheme"),
        pytest.param("Bearer x", "bad-token", id="malformed token"),
        pytest.param(f"Bearer {new_token()}", "bad-token", id="a new token"),
        pytest.param(f"Bearer {last_letter_changed(TOKENS[Scope.ADMIN])}", "bad-token", id="one letter changed"),
        pytest.param(f"Bearer {TOKENS[Scope.ADMIN]}x", "bad-token", id="one letter more"),
        pytest.param(f"Bearer {HASHES[2].hash}", "bad-token", id="the hash"),
    ],
)
async def test_a_wrong_token_is_refused_and_not_repeated(
    authorization: str | None, code: str, pool: httpx.AsyncClient
) -> None:
    answer = await act(pool, Scope.READ, authorization)
    assert (answer.status_code, answer.json()["code"]) == (401, code)
    assert answer.headers["www-authenticate"]
    assert "mst_0" not in answer.text


async def test_the_managers_signature_replaces_an_admin_token(pool: httpx.AsyncClient, clock: ManualClock) -> None:
    def signer(key: object) -> RequestSigner:
        return RequestSigner(key, audience=SERVICE.address, clock=clock)  # type: ignore[arg-type]  # the parameters below are keys

    answer = await pool.post("/pool/admin", json={"text": "x"}, auth=signer(NODE))
    assert (answer.status_code, answer.json()["name"]) == (200, NODE.address)
    refused = await pool.post("/pool/read", json={"text": "x"}, auth=signer(STRANGER))
    assert (refused.status_code, refused.json()["code"]) == (403, "role")


async def test_a_valid_token_does_not_excuse_a_bad_signature(pool: httpx.AsyncClient) -> None:
    headers = {"Authorization": f"Bearer {TOKENS[Scope.ADMIN]}", "X-Muster-Address": NODE.address}
    assert (await pool.post("/pool/read", json={"text": "x"}, headers=headers)).json()["code"] == "unsigned"


async def test_bodies_of_owner_requests_are_bounded(pool: httpx.AsyncClient) -> None:
    answer = await act(pool, Scope.READ, f"Bearer {TOKENS[Scope.READ]}", text="x" * 100)
    assert answer.status_code == 413


async def test_scrypt_runs_once_per_token_and_never_for_unknown_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    stretched = 0
    stretch = protocol.http.tokens._stretch

    def counting(secret: str, salt: bytes) -> bytes:
        nonlocal stretched
        stretched += 1
        return stretch(secret, salt)

    monkeypatch.setattr(protocol.http.tokens, "_stretch", counting)
    book = TokenBook(HASHES)
    for _ in range(5):
        assert (await book.check(TOKENS[Scope.READ])).scope is Scope.READ
        with pytest.raises(Unauthenticated):
            await book.check(new_token())
    assert stretched == 1
    wrong = last_letter_changed(TOKENS[Scope.READ])
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await book.check(wrong)
    assert stretched == 3


def test_a_token_hash_does_not_contain_the_token() -> None:
    token = new_token()
    assert token.split("_", 2)[2] not in hash_token(token)
    assert hash_token(token) != hash_token(token)
    assert hashlib.sha256(token.encode()).hexdigest() not in hash_token(token)


@pytest.mark.parametrize("text", ["", "mst_", "hunter2", "mst_00000000_short"])
def test_a_malformed_token_cannot_be_hashed(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        hash_token(text)
    assert not text or text not in str(caught.value)


def test_settings_refuse_a_plain_token_and_two_entries_for_one_token() -> None:
    with pytest.raises(ValidationError) as caught:
        TokenSetting(name="x", scope=Scope.READ, hash="mst_plain_token")
    assert "mst_plain_token" not in str(caught.value)
    with pytest.raises(InvalidInput):
        TokenBook([HASHES[0], HASHES[0]])
