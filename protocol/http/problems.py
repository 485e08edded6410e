"""Converts exceptions to problem JSON (RFC 9457), and problem JSON to exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    MusterError,
    NotFound,
    PreconditionFailed,
    RateLimited,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unprocessable,
    UpgradeRequired,
)

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
        PreconditionFailed,
        TooLarge,
        Unprocessable,
        UpgradeRequired,
        Unavailable,
    )
}


_HINTS: Mapping[int, str] = {
    400: "correct the request as `detail` says; the service's /docs has its format",
    401: "send a valid token, or sign the request",
    403: "use a key or token that may do this",
    404: "check the path and the id; /openapi.json lists the paths of this service",
    405: "use a method that the header `Allow` names",
    408: "send the request again over a faster connection",
    409: "read the object again; its state decides what is possible",
    410: "read the present state; what the request names was deleted",
    412: "read the object again, and send its new `ETag` as `If-Match`",
    413: "send less at a time",
    422: "correct the fields that the problem names; the service's /docs has the format of the request",
    426: "upgrade the older side: `muster worker upgrade` for a worker",
    429: "wait for the time in the header `Retry-After`, then send the request again",
    431: "send fewer and shorter header fields",
    500: "tell the service's operator the id in `instance`, by which the cause is found in the log",
    503: "try again later; the service's operator finds the cause in its log, by the id in `instance`",
}
"""Hints by HTTP status, for errors that libraries raise and for those of other packages without a hint of their own."""


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
    retry_after: float | None = Field(None, description="Seconds to wait before a retry, with 409, 429 and 503", ge=0)
    fields: dict[str, str] | None = Field(None, description="Error texts by field, with 422", max_length=100)


def problem_of(error: MusterError, *, instance: str = "") -> Problem:
    """Converts an error to a problem."""
    return Problem(
        type=TYPE_PREFIX + error.code,
        title=title_of(error.status),
        status=error.status,
        detail=error.detail[:4000],
        code=error.code,
        hint=(error.hint or hint_of(error.status))[:2000],
        retryable=error.retryable,
        instance=instance,
        retry_after=None if error.retry_after is None else error.retry_after.total_seconds(),
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
    error = kind(detail, hint=problem.hint, code=problem.code, retryable=problem.retryable)
    if problem.retry_after is not None:
        error.retry_after = timedelta(seconds=min(problem.retry_after, 86_400.0))
    return error


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
        status=status,
        detail=f"the answer was {status} {title_of(status)}, without problem details",
        retryable=retryable,
    )
    return error_of(plain.model_copy(update={"code": f"http-{status}"}), retry_after=retry_after)


def code_of(status: int) -> str:
    """Returns the code of an error without a code of its own, by its HTTP status."""
    kind = RateLimited if status == RateLimited.status else _BY_STATUS.get(status)
    return kind.code if kind is not None else f"http-{status}"


def hint_of(status: int) -> str:
    """Returns the hint of an error that has none of its own, by its HTTP status."""
    return _HINTS.get(status) or _HINTS[500 if status >= 500 else 400]


def title_of(status: int) -> str:
    """Returns the standard phrase of an HTTP status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
