"""Routes of the pool's web pages, for its owner and for everybody: static files with strict security headers.

The files are public, because they contain no data of the pool. A page's script reads the data from the API. See
docs/decisions/0053 and 0099.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from orchestrator.dependencies import dependencies_of
from protocol.errors import NotFound
from protocol.http.preconditions import EntityTags
from protocol.wire.me import ME_PATH
from protocol.wire.pool import PAGE_PATH
from protocol.wire.public import PUBLIC_PATH

PAGES = {PAGE_PATH: "index.html", PUBLIC_PATH: "public.html", ME_PATH: "me.html"}
"""HTML file of each page, by the page's path. The pages share all other files, and each is complete below its path."""

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Content security policy: own files only, no requests to other hosts, no inline markup or code."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Browsers revalidate each time and get 304, so that after an upgrade they don't mix files of two releases.
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page."""

    body: bytes
    media_type: str
    etag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Returns the files of all pages by their path below a page's path; nothing else is served."""
    return dict(_files_in(files("orchestrator") / "page", ""))


@router.get("/")
async def to_the_page(request: Request) -> Response:
    """Redirect to the owner's page, or to the page whose last slash is missing.

    The path is relative, so that it also works behind a proxy with a path prefix.
    """
    asked = request.url.path.strip("/")
    return RedirectResponse(f"{asked}/" if asked else PAGE_PATH.lstrip("/"), status_code=307, headers=HEADERS)


def _serving(path: str, start: str) -> Callable[[Request, str], Awaitable[Response]]:
    """Returns the route that serves the page at `path`, which does not serve the HTML files of other pages."""

    async def page(request: Request, name: str) -> Response:
        """Return one file of the page."""
        name = name or start
        found = None if name in PAGES.values() and name != start else page_files().get(name)
        if found is None or (path == PUBLIC_PATH and not dependencies_of(request).settings.public_page):
            raise NotFound("the page has no such file", hint=f"the page is at {path}")
        headers = {**HEADERS, "ETag": found.etag}
        known = EntityTags.parse(request.headers.get("if-none-match"), header="If-None-Match")
        if known is not None and known.includes(found.etag):
            return Response(status_code=304, headers=headers)
        return Response(found.body, media_type=found.media_type, headers=headers)

    return page


for _path, _start in PAGES.items():
    router.get(_path.rstrip("/"))(to_the_page)
    router.get(_path + "{name:path}")(_serving(_path, _start))


def _files_in(folder: Traversable, prefix: str) -> list[tuple[str, PageFile]]:
    found: list[tuple[str, PageFile]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _files_in(entry, f"{prefix}{entry.name}/")
        elif media_type := MEDIA_TYPES.get("." + entry.name.rpartition(".")[2]):
            body = entry.read_bytes()
            found.append((prefix + entry.name, PageFile(body, media_type, f'"{sha256(body).hexdigest()[:32]}"')))
    return found
