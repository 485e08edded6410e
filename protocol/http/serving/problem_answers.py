"""Error responses of services: problem JSON (RFC 9457) for every error of a route."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from protocol.errors import MusterError, Unauthenticated, Unprocessable, plain_message
from protocol.http.problems import MEDIA_TYPE, TYPE_PREFIX, Problem, code_of, hint_of, problem_of, title_of
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import token_hex

_log = get_logger(__name__)

ProblemForm = Callable[[Problem], tuple[str, str]]
"""Returns the body of an error response and its media type."""


def problem_json(problem: Problem) -> tuple[str, str]:
    """Returns a problem in the form of RFC 9457, which all of Muster's own services use."""
    return problem.model_dump_json(exclude_none=True), MEDIA_TYPE


def problem_response(error: MusterError, *, instance: str = "", form: ProblemForm = problem_json) -> Response:
    """Returns the HTTP response for an error."""
    problem = problem_of(error, instance=instance)
    headers = {"Cache-Control": "no-store"}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after)))
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer, Muster"
    body, media_type = form(problem)
    return Response(body, error.status, headers, media_type=media_type)


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


def install_problem_answers(app: FastAPI, *, form: ProblemForm = problem_json) -> None:
    """Registers handlers that convert every error of a route to a problem response in this form."""

    async def ours(request: Request, error: Exception) -> Response:
        if not isinstance(error, MusterError):  # only for the type checker: Starlette passes no others
            raise error
        return problem_response(error, instance=instance_of(request), form=form)

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
        return problem_response(complaint, instance=instance_of(request), form=form)

    async def framework(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        return http_problem(error, instance=instance_of(request), form=form)

    app.add_exception_handler(MusterError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, framework)


def http_problem(error: HTTPException, *, instance: str, form: ProblemForm = problem_json) -> Response:
    """Converts an exception of the web framework to a problem response.

    The framework raises one for an unknown route or method. A `CarriedError` is converted to the error that it carries.
    """
    if isinstance(error, CarriedError):
        response = problem_response(error.error, instance=instance, form=form)
        response.headers.update(error.headers or {})
        return response
    problem = Problem(
        type=TYPE_PREFIX + code_of(error.status_code),
        title=title_of(error.status_code),
        status=error.status_code,
        detail=str(error.detail)[:4000],
        code=code_of(error.status_code),
        retryable=error.status_code >= 500,
        instance=instance,
        hint=hint_of(error.status_code),
    )
    body, media_type = form(problem)
    headers = dict(error.headers or {}) | {"Cache-Control": "no-store"}
    return Response(body, error.status_code, headers, media_type=media_type)


def instance_of(request: Request) -> str:
    """Returns the request's URN, by which it is found in the log; empty if it has none."""
    identifier = request.scope.get("muster.request_id")
    return f"urn:muster:request:{identifier}" if identifier else ""
