"""Converts error responses of object stores into errors: S3's XML codes, problem JSON, or a bare status.

MusterError
├── TransferError       the store is down, slow, full, or sends invalid answers            retryable
│   └── UrlStale        the store does not accept the URL any more: request another
├── BytesRefused        the store received or sent other bytes than announced
└── UrlRefused          requests to such a URL are not allowed
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
    """The store failed or refused the request; a retry may succeed."""

    code = "transfer-failed"
    default_hint = "nothing is lost: the transfer is tried again later"


class UrlStale(TransferError):
    """The store rejects the URL, for example because it has expired."""

    code = "url-stale"
    default_hint = "request another URL; if the store rejects that too, check this machine's clock and the pool's store"


class UrlRefused(InvalidInput):
    """A URL to which requests are not allowed."""

    code = "url-refused"


class BytesRefused(Unprocessable):
    """The bytes differ from the announced ones."""

    code = "other-bytes"


def refusal(status: int, kind: str, body: bytes) -> MusterError:
    """Returns the error for an unsuccessful response of any kind of store."""
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
        words += ", a redirect, which is not followed"
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
"""Errors by the code in a store's XML, or by status."""
