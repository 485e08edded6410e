"""Route of the public summary, which needs no login."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from orchestrator.dependencies import dependencies_of
from protocol.errors import NotFound
from protocol.http.preconditions import EntityTags
from protocol.wire.public import PublicSummary

router = APIRouter(prefix="/v1", tags=["pool"])


@router.get("/public", response_model=PublicSummary)
async def get_public_summary(request: Request) -> Response:
    """Return the public summary of the pool: nodes, progress, verdicts, payments by provider, and terms.

    It needs no token. The summary is written every 15 seconds, and kept in memory for 5 seconds.
    """
    dependencies = dependencies_of(request)
    if not dependencies.settings.public_page:
        raise NotFound("this pool publishes no summary", hint="its owner sets public_page = false", code="not-public")
    found = await dependencies.public.read()
    headers = {"ETag": found.etag, "Cache-Control": "public, max-age=5"}
    known = EntityTags.parse(request.headers.get("if-none-match"), header="If-None-Match")
    if known is not None and known.includes(found.etag):
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type="application/json", headers=headers)
