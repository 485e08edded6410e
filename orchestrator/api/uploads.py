"""Routes of files: upload tickets and download links.

If the store is a local directory, further routes receive and serve the bytes.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import FileResponse

from orchestrator.api.access import Node, ObjectReader
from orchestrator.dependencies import Dependencies, dependencies_of
from orchestrator.storage.interface import ObjectMissing
from orchestrator.storage.local import LocalStore
from protocol.errors import InvalidInput, NotFound
from protocol.http.openapi import PRESIGNED, json_body, secured
from protocol.http.verification import SignedRequest
from protocol.wire.uploads import EXAMPLE_KEY, ObjectKey, ObjectLink, UploadRequest, UploadTicket

router = APIRouter(prefix="/v1", tags=["files"])

LONGEST_KEY = 200
KeyPath = Annotated[str, Path(max_length=LONGEST_KEY, description="POOL/OWNER/SHA256", examples=[EXAMPLE_KEY])]
Term = Annotated[str | None, Query(description="Part of the signed URL; send it unchanged")]


async def _url_query(
    request: Request,
    *,
    expires: Term = None,
    size: Term = None,
    type_: Annotated[Term, Query(alias="type")] = None,
    signature: Term = None,
) -> dict[str, str]:
    """Returns the query parameters of a signed URL, for verification by `UrlSigner`.

    Raises:
        InvalidInput: A parameter occurs twice, so that two readers of the URL could see different values.
    """
    del expires, size, type_, signature
    items = request.query_params.multi_items()
    if len(dict(items)) != len(items):
        raise InvalidInput("the URL has a parameter twice", hint="use the URL exactly as it was given")
    return dict(items)


UrlQuery = Annotated[dict[str, str], Depends(secured(_url_query, PRESIGNED))]


@router.post("/uploads", response_model=UploadTicket, openapi_extra=json_body(UploadRequest))
async def request_upload(signed: Node, request: Request) -> Response:
    """Return an upload URL for a node's file or a validator's audit file.

    If the store has the file already, the answer says so instead.
    """
    dependencies = dependencies_of(request)
    ticket = await dependencies.uploads.ticket(signed.address, signed.read(UploadRequest))
    return signed.answer(dependencies.key, ticket)


@router.get("/objects", response_model=ObjectLink)
async def get_object_link(
    reader: ObjectReader,
    request: Request,
    key: Annotated[str, Query(max_length=LONGEST_KEY, description="POOL/OWNER/SHA256", examples=[EXAMPLE_KEY])],
) -> Response | ObjectLink:
    """Return a download URL.

    Nodes may read their own files. Any signer may read audit files. Validators, manager and owner may read all files.
    """
    dependencies = dependencies_of(request)
    signed = reader if isinstance(reader, SignedRequest) else None
    link = await dependencies.uploads.link(ObjectKey.parse(key), reader=signed.address if signed else None)
    return signed.answer(dependencies.key, link) if signed else link


@router.put(
    "/blobs/{key:path}",
    status_code=201,
    response_class=Response,
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {}}}},
)
async def put_blob(request: Request, key: KeyPath, query: UrlQuery) -> Response:
    """Upload a file's bytes to a signed URL. A repeated upload of the same bytes succeeds."""
    store, name = _local(dependencies_of(request)), ObjectKey.parse(key)
    terms = store.urls.check_put(name, query)
    declared = request.headers.get("content-length")
    if declared is not None and declared != str(terms.size):
        raise InvalidInput(
            f"the body has {declared[:20]} bytes, the URL is for {terms.size}", hint="send the file that was announced"
        )
    if request.headers.get("content-type") != terms.content_type:
        raise InvalidInput(
            f"the URL is for media type {terms.content_type}", hint="send the headers of the ticket unchanged"
        )
    await store.receive(name, size=terms.size, expires=terms.expires, pieces=request.stream())
    return Response(status_code=201, headers={"ETag": f'"{name.sha256[2:]}"'})


@router.get(
    "/blobs/{key:path}", response_class=FileResponse, responses={200: {"content": {"application/octet-stream": {}}}}
)
async def get_blob(request: Request, key: KeyPath, query: UrlQuery) -> Response:
    """Return a file's bytes, or a range of them, for a signed URL."""
    store, name = _local(dependencies_of(request)), ObjectKey.parse(key)
    store.urls.check_get(name, query)
    if await store.head(name) is None:
        raise ObjectMissing(f"there is no object {name}")
    headers = {
        "ETag": f'"{name.sha256[2:]}"',
        "Cache-Control": "private, max-age=31536000, immutable",
        # The uploader is not trusted: a browser must not show the content as a page of this origin.
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox",
    }
    return _Blob(store.path(name), headers=headers, media_type="application/octet-stream")


class _Blob(FileResponse):
    """Response with a stored file, read in pieces of 256 KiB.

    Starlette's default is 64 KiB, and each read costs a thread switch.
    """

    chunk_size = 256 * 1024


def _local(dependencies: Dependencies) -> LocalStore:
    if not isinstance(dependencies.objects, LocalStore):
        raise NotFound("this orchestrator does not serve the pool's files", hint="use the URLs of tickets and links")
    return dependencies.objects
