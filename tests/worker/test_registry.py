"""The registries that the worker lets the engine ask, the login that it sends, and the errors that it reports."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import ClassVar

import pytest

from protocol.errors import Unavailable
from protocol.identity.keys import Key
from protocol.wire.tasks import RegistryCredentials
from worker.runtime.docker import DockerRuntime
from worker.runtime.interface import ImageMissing, LaunchRefused, PullFailed
from worker.runtime.network_filter import NetworkFilter
from worker.runtime.registries import pull_error, require_public_registry


class _Engine(BaseHTTPRequestHandler):
    """The routes of a Docker engine that a pull uses; records the login of each pull."""

    logins: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self._answer(200 if "version" in self.path else 404, b'{"ApiVersion": "1.43", "message": "No such image"}')

    def do_POST(self) -> None:
        header = self.headers.get("X-Registry-Auth", "")
        self.logins.append(json.loads(base64.urlsafe_b64decode(header)) if header else {})
        self._answer(200, b'{"status": "done"}\n')

    def address_string(self) -> str:
        return "unix"

    def log_request(self, *_: object) -> None:
        """Does nothing."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


async def test_an_image_of_a_pool_is_never_pulled_with_the_contributors_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool's owner could otherwise run and read private images of the contributor."""
    mine = {"auths": {"registry.example": {"auth": base64.b64encode(b"me:mine").decode()}}}
    (tmp_path / "config.json").write_text(json.dumps(mine))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with ThreadingUnixStreamServer(str(tmp_path / "engine.sock"), _Engine) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        runtime = DockerRuntime(Key.generate().address, socket=tmp_path / "engine.sock")
        given = RegistryCredentials.model_validate({"username": "u", "password": "p"})
        for credentials in (None, given):
            await runtime.pull("registry.example/private/x:1", credentials=credentials, progress=lambda _: None)
        await runtime.close()
        server.shutdown()
    assert [login.get("username") for login in _Engine.logins] == [None, "u"]


NAMES = {
    "registry.example": ["93.184.215.14"],
    "REGISTRY": ["10.0.0.9"],
    "router.example": ["192.168.1.1"],
    "half.example": ["93.184.215.14", "10.0.0.8"],
    "mine.example": ["93.184.215.20"],
    "127.0.0.1": ["127.0.0.1"],
    "127.1": ["127.0.0.1"],
    "::1": ["::1"],
    "169.254.169.254": ["169.254.169.254"],
    "10.0.0.9": ["10.0.0.9"],
}


@pytest.mark.parametrize(
    ("image", "allowed"),
    [
        ("python", True),
        ("library/python:3", True),
        ("docker.io/library/python", True),
        ("registry.example:5000/x@sha256:" + "0" * 64, True),
        ("10.0.0.9/x", True),  # in the allowed networks
        ("localhost/x", False),
        ("localhost:5000/x", False),
        ("127.0.0.1:80/x", False),
        ("127.1:80/x", False),
        ("[::1]:5000/x", False),
        ("169.254.169.254/latest/meta-data", False),
        ("router.example/x", False),
        ("half.example/x", False),
        ("mine.example/x", False),  # a public address of this machine
    ],
)
async def test_only_public_and_allowed_registries_are_asked(
    image: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.runtime.registries.own_addresses", lambda: [IPv4Address("93.184.215.20")])
    monkeypatch.setattr("worker.runtime.registries.addresses_of", _resolved)
    networks = [IPv4Network("10.0.0.9/32")]
    if allowed:
        await require_public_registry(image, networks)
        return
    with pytest.raises(LaunchRefused, match="in a private network or on this machine") as refused:
        await require_public_registry(image, networks)
    assert refused.value.code == "registry-not-public"


async def test_the_engine_is_not_told_to_pull_from_a_denied_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.runtime.registries.addresses_of", _resolved)
    _Engine.logins.clear()
    with ThreadingUnixStreamServer(str(tmp_path / "engine.sock"), _Engine) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        runtime = DockerRuntime(Key.generate().address, socket=tmp_path / "engine.sock", network_filter=NetworkFilter())
        for image, error in (("REGISTRY/x", LaunchRefused), ("unknown.example/x", PullFailed)):
            with pytest.raises(error):
                await runtime.pull(image, credentials=None, progress=lambda _: None)
        assert _Engine.logins == []
        await runtime.pull("registry.example/x", credentials=None, progress=lambda _: None)
        assert len(_Engine.logins) == 1
        await runtime.close()
        server.shutdown()


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("manifest unknown: <router admin>", ImageMissing, "does not exist, or access is denied"),
        ("denied: <router admin>", ImageMissing, "the registry refuses access"),
        ("Get https://r: dial tcp 10.0.0.9:443: connect: connection refused", PullFailed, "unreachable"),
        ("invalid character '<' looking for beginning of value: <router admin>", PullFailed, "the engine failed"),
    ],
)
def test_the_owner_learns_the_kind_of_a_failed_pull_and_not_the_engines_text(
    text: str, kind: type[ImageMissing | PullFailed], said: str
) -> None:
    error = pull_error("r/x:1", text)
    assert type(error) is kind
    assert said in error.detail
    assert "router" not in error.detail
    assert "10.0.0.9" not in error.detail


async def _resolved(host: str, port: int) -> list[str]:
    if host not in NAMES:
        raise Unavailable(f"the host name {host} can't be resolved")
    return NAMES[host]
