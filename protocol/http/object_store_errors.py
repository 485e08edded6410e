"""Converts error responses of object stores to exceptions.

A response has an error code of S3 as XML, is problem JSON, or has only a status.

MusterError
├── TransferError       the store is down, slow or full, or sent an invalid answer         retryable
│   └── UrlStale        the store no longer accepts the URL: request another               retryable
├── BytesRefused        the store received or sent other bytes than announced
└── UrlRefused          this client must not send requests to the URL
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from protocol.errors import (
    Forbidden,
    InvalidInput,
    MusterError,
    NotFound,
    RateLimited,
    TooLarge,
    Unavailable,
    Unprocessable,
)
from protocol.http.problems import MEDIA_TYPE, error_of_answer

_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")


class TransferError(Unavailable):
    """The store failed or refused the request.

    A retry may succeed.
    """

    code = "transfer-failed"
    default_hint = "the transfer is tried again later; no file is lost"


class UrlStale(TransferError):
    """The store rejects the URL, for example because it has expired."""

    code = "url-stale"
    default_hint = "request another URL; if the store rejects that too, check this machine's clock and the pool's store"


class UrlRefused(InvalidInput):
    """The client must not send requests to this URL."""

    code = "url-refused"


class BytesRefused(Unprocessable):
    """The store received or sent other bytes than announced."""

    code = "other-bytes"


def refusal(status: int, kind: str, body: bytes) -> MusterError:
    """Returns the exception for an error response of a store."""
    if kind.split(";", maxsplit=1)[0].strip() == MEDIA_TYPE:
        error = error_of_answer(status, kind, body)
        if isinstance(error, Forbidden):
            return UrlStale(error.detail)
        if error.code == "other-bytes":
            return BytesRefused(error.detail, hint=error.hint)
        return error
    match = _CODE.search(body)
    code = match[1].decode() if match else ""
    words = f"the store answered {status}" + (f" ({code})" if code else "")
    if status == 429 or code == "SlowDown":
        return RateLimited(words, retry_after=timedelta(seconds=10))
    if 300 <= status < 400:
        words += ", a redirect; redirects are not followed"
    return _MEANINGS.get(code, _MEANINGS.get(status, TransferError))(words)


_MEANINGS: Mapping[str | int, type[MusterError]] = {
    401: UrlStale,
    403: UrlStale,
    404: NotFound,
    413: TooLarge,
    "EntityTooLarge": TooLarge,
    "NoSuchBucket": TransferError,
    "BadDigest": BytesRefused,
    "IncompleteBody": BytesRefused,
    "InvalidDigest": BytesRefused,
    "XAmzContentChecksumMismatch": BytesRefused,
    "XAmzContentSHA256Mismatch": BytesRefused,
}
"""Exception classes by the error code in a store's XML, or by HTTP status."""
