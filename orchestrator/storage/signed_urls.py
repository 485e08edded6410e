"""Signed URLs for the object store in a local directory.

A URL is valid for one method, one object and a limited time; a PUT also for one size and media type. The object's key
contains the SHA-256. The secret that signs URLs is stored in the same directory, so that all orchestrators that share
the directory accept each other's URLs.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

from protocol.errors import Forbidden
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.runtime.files import create_atomically
from protocol.wire.uploads import ObjectKey

PATH = "/v1/blobs/"
SCHEME = "muster-blob-v1"
_SECRET_BYTES = 32


class BadUrl(Forbidden):
    """The URL was not signed by this store, or was changed."""

    code = "bad-url"
    default_hint = "use the URL exactly as it was given, with the method that it was given for"


class UrlExpired(Forbidden):
    """The URL has expired."""

    code = "url-expired"
    default_hint = "ask for another URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTerms:
    """Conditions of an upload, as signed in its URL."""

    expires: datetime
    size: int
    """Size of the object, in bytes."""
    content_type: str
    """Media type of the object."""


class UrlSigner:
    """Signs and verifies URLs.

    Args:
        base_url: URL by which workers reach this orchestrator.
        secret: HMAC secret of 32 bytes.
        clock: Clock of expiry times.
    """

    def __init__(self, base_url: str, *, secret: bytes, clock: Clock) -> None:
        self._base_url = base_url.rstrip("/")
        self._secret = secret
        self._clock = clock

    def put_url(self, key: ObjectKey, *, size: int, content_type: str, expires: datetime) -> str:
        """Returns a URL for the upload of exactly this object."""
        return self._url("PUT", key, {"expires": str(unix_ms(expires)), "size": str(size), "type": content_type})

    def get_url(self, key: ObjectKey, *, expires: datetime) -> str:
        """Returns a URL for GET and HEAD requests of this object."""
        return self._url("GET", key, {"expires": str(unix_ms(expires))})

    def check_put(self, key: ObjectKey, query: Mapping[str, str]) -> PutTerms:
        """Verifies the URL of a PUT and returns its terms.

        Raises:
            BadUrl: The signature is invalid.
            UrlExpired: The URL has expired.
        """
        terms = self._checked("PUT", key, query, ("expires", "size", "type"))
        expires = datetime.fromtimestamp(int(terms["expires"]) / 1000, UTC)
        return PutTerms(expires=expires, size=int(terms["size"]), content_type=terms["type"])

    def check_get(self, key: ObjectKey, query: Mapping[str, str]) -> None:
        """Verifies the URL of a GET.

        Raises:
            BadUrl: The signature is invalid.
            UrlExpired: The URL has expired.
        """
        self._checked("GET", key, query, ("expires",))

    def _url(self, method: str, key: ObjectKey, terms: Mapping[str, str]) -> str:
        query = urlencode({**terms, "signature": self._sign(method, key, terms)})
        return f"{self._base_url}{PATH}{key}?{query}"

    def _checked(self, method: str, key: ObjectKey, query: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
        terms = {name: query.get(name, "") for name in names}
        given = query.get("signature", "")
        if set(query) != {*names, "signature"} or not hmac.compare_digest(
            given.encode(), self._sign(method, key, terms).encode()
        ):
            raise BadUrl(f"this URL does not allow {method} of this object")
        if int(terms["expires"]) < unix_ms(
            self._clock.now()
        ):  # this service signed the URL, so `expires` is an integer
            raise UrlExpired("the URL has expired")
        return terms

    def _sign(self, method: str, key: ObjectKey, terms: Mapping[str, str]) -> str:
        lines = (SCHEME, method, str(key), *(f"{name}={terms[name]}" for name in sorted(terms)))
        return hmac.digest(self._secret, "\n".join(lines).encode(), "sha256").hex()


def shared_secret(path: Path) -> bytes:
    """Returns the secret in a file; creates the file if it does not exist."""
    if not path.exists():
        with suppress(FileExistsError):  # another process created the file first
            create_atomically(path, secrets.token_bytes(_SECRET_BYTES))
    return path.read_bytes()
