"""Errors of OpenAI-compatible services, and their form on the wire.

Unprocessable
└── InvalidRequest   400: a field of the body is wrong; `param` names it
NotFound
└── UnknownModel     404: the request names another model
"""

from __future__ import annotations

import json
from typing import ClassVar

from protocol.errors import NotFound, Unprocessable
from protocol.http.problems import Problem

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class InvalidRequest(Unprocessable):
    """A field of the request's body is wrong.

    Args:
        param: Path of the field.
        detail: Cause, with the value and the limit.
        hint: Next step.
        code: Code of the error.
    """

    code = "invalid-request"
    status: ClassVar[int] = 400

    def __init__(self, param: str, detail: str, *, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(detail, fields={param: detail}, hint=hint, code=code)


class UnknownModel(NotFound):
    """The request names a model that is not served here."""

    code = "model-not-found"


def openai_form(problem: Problem) -> tuple[str, str]:
    """Returns an error in OpenAI's form; see `ProblemForm`."""
    return json.dumps({"error": error_object(problem)}, ensure_ascii=False), "application/json"


def error_object(problem: Problem) -> dict[str, str | None]:
    """Returns the object in the field `error`: the message has cause and next step, `param` the field at fault."""
    kind = "server_error" if problem.status >= 500 else _TYPES.get(problem.status, "invalid_request_error")
    message = f"{problem.detail}. {problem.hint[:1].upper()}{problem.hint[1:]}." if problem.hint else problem.detail
    return {
        "message": message,
        "type": kind,
        "param": next(iter(problem.fields), None) if problem.fields else None,
        "code": problem.code.replace("-", "_"),
    }
