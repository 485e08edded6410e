"""URL of a service and, optionally, the address that it must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from protocol.errors import InvalidInput
from protocol.http.url_safety import is_loopback, parse_http_url
from protocol.identifiers import Address, address


@dataclass(frozen=True, slots=True)
class ServiceLocation:
    """A service's URL and optionally its address.

    As text: `https://discovery.example#0x52908400098527886E0F7030…`.
    """

    url: str
    address: Address | None = None
    """Address that must have signed the answers. If it is None, TLS alone authenticates the service, also when its
    address changes; the client then logs a warning."""

    @classmethod
    def parse(cls, text: str, *, allow_plain_http: bool = False) -> Self:
        """Parses a URL with or without `#address`.

        Raises:
            InvalidInput: The text is not an HTTP URL, is plain `http` to another machine, or has a malformed address.
        """
        url, _, pinned = text.strip().partition("#")
        check_service_url(url, allow_plain_http=allow_plain_http)
        return cls(url.rstrip("/"), address(pinned) if pinned else None)

    def __str__(self) -> str:
        return f"{self.url}#{self.address}" if self.address else self.url


def check_service_url(url: str, *, allow_plain_http: bool = False) -> None:
    """Checks that requests may be sent to a service at this URL.

    Raises:
        InvalidInput: The URL is not an HTTP URL, or uses plain `http` to another machine.
    """
    parts = parse_http_url(url, what="a service's URL")
    host = parts.hostname or ""
    if parts.scheme == "http" and not allow_plain_http and not is_loopback(host):
        raise InvalidInput(
            f"plain http to {host} would let others on the network path read and change messages",
            hint="use https; inside an encrypted network, you can allow plain http in the settings",
            code="plain-http",
        )
