"""Page `/docs`, which shows a service's API to people, and its OpenAPI document.

The page is Swagger UI, whose files are part of the package (`swagger_ui/`), so that it works without the internet. A
Content-Security-Policy sandbox gives the page an origin of its own, so that its scripts can't read the service's data.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from protocol.errors import NotFound

OPENAPI = "/openapi.json"
DOCS = "/docs"

ASSETS = {"swagger-ui-bundle.js": "text/javascript; charset=utf-8", "swagger-ui.css": "text/css; charset=utf-8"}
"""Media types of the page's files."""

PARAMETERS: dict[str, object] = {
    "validatorUrl": None,  # otherwise Swagger UI may send the document's URL to a validator on the internet
    "supportedSubmitMethods": [],  # requests from the page's own origin would be refused by the browser
}


def add_docs(app: FastAPI) -> None:
    """Adds `/docs` and `/openapi.json` to an application."""

    @cache
    def written() -> bytes:
        return json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()

    @app.get(OPENAPI, include_in_schema=False)
    async def schema() -> Response:
        return Response(written(), media_type="application/json", headers={"Access-Control-Allow-Origin": "*"})

    @app.get(DOCS, include_in_schema=False)
    async def docs() -> HTMLResponse:
        # Paths are relative, so that the page also works behind a proxy with a path prefix.
        script, style = (f"{DOCS.lstrip('/')}/{name}" for name in ASSETS)
        page = get_swagger_ui_html(
            openapi_url=OPENAPI.lstrip("/"),
            title=app.title,
            swagger_js_url=script,
            swagger_css_url=style,
            swagger_favicon_url="data:,",
            swagger_ui_parameters=PARAMETERS,
        )
        page.headers["Content-Security-Policy"] = "sandbox allow-scripts allow-popups"
        return page

    @app.get(DOCS + "/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in ASSETS:
            raise NotFound("the page has no such file", hint=f"the page is at {DOCS}")
        return Response(_asset(name), media_type=ASSETS[name], headers={"Cache-Control": "public, max-age=86400"})


@cache
def _asset(name: str) -> bytes:
    return (files("protocol.http.serving") / "swagger_ui" / name).read_bytes()
