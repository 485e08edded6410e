"""`muster shardcast allowlist`: its output, files and error messages."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli.shardcast.allowlist import refresh
from protocol.errors import Unavailable
from protocol.identifiers import address
from protocol.wire.pool import AllowedNode, AllowList
from shardcast.allowlist import FirewallRules
from tests.kit.devnet import Said, run_muster

NODE = "0x52908400098527886E0F7030069857D2E4169EE7"
PAGES = {
    "": {"nodes": [{"node": NODE, "ip": "203.0.113.7"}, {"node": NODE, "ip": "2001:db8::7"}], "next_cursor": NODE},
    f"&cursor={NODE}": {"nodes": [{"node": NODE, "ip": "203.0.113.6"}], "next_cursor": None},
}


class Answers(BaseHTTPRequestHandler):
    """Serves an orchestrator's list in two pages to callers with the token."""

    def do_GET(self) -> None:
        page = PAGES.get(self.path.removeprefix("/v1/nodes/allowlist?limit=1000"))
        known = self.headers["Authorization"] == "Bearer right"
        body = AllowList.model_validate(page).model_dump_json().encode() if page and known else b""
        self.send_response(200 if body else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def orchestrator(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MUSTER_POOL_TOKEN", "right")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def allowlist(*arguments: str) -> Said:
    return run_muster("shardcast", "allowlist", *arguments)


def test_without_output_files_the_networks_of_all_pages_are_printed(orchestrator: str) -> None:
    networks = ["192.0.2.0/24", "203.0.113.6/31", "2001:db8::7/128"]
    said = allowlist("--orchestrator", orchestrator, "--also", "192.0.2.0/24")
    assert (said.code, said.out.split()) == (0, networks)
    said = allowlist("--orchestrator", orchestrator, "--also", "192.0.2.0/24", "--json")
    assert json.loads(said.out) == networks


def test_allowlists_are_written_for_nginx_and_nftables(orchestrator: str, tmp_path: Path) -> None:
    nginx, nftables = tmp_path / "allowed.conf", tmp_path / "allowed.nft"
    said = allowlist("--orchestrator", orchestrator, "--nginx", str(nginx), "--nftables", str(nftables))
    assert said.code == 0, said
    assert "2 networks are allowed" in said.err
    assert "203.0.113.6/31 1;" in nginx.read_text()
    assert "add element inet muster allowed6 { 2001:db8::7/128 }" in nftables.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--apply"], 1, "--nftables FILE"),
        (["--nginx-pid", "nginx.pid"], 1, "--nginx FILE"),
        (["--also", "everybody"], 1, "'everybody' is not a network"),
        (["--nginx", "ghost/allowed.conf"], 1, "ghost"),
        (["--nginx", "allowed.conf", "--nginx-pid", "ghost.pid"], 75, "check that nginx runs"),
        (["--every", "0"], 2, "--every"),
    ],
)
def test_a_mistake_is_reported_without_a_traceback(
    orchestrator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = allowlist("--orchestrator", orchestrator, *arguments)
    assert said.code == code, said
    assert words in said.err
    assert "Traceback" not in said.err


def test_a_wrong_token_leaves_the_allowlist_unchanged(
    orchestrator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_POOL_TOKEN", "wrong")
    listed = tmp_path / "allowed.conf"
    listed.write_text("203.0.113.1/32 1;\n")
    assert allowlist("--orchestrator", orchestrator, "--nginx", str(listed)).code == 1
    assert listed.read_text() == "203.0.113.1/32 1;\n"


class SilentOrchestrator:
    """Never answers a request for the list."""

    async def allowlist(self) -> AsyncIterator[AllowedNode]:
        await asyncio.Event().wait()
        yield AllowedNode(node=address(NODE), ip="203.0.113.7")


async def test_a_list_that_does_not_arrive_in_time_is_an_error_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cli.shardcast.allowlist.ROUND_TIMEOUT", timedelta(milliseconds=10))
    nginx = tmp_path / "allowed.conf"
    silent: Any = SilentOrchestrator()
    with pytest.raises(Unavailable, match=r"complete list within 0\.01 s") as caught:
        await refresh(silent, FirewallRules(nginx=nginx), also=())
    assert "connection to the orchestrator" in caught.value.hint
    assert not nginx.exists()
