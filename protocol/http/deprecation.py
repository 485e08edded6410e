"""Announces the end of routes and protocol versions in response headers.

`Deprecation` (RFC 9745) names the time since which a route or version is deprecated, `Sunset` (RFC 8594) the time from
which it may be missing, and `Link` the page that explains what to use instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime

from protocol.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecation:
    """Declares that a route, a protocol version, or one version of a route ends.

    A response is marked if it matches both `version` and `route`, where None matches everything.
    """

    since: datetime
    """Time with zone from which the subject is deprecated. It may be in the future."""
    sunset: datetime
    """UTC time from which the subject may be missing; not before `since`."""
    link: str
    """URL of the page that explains what to use instead."""
    version: int | None = None
    """Agreed protocol version of the request."""
    route: tuple[str, str] | None = None
    """Method and template of the route, such as `("GET", "/v1/nodes/{node}")`."""

    def __post_init__(self) -> None:
        if self.version is None and self.route is None:
            raise InvalidInput(
                "a deprecation needs a version or a route", hint="name one in the service's `create_service`"
            )
        if self.sunset < self.since:
            raise InvalidInput(
                "a deprecated subject can't end before it is deprecated", hint="give an end after the beginning"
            )

    def matches(self, *, version: int | None, method: str, template: str) -> bool:
        """Returns whether a response is about the deprecated subject.

        Args:
            version: Agreed protocol version; None if none was agreed.
            method: HTTP method of the request.
            template: Template of the route that answered; empty if none matched.
        """
        return self.version in {None, version} and self.route in {None, (method, template)}

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Returns the header fields, with lower-case names as ASGI requires."""
        return [
            (b"deprecation", b"@%d" % int(self.since.timestamp())),
            (b"sunset", format_datetime(self.sunset, usegmt=True).encode("ascii")),
            (b"link", f'<{self.link}>; rel="deprecation"; type="text/html"'.encode("ascii")),
        ]
