"""Where a webhook may go. A pool owner's URL must not make the orchestrator speak to its own network."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from protocol.errors import InvalidInput, Unavailable

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052: a gateway on the way makes IPv4 of these."""


async def check_destination(url: str, *, allow_private: bool) -> list[str]:
    """Returns the addresses behind the URL, if all of them may be spoken to.

    Deliver to one of these, not to the name: a name may mean another address a moment later.

    Raises:
        InvalidInput: It is plain http or leads into a private network, and that is not allowed; or it is no URL.
        Unavailable: The name can't be resolved.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise InvalidInput(f"{url[:100]!r} is not a URL") from error
    if parts.scheme not in {"http", "https"} or not host or parts.username or parts.password or parts.fragment:
        raise InvalidInput("a webhook's URL is https://host/path, without user and password", code="bad-webhook-url")
    if parts.scheme == "http" and not allow_private:
        raise InvalidInput("webhooks go over https", hint="use an https receiver", code="bad-webhook-url")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"the webhook's host {host[:100]} can't be found", hint="check its name") from error
    addresses = sorted({str(entry[4][0]) for entry in found})
    for one in addresses:
        if not allow_private and not is_public(one):
            raise InvalidInput(
                f"the webhook's host {host[:100]} is {one}, inside a private network",
                hint="use a public receiver, or allow webhooks_to_private_networks in the settings",
                code="private-webhook-url",
            )
    return addresses


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet, also when it is IPv4 dressed as IPv6."""
    parsed = ipaddress.ip_address(address.split("%", 1)[0])
    inner = getattr(parsed, "ipv4_mapped", None) or getattr(parsed, "sixtofour", None)
    if inner is None and isinstance(parsed, ipaddress.IPv6Address) and parsed in _NAT64:
        inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
    if inner is not None:
        parsed = inner
    return parsed.is_global and not parsed.is_multicast
