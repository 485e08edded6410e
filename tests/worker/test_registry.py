"""The login that the worker sends to an image registry."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import ClassVar

import pytest

from protocol.identity.keys import Key
from protocol.wire.tasks import RegistryCredentials
from worker.runtime.docker import DockerRuntime


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
