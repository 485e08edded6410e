"""Base classes of Muster's errors, with code, detail and hint.

    MusterError
    ├── InvalidInput      the caller sent something that can't be accepted          400
    ├── Unauthenticated   the caller is not authenticated                           401
    ├── Forbidden         the caller is known, but not allowed to do this          403
    ├── NotFound          the object that the caller names does not exist           404
    ├── Conflict          the object's state does not allow the operation           409
    ├── PreconditionFailed  the object is not in the version that the request names   412
    ├── TooLarge          the content has more bytes than the limit                 413
    ├── Unprocessable     the request can be read, but its fields are wrong         422
    ├── UpgradeRequired   client and service have no protocol version in common     426
    ├── RateLimited       too many requests; `retry_after` is the pause needed    429
    └── Unavailable       a dependency is down, slow or faulty                      503

Each package derives its own errors from these classes. The fields `code`, `detail`, `hint` and `retryable` are sent to
clients as problem JSON (RFC 9457).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar


def plain_message(message: str) -> str:
    """Returns a pydantic message without the prefix "Value error, ".

    Pydantic adds this prefix to errors that our own validators raise.
    """
    return message.removeprefix("Value error, ")


class MusterError(Exception):
    """Base class of Muster's errors: cause, next step, and whether a retry may help.

    Args:
        detail: The cause: the object at fault, its value and the limit that it breaks.
        hint: The next step for the user, who does not know the source code.
        code: A stable kebab-case name by which programs tell errors apart; each class has a default.
        retryable: Whether the same call may succeed later; each class has a default.
    """

    code: str = "error"
    status: ClassVar[int] = 500
    retryable: bool = False
    retry_after: timedelta | None = None
    """Pause before a retry, if the service knows it."""
    default_hint: ClassVar[str] = ""

    def __init__(
        self, detail: str, *, hint: str | None = None, code: str | None = None, retryable: bool | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint if hint is not None else self.default_hint
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable


class InvalidInput(MusterError):
    """The request, setting or file is malformed."""

    code = "invalid-input"
    status = 400


class Unauthenticated(MusterError):
    """The caller is not authenticated."""

    code = "unauthenticated"
    status = 401


class Forbidden(MusterError):
    """The caller is authenticated, but not allowed to do this."""

    code = "forbidden"
    status = 403


class NotFound(MusterError):
    """The object that the caller names does not exist."""

    code = "not-found"
    status = 404


class Conflict(MusterError):
    """The object's state does not allow the operation, for example because it was done before."""

    code = "conflict"
    status = 409


class RequestInProgress(Conflict):
    """Another request with the same idempotency key is being served."""

    code = "request-in-progress"
    retryable = True

    def __init__(self, detail: str, *, retry_after: timedelta) -> None:
        super().__init__(detail, hint="wait for its answer: repeat this request with the same key")
        self.retry_after = retry_after


class PreconditionFailed(MusterError):
    """The object is not in the version that the request names in `If-Match`."""

    code = "precondition-failed"
    status = 412


class TooLarge(MusterError):
    """The content has more bytes than the limit."""

    code = "too-large"
    status = 413


class Unprocessable(MusterError):
    """The request can be read, but its fields are wrong.

    Args:
        fields: Error texts by field name. They never contain the value, which may be a secret.
    """

    code = "unprocessable"
    status = 422

    def __init__(
        self,
        detail: str,
        *,
        fields: Mapping[str, str] | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(detail, hint=hint, code=code)
        self.fields = dict(fields or {})


class UpgradeRequired(MusterError):
    """Client and service have no protocol version in common."""

    code = "upgrade-required"
    status = 426


class RateLimited(MusterError):
    """The caller sent too many requests and should wait for `retry_after`."""

    code = "rate-limited"
    status = 429
    retryable = True

    def __init__(self, detail: str, *, retry_after: timedelta, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint or f"wait {math.ceil(retry_after.total_seconds())} s and try again")
        self.retry_after: timedelta = retry_after


class Unavailable(MusterError):
    """A dependency is down, slow or faulty."""

    code = "unavailable"
    status = 503
    retryable = True
