"""Errors of the gateway, and their form in Redis and on the wire.

MusterError
└── AnswerChanged   500: another worker drew other tokens than the client has already
Unavailable
└── NotServing      503: no worker answers now
RateLimited
└── QuotaExceeded   429: a limit of the client's token; the code names it
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from protocol.errors import MusterError, RateLimited, Unavailable
from protocol.http.problems import MEDIA_TYPE, Problem
from protocol.openai.errors import InvalidRequest, error_object


class AnswerChanged(MusterError):
    """Another worker answered the request again and drew other tokens than the client has already."""

    code = "answer-changed"
    retryable = True
    default_hint = "send the request again"


class NotServing(Unavailable):
    """No worker answers the request now."""

    code = "not-serving"

    def __init__(self, detail: str, *, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(detail, hint=hint or "send the request again in a few seconds", code=code)
        self.retry_after = timedelta(seconds=5)


class QuotaExceeded(RateLimited):
    """A limit of the client's token was reached."""

    def __init__(self, code: str, detail: str, *, retry_after: timedelta, hint: str) -> None:
        super().__init__(detail, retry_after=retry_after, hint=hint)
        self.code = code


def error_text(error: MusterError, *, param: str | None = None) -> str:
    """Returns the JSON of an error as the last entry of an answer; `error_from` reads the field `error`."""
    found = {"status": error.status, "code": error.code, "detail": error.detail, "hint": error.hint, "param": param}
    return json.dumps({"error": found}, ensure_ascii=False)


def error_from(value: dict[str, Any]) -> MusterError:
    """Returns the error that `error_text` wrote."""
    if value["status"] == InvalidRequest.status:
        return InvalidRequest(value["param"] or "body", value["detail"], hint=value["hint"], code=value["code"])
    return NotServing(value["detail"], hint=value["hint"], code=value["code"])


NO_ANSWER = error_text(NotServing("no worker answered the request; all attempts failed"))
"""The error after the last attempt."""
UNVERIFIED = error_text(NotServing("no verifier judged the answer in time", code="not-verified"))
"""The error if no verifier judged an answer that the client gets only after that."""


def combined_form(problem: Problem) -> tuple[str, str]:
    """Returns an error that OpenAI's clients and Muster's clients both read: problem JSON with the field `error`."""
    content = problem.model_dump(mode="json", exclude_none=True) | {"error": error_object(problem)}
    return json.dumps(content, ensure_ascii=False), MEDIA_TYPE
