"""Whom a URL leads to. A URL that somebody else chose must not make us speak to our own network."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from protocol.errors import Unavailable

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052: a gateway on the way makes IPv4 of these."""


async def addresses_of(host: str, port: int) -> list[str]:
    """The addresses behind a name, sorted. Speak to one of these, not to the name: it may mean another a moment later.

    Raises:
        Unavailable: The name can't be resolved.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(
            f"the host {host[:100]} can't be found", hint="check its name", code="unknown-host"
        ) from error
    return sorted({str(entry[4][0]) for entry in found})


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet, also when it is IPv4 dressed as IPv6."""
    parsed = ipaddress.ip_address(address.split("%", 1)[0])
    inner = getattr(parsed, "ipv4_mapped", None) or getattr(parsed, "sixtofour", None)
    if inner is None and isinstance(parsed, ipaddress.IPv6Address) and parsed in _NAT64:
        inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
    if inner is not None:
        parsed = inner
    return parsed.is_global and not parsed.is_multicast
