"""The page as a browser receives it: files, headers, and contents that no file may have."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from orchestrator.api.page import PAGES, page_files
from tests.kit.memory_ledger import PoolUnderTest
from tests.kit.orchestrator import READER, TOKEN

RULES = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
POLICY = {
    **dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'"),
    **dict.fromkeys(("script-src", "style-src", "img-src", "connect-src"), "'self'"),
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
OUTSIDE = (
    "..%2fapp.py",
    "../app.py",
    "%2e%2e/app.py",
    "core",
    "core/",
    "main.mjs/",
    "/main.mjs",
    "main.mjs%00",
    "x" * 4000,
)


async def ask(pool: PoolUnderTest, path: str, *, method: str = "GET", **headers: str) -> httpx.Response:
    async with pool.http() as http:
        return await http.request(method, path, headers=headers)


async def test_the_orchestrators_root_redirects_to_the_page(pool: PoolUnderTest) -> None:
    for path, to in (("/", "page/"), *((each.rstrip("/"), each.lstrip("/")) for each in PAGES)):
        for method in ("GET", "HEAD"):
            answer = await ask(pool, path, method=method)
            assert (answer.status_code, answer.headers["location"]) == (307, to), "relative, for a proxy in front"
        async with pool.http() as http:
            page = await http.get(path, follow_redirects=True)
        assert (page.url.path, page.headers["content-type"]) == (f"/{to}", "text/html; charset=utf-8")


@pytest.mark.parametrize(("path", "start"), PAGES.items())
async def test_every_file_is_served_without_a_token_and_with_strict_security_headers(
    pool: PoolUnderTest, path: str, start: str
) -> None:
    others = set(PAGES.values()) - {start}
    assert [(await ask(pool, path + name)).status_code for name in others] == [404] * len(others)
    for name in ("", *(set(page_files()) - others)):
        answer = await ask(pool, path + name)
        assert answer.status_code == 200, name
        assert "set-cookie" not in answer.headers
        assert {key: answer.headers.get(key) for key in RULES} == RULES, name
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy == POLICY, name
        head = await ask(pool, path + name, method="HEAD")
        assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", answer.headers["etag"])


async def test_an_unchanged_file_is_not_sent_again(pool: PoolUnderTest) -> None:
    tag = (await ask(pool, "/page/main.mjs")).headers["etag"]
    again = await ask(pool, "/page/main.mjs", **{"If-None-Match": f'W/"x", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert "content-security-policy" in again.headers
    assert (await ask(pool, "/page/main.mjs", **{"If-None-Match": '"another"'})).status_code == 200


async def test_no_file_outside_the_page_is_served(pool: PoolUnderTest) -> None:
    for name in OUTSIDE:
        answer = await ask(pool, f"/page/{name}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), name


async def test_the_page_is_not_part_of_the_api(pool: PoolUnderTest) -> None:
    paths = (await ask(pool, "/openapi.json")).json()["paths"]
    assert all(path.startswith(("/v1/", "/healthz", "/readyz", "/metrics")) for path in paths)


class _Reading(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize("start", PAGES.values())
def test_the_html_has_no_inline_code_no_styles_and_no_external_resources(start: str) -> None:
    reading = _Reading()
    reading.feed(page_files()[start].body.decode())
    script = {"index.html": "main.mjs"}.get(start, start.replace(".html", ".mjs"))
    for tag, attributes in reading.tags:
        assert not any(name == "style" or name.startswith("on") for name in attributes), (tag, attributes)
        assert tag != "script" or attributes == {"type": "module", "src": script}
        assert tag not in {"style", "base", "form", "iframe", "object", "embed"}
        for name in ("src", "href"):
            wanted = attributes.get(name)
            assert wanted is None or wanted.startswith("#") or wanted in page_files(), wanted


def test_no_file_of_the_page_loads_external_resources_or_contains_a_token() -> None:
    for name, file in page_files().items():
        text = file.body.decode()
        assert re.search(r"@import|\burl\([\"'h]|mst_[0-9a-f]{8}_", text) is None, name
        elsewhere = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert elsewhere <= {"http://www.w3.org/2000/svg"}, name


async def test_every_request_of_the_pages_modules_is_answered(pool: PoolUnderTest) -> None:
    """Requests the paths and parameters in the page's modules, with a read-only token."""
    paths = (await ask(pool, "/openapi.json")).json()["paths"]
    text = "\n".join(file.body.decode() for name, file in page_files().items() if name.endswith(".mjs"))
    asked = set(re.findall(r"[\"`](/v1/[a-z/]+)[\"`/]", text)) - {"/v1/nodes"}
    rests = re.findall(r"nodePath\(\w+(?:, \"(\w+)\")?\)", text)
    actions = re.findall(r"^    name: \"(\w+)\",$", page_files()["rows/actions.mjs"].body.decode(), re.MULTILINE)
    known = {
        "/v1/nodes",
        "/v1/money",
        "/v1/money/nodes",
        "/v1/pool",
        "/v1/public",
        "/v1/me",
        "/v1/me/session",
        "/v1/me/sessions",
        "/v1/me/works",
        "/v1/run",
        "/v1/run/answers",
        "/v1/run/figures",
        "/v1/run/samples",
        "/v1/run/trained",
        "/v1/run/rollouts",
        "/v1/tasks",
        "/v1/events",
        "/v1/relays",
    }
    assert asked | {"/v1/nodes"} == known <= set(paths)
    assert {"/v1/run/rollouts/{key}/evidence", "/v1/me/works/{key}/evidence", "/v1/tasks/{task_id}"} <= set(paths)
    assert {"", "history", "metrics", "logs", "account"} == set(rests)
    for rest in rests:
        assert "get" in paths["/v1/nodes/{node}" + (f"/{rest}" if rest else "")]
    assert actions == ["restart", "drain", "resume", "ban", "unban"]
    for action in actions:
        assert "post" in paths[f"/v1/nodes/{{node}}/{action}"]


@pytest.mark.parametrize("token", [TOKEN, READER], ids=["admin", "read"])
async def test_markup_in_node_data_is_returned_as_json_with_nosniff(pool: PoolUnderTest, token: str) -> None:
    markup = "<img src=x onerror=alert(1)>"
    key = await pool.member(labels={"zone": markup})
    await pool.beat(key, worker_version=markup)
    async with pool.http() as http:
        answer = await http.get(f"/v1/nodes/{key.address}", headers={"Authorization": f"Bearer {token}"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["labels"]["zone"] == markup
