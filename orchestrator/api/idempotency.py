"""Idempotency keys of requests that create, change or restart something.

A route takes keys if its access is one of `OperatorOnce` and `AdminOnce`, and its router has the route class
`OnceRoute`. Then a repeated request with the same key gets the answer of the first one, and is not executed again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response
from fastapi.routing import APIRoute

from orchestrator.api.access import admin, operator
from orchestrator.dependencies import dependencies_of
from orchestrator.store.idempotency import Claim, StoredAnswer
from protocol.http.tokens import OwnerRequest
from protocol.http.verification import target_of
from protocol.wire.tasks import IDEMPOTENCY_HEADER

REPLAYED_HEADER = "Idempotent-Replayed"
"""Header of an answer that repeats the answer of an earlier request."""
_LENGTH_HEADER = "content-length"

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_HEADER,
        min_length=1,
        max_length=255,
        pattern="^[\\x20-\\x7e]+$",
        description="Random printable ASCII, such as a UUID, new for each request. For a day, a repeated request with "
        "the same key gets the stored answer and is not executed again",
    ),
]


class _Replayed(Exception):
    """Ends a request that was answered before."""

    def __init__(self, answer: StoredAnswer) -> None:
        super().__init__()
        self.answer = answer


class OnceRoute(APIRoute):
    """Route that keeps the answers of requests with an idempotency key.

    Only successful answers are kept. After an error, the key can be used again. The request may have been executed
    nevertheless, so a route makes its effect once per key, as with `created_id`, or by its state.
    """

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Returns the handler of the route."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                response = await handler(request)
            except _Replayed as replayed:
                answer = replayed.answer
                headers = {**dict(answer.headers), REPLAYED_HEADER: "true"}
                return Response(answer.body, answer.status, headers)
            except BaseException:
                if (claim := _claim_of(request)) is not None:
                    await dependencies_of(request).idempotency.release(claim)
                raise
            if (claim := _claim_of(request)) is not None:
                await dependencies_of(request).idempotency.keep(claim, _stored(response))
            return response

        return handle


def _once(access: Callable[[Request], Awaitable[OwnerRequest]]) -> Callable[..., Any]:
    """Returns a FastAPI dependency that checks access and then claims the request's idempotency key, if it has one."""

    async def dependency(
        request: Request,
        idempotency_key: IdempotencyKey = None,
        owner: OwnerRequest = Depends(access),  # an annotation can't refer to an argument
    ) -> OwnerRequest:
        if idempotency_key is None:
            return owner
        claimed = await dependencies_of(request).idempotency.claim(
            idempotency_key,
            caller=owner.name,
            route=f"{request.method} {request.scope['route'].path}",
            target=target_of(request.scope),
            body=owner.body,
        )
        if isinstance(claimed, StoredAnswer):
            raise _Replayed(claimed)
        request.state.idempotency_claim = claimed
        return replace(owner, idempotency_key=idempotency_key)

    return dependency


def _claim_of(request: Request) -> Claim | None:
    return getattr(request.state, "idempotency_claim", None)


def _stored(response: Response) -> StoredAnswer:
    headers = tuple((name, value) for name, value in response.headers.items() if name != _LENGTH_HEADER)
    return StoredAnswer(status=response.status_code, headers=headers, body=bytes(response.body))


OperatorOnce = Annotated[OwnerRequest, Depends(_once(operator))]
"""Like `Operator`, for a route that takes idempotency keys."""
AdminOnce = Annotated[OwnerRequest, Depends(_once(admin))]
"""Like `Admin`, for a route that takes idempotency keys."""
