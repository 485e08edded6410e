"""Access control of the API: who may call a route.

Nodes, the pool's manager, publisher and validators sign their requests. The pool's owner sends a token.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Path, Request

from orchestrator.dependencies import dependencies_of
from protocol.errors import Forbidden
from protocol.http.openapi import SIGNATURE, secured, token_with
from protocol.http.tokens import OwnerRequest, owner_access
from protocol.http.verification import SignedRequest, signed_request
from protocol.identifiers import EXAMPLE_ADDRESS, Address, WireAddress
from protocol.identity.scopes import Scope
from protocol.identity.signing import ADDRESS_HEADER
from protocol.wire.base import EXAMPLE_IDENTIFIER

OWNER_BODY = 256 * 1024
"""Maximum bytes of an owner's request body. The largest one is a task with its environment and secrets."""
NODE_BODY = 64 * 1024
"""Maximum bytes of a node's request body, except one with log lines."""
VALIDATOR_BODY = 4 * 1024
"""Maximum bytes of a validator's request body. The largest one is a report of 16 names."""
LOGS_BODY = 1024 * 1024
"""Maximum bytes of a node's request body with log lines."""


ROLE_RATE_FOR = timedelta(minutes=1)
"""Time for which a role holder has a higher request rate after a request on which its role was checked."""


async def _is_manager(address: Address, request: Request) -> bool:
    return address in (await dependencies_of(request).pool.get()).managers


async def _may_read_run(address: Address, request: Request) -> bool:
    pool = await dependencies_of(request).pool.get()
    reads = address in pool.managers | pool.publishers | pool.validators
    return reads and _with_higher_rate(address, request)


async def _may_operate_run(address: Address, request: Request) -> bool:
    pool = await dependencies_of(request).pool.get()
    steers = address in pool.managers | pool.publishers
    return steers and _with_higher_rate(address, request)


async def _check_validator(address: Address, request: Request) -> None:
    if address not in (await dependencies_of(request).pool.get()).validators:
        raise Forbidden(
            f"{address} is not a validator of the pool",
            hint="the pool's owner adds it: `muster pool roles --add-validator ADDRESS`",
            code="role",
        )
    _with_higher_rate(address, request)


def _with_higher_rate(address: Address, request: Request) -> bool:
    """Gives a role holder a higher request rate than a node.

    A role holder needs it, because its requests concern the work of all nodes. The function always returns True, so
    that the role checks above can append it with `and`.
    """
    dependencies = dependencies_of(request)
    dependencies.replay_guard.set_rate_limit(address, rate=dependencies.settings.role_rate(), lasting=ROLE_RATE_FOR)
    return True


RunReader = Annotated[OwnerRequest, Depends(owner_access(Scope.READ, is_manager=_may_read_run))]
"""The pool's manager, publisher or validator, or a token with scope `read`."""
RunOperator = Annotated[
    OwnerRequest, Depends(owner_access(Scope.OPERATE, is_manager=_may_operate_run, body_limit=OWNER_BODY))
]
"""The pool's manager or publisher, or a token with scope `operate`."""
Reader = Annotated[OwnerRequest, Depends(owner_access(Scope.READ, is_manager=_is_manager))]
"""The pool's manager, or a token with scope `read`."""
operator = owner_access(Scope.OPERATE, is_manager=_is_manager, body_limit=OWNER_BODY)
admin = owner_access(Scope.ADMIN, is_manager=_is_manager, body_limit=OWNER_BODY)
Operator = Annotated[OwnerRequest, Depends(operator)]
"""The pool's manager, or a token with scope `operate`."""
Admin = Annotated[OwnerRequest, Depends(admin)]
"""The pool's manager, or a token with scope `admin`."""
Node = Annotated[SignedRequest, Depends(signed_request(body_limit=NODE_BODY))]
"""Any signer. The route checks whether the signer is a node of the pool."""
NodeWithLogs = Annotated[SignedRequest, Depends(signed_request(body_limit=LOGS_BODY))]
"""Like `Node`, with the body limit of log lines."""
Validator = Annotated[SignedRequest, Depends(signed_request(authorize=_check_validator, body_limit=VALIDATOR_BODY))]
"""A validator of the pool."""

_owner_reads = owner_access(Scope.READ, is_manager=_is_manager)
_any_signer = signed_request(body_limit=0)


async def _object_reader(request: Request) -> SignedRequest | OwnerRequest:
    """Accepts any signer or the owner's token.

    It checks the identity only: `UploadService.link` decides whether the caller may read an object.
    """
    if ADDRESS_HEADER in request.headers:
        return await _any_signer(request)
    return await _owner_reads(request)


ObjectReader = Annotated[
    SignedRequest | OwnerRequest, Depends(secured(_object_reader, token_with(Scope.READ), SIGNATURE))
]

NodePath = Annotated[
    WireAddress, Path(description="The node's address", pattern="^0x[0-9a-fA-F]{40}$", examples=[EXAMPLE_ADDRESS])
]
IdentifierPath = Annotated[
    str, Path(description="32 hex digits", pattern="^[0-9a-f]{32}$", examples=[EXAMPLE_IDENTIFIER])
]
