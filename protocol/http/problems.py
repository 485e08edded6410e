"""Converts exceptions to problem JSON (RFC 9457), and problem JSON to exceptions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException

from protocol.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    MusterError,
    NotFound,
    RateLimited,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unprocessable,
    UpgradeRequired,
    plain_message,
)
from protocol.runtime.randomness import token_hex

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:muster:problem:"

_BY_STATUS: Mapping[int, type[MusterError]] = {
    kind.status: kind
    for kind in (
        InvalidInput,
        Unauthenticated,
        Forbidden,
        NotFound,
        Conflict,
        TooLarge,
        Unprocessable,
        UpgradeRequired,
        Unavailable,
    )
}

_log = structlog.get_logger(__name__)


class Problem(BaseModel):
    """Body of every error response (RFC 9457, extended by `code`, `hint` and `retryable`)."""

    model_config = ConfigDict(extra="ignore")

    type: str = Field("about:blank", description="`urn:muster:problem:` and the code", max_length=200)
    title: str = Field("", description="Standard phrase of the HTTP status", max_length=200)
    status: int = Field(description="HTTP status", ge=100, le=599)
    detail: str = Field("", description="Cause: the object at fault, its value and the limit", max_length=4000)
    code: str = Field(
        "error", description="Stable name by which programs tell errors apart", max_length=100, pattern=r"^[a-z0-9-]+$"
    )
    hint: str = Field("", description="Next step for the user", max_length=2000)
    retryable: bool = Field(False, description="Whether the same request may succeed later")
    instance: str = Field("", description="Id of this request in the service's log", max_length=200)
    retry_after: float | None = Field(None, description="Seconds to wait before a retry, with 429 and 503", ge=0)
    fields: dict[str, str] | None = Field(None, description="Error texts by field, with 422", max_length=100)


def problem_of(error: MusterError, *, instance: str = "") -> Problem:
    """Converts an error to a problem."""
    return Problem(
        type=TYPE_PREFIX + error.code,
        title=_title(error.status),
        status=error.status,
        detail=error.detail[:4000],
        code=error.code,
        hint=error.hint[:2000],
        retryable=error.retryable,
        instance=instance,
        retry_after=error.retry_after.total_seconds() if isinstance(error, RateLimited) else None,
        fields=error.fields or None if isinstance(error, Unprocessable) else None,
    )


def error_of(problem: Problem, *, retry_after: timedelta | None = None) -> MusterError:
    """Converts a problem to an error with the service's code and hint.

    Args:
        problem: Parsed body of the answer.
        retry_after: Value of the answer's `Retry-After` header.
    """
    detail = problem.detail or problem.title
    if problem.status == RateLimited.status:
        wait = retry_after or timedelta(seconds=min(problem.retry_after or 1.0, 86_400.0))
        limited = RateLimited(detail, retry_after=wait, hint=problem.hint)
        limited.code = problem.code
        return limited
    if problem.status == Unprocessable.status:
        wrong = Unprocessable(detail, fields=problem.fields, hint=problem.hint)
        wrong.code = problem.code
        return wrong
    kind = _BY_STATUS.get(problem.status) or (Unavailable if problem.status >= 500 else InvalidInput)
    return kind(detail, hint=problem.hint, code=problem.code, retryable=problem.retryable)


def error_of_answer(status: int, media_type: str, body: bytes, *, retry_after: timedelta | None = None) -> MusterError:
    """Returns the exception for any error response.

    If the body is not problem JSON, for example a proxy's page, the status decides.
    """
    if media_type.split(";", maxsplit=1)[0].strip().lower() == MEDIA_TYPE:
        try:
            problem = Problem.model_validate_json(body)
        except ValidationError:
            pass
        else:
            return error_of(problem.model_copy(update={"status": status}), retry_after=retry_after)
    retryable = status in {408, 425, 429} or status >= 500
    plain = Problem(
        status=status, detail=f"the answer was {status} {_title(status)}, without problem details", retryable=retryable
    )
    return error_of(plain.model_copy(update={"code": f"http-{status}"}), retry_after=retry_after)


def problem_response(error: MusterError, *, instance: str = "") -> Response:
    """Returns the HTTP response for an error."""
    problem = problem_of(error, instance=instance)
    headers = {"Cache-Control": "no-store"}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after)))
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer, Muster"
    return Response(problem.model_dump_json(exclude_none=True), error.status, headers, media_type=MEDIA_TYPE)


def unexpected(error: BaseException) -> MusterError:
    """Logs an unexpected error; returns the error that the client sees.

    The client sees only a reference to the log, no internals.
    """
    reference = token_hex(6)
    _log.error("unexpected-error", reference=reference, exc_info=error)
    return MusterError(
        f"internal error (reference {reference})",
        hint="tell the service's operator this reference, which is in the service's log together with the cause",
        code="internal",
    )


class CarriedError(HTTPException):
    """Carries an error through FastAPI while a body is read.

    FastAPI would answer any other exception with a 400.

    Args:
        error: Error that the client receives.
        retry_after: Pause before the client should repeat the request, if the error itself names none.
    """

    def __init__(self, error: MusterError, *, retry_after: timedelta | None = None) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(math.ceil(retry_after.total_seconds()))}
        super().__init__(error.status, error.detail, headers)
        self.error = error


def install_problem_answers(app: FastAPI) -> None:
    """Registers handlers that convert every error of a route to a problem response."""

    async def ours(request: Request, error: Exception) -> Response:
        if not isinstance(error, MusterError):  # only for the type checker: Starlette passes no others
            raise error
        return problem_response(error, instance=instance_of(request))

    async def invalid(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        fields = {
            ".".join(str(part) for part in item["loc"]): plain_message(str(item["msg"]))
            for item in error.errors()[:100]
        }
        complaint = Unprocessable(
            "; ".join(f"{name}: {what}" for name, what in list(fields.items())[:5])[:1000],
            fields=fields,
            hint="see the service's /docs for the format of this request",
        )
        return problem_response(complaint, instance=instance_of(request))

    async def framework(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        return http_problem(error, instance=instance_of(request))

    app.add_exception_handler(MusterError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, framework)


def http_problem(error: HTTPException, *, instance: str) -> Response:
    """Converts an exception of the web framework to a problem response.

    The framework raises one for an unknown route or method. A `CarriedError` is converted to the error that it carries.
    """
    if isinstance(error, CarriedError):
        response = problem_response(error.error, instance=instance)
        response.headers.update(error.headers or {})
        return response
    problem = Problem(
        type=TYPE_PREFIX + _code(error.status_code),
        title=_title(error.status_code),
        status=error.status_code,
        detail=str(error.detail)[:4000],
        code=_code(error.status_code),
        retryable=error.status_code >= 500,
        instance=instance,
        hint="/openapi.json lists the paths of this service" if error.status_code == HTTPStatus.NOT_FOUND else "",
    )
    return Response(
        problem.model_dump_json(exclude_none=True),
        error.status_code,
        dict(error.headers or {}) | {"Cache-Control": "no-store"},
        media_type=MEDIA_TYPE,
    )


def instance_of(request: Request) -> str:
    """Returns the request's URN, by which it is found in the log; empty if it has none."""
    identifier = request.scope.get("muster.request_id")
    return f"urn:muster:request:{identifier}" if identifier else ""


def _code(status: int) -> str:
    kind = RateLimited if status == RateLimited.status else _BY_STATUS.get(status)
    return kind.code if kind is not None else f"http-{status}"


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
