"""Access control: nodes and the pool's manager sign requests, the pool's owner sends a token."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import BaseModel

from orchestrator.dependencies import dependencies_of
from protocol.http.tokens import OwnerRequest, owner_access
from protocol.http.verification import SignedRequest, signed_request
from protocol.identifiers import Address, WireAddress
from protocol.identity.scopes import Scope
from protocol.identity.signing import ADDRESS_HEADER

OWNER_BODY = 256 * 1024
"""Maximum bytes of an owner's request body. The largest one is a task with its environment and secrets."""
NODE_BODY = 64 * 1024
LOGS_BODY = 1024 * 1024


FAVOURED_FOR = timedelta(minutes=1)
"""Time for which the higher rate of a role holder is cached."""


async def _is_manager(address: Address, request: Request) -> bool:
    return address in (await dependencies_of(request).pool.get()).managers


async def _reads_the_run(address: Address, request: Request) -> bool:
    pool = await dependencies_of(request).pool.get()
    reads = address in pool.managers | pool.publishers | pool.validators
    return reads and _favoured(address, request)


async def _steers_the_run(address: Address, request: Request) -> bool:
    pool = await dependencies_of(request).pool.get()
    steers = address in pool.managers | pool.publishers
    return steers and _favoured(address, request)


def _favoured(address: Address, request: Request) -> bool:
    """Applies the higher request rate of role holders, because they work for all nodes. Always returns True."""
    dependencies = dependencies_of(request)
    dependencies.replay_guard.favour(address, rate=dependencies.settings.role_rate(), lasting=FAVOURED_FOR)
    return True


RunReader = Annotated[OwnerRequest, Depends(owner_access(Scope.READ, is_manager=_reads_the_run))]
"""The pool's manager, publisher or validator, or a token with scope `read`."""
RunOperator = Annotated[OwnerRequest, Depends(owner_access(Scope.OPERATE, is_manager=_steers_the_run))]
"""The pool's manager or publisher, or a token with scope `operate`."""
Reader = Annotated[OwnerRequest, Depends(owner_access(Scope.READ, is_manager=_is_manager))]
Operator = Annotated[OwnerRequest, Depends(owner_access(Scope.OPERATE, is_manager=_is_manager, body_limit=OWNER_BODY))]
Admin = Annotated[OwnerRequest, Depends(owner_access(Scope.ADMIN, is_manager=_is_manager, body_limit=OWNER_BODY))]
Node = Annotated[SignedRequest, Depends(signed_request(body_limit=NODE_BODY))]
NodeWithLogs = Annotated[SignedRequest, Depends(signed_request(body_limit=LOGS_BODY))]

_owner_reads = owner_access(Scope.READ, is_manager=_is_manager)
_any_signer = signed_request(body_limit=0)


async def _object_reader(request: Request) -> SignedRequest | OwnerRequest:
    """Accepts any signer or the owner's token; `UploadService.link` decides about access to each object."""
    if ADDRESS_HEADER in request.headers:
        return await _any_signer(request)
    return await _owner_reads(request)


ObjectReader = Annotated[SignedRequest | OwnerRequest, Depends(_object_reader)]

NodePath = Annotated[WireAddress, Path(description="The node's address", pattern="^0x[0-9a-fA-F]{40}$")]
IdentifierPath = Annotated[str, Path(description="32 hex digits", pattern="^[0-9a-f]{32}$")]


def body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Returns the OpenAPI declaration of a body that the route itself reads from the verified request."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}
