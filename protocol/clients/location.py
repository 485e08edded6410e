"""URL of a service and, optionally, the address that it must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from protocol.http.client import check_service_url
from protocol.identifiers import Address, address


@dataclass(frozen=True, slots=True)
class ServiceLocation:
    """A service's URL, with its address if that is pinned: `https://discovery.example#0x52908400098527886E0F7030…`."""

    url: str
    address: Address | None = None
    """Address that must have signed the answers; if None, TLS alone authenticates the service."""

    @classmethod
    def parse(cls, text: str, *, allow_plain_http: bool = False) -> Self:
        """Reads a URL with or without `#address`.

        Raises:
            InvalidInput: The text is not an HTTP URL, is plain `http` to another machine, or has a malformed address.
        """
        url, _, pinned = text.strip().partition("#")
        check_service_url(url, allow_plain_http=allow_plain_http)
        return cls(url.rstrip("/"), address(pinned) if pinned else None)

    def __str__(self) -> str:
        return f"{self.url}#{self.address}" if self.address else self.url
