"""URL checks against SSRF: a URL chosen by a stranger must not lead into this machine's networks."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import SplitResult, urlsplit

from protocol.errors import InvalidInput, Unavailable

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""The part of IPv6 that IANA allocates from. Outside of it, only addresses that embed a public IPv4 address are
public."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052: a gateway translates these to the IPv4 address in the last 32 bits."""

_NEVER_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # RFC 6890: IETF protocol assignments; cloud metadata at 192.0.0.192
        "192.88.99.0/24",  # RFC 7526: the withdrawn anycast of 6to4 relays
        "168.63.129.16/32",  # a public address at which Azure answers its virtual machines only
        "2001::/23",  # RFC 2928: IETF protocol assignments, Teredo among them
        "3fff::/20",  # RFC 9637: documentation
    )
)
"""Special networks that `is_global` of some supported Python versions calls global."""


def parse_http_url(url: str, *, what: str, code: str = InvalidInput.code, query: bool = False) -> SplitResult:
    """Returns the parts of an http or https URL with a host, and without user, password and fragment.

    Args:
        url: The URL, possibly a stranger's.
        what: Names the URL in errors, such as `a relay's URL`.
        code: Code of the error.
        query: Whether a query is allowed.

    Raises:
        InvalidInput: The URL does not have this form.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # both raise ValueError on access if malformed
    except ValueError as error:
        raise InvalidInput(f"{url[:100]!r} is not a URL", hint="for example https://pool.example", code=code) from error
    extra = parts.username is not None or parts.password is not None or parts.fragment or (parts.query and not query)
    if parts.scheme not in {"http", "https"} or not host or extra:
        # The URL is not repeated: it may hold a password.
        excluded = "user and fragment" if query else "user, query and fragment"
        raise InvalidInput(f"{what} has the form https://host/path, without {excluded}", code=code)
    return parts


async def addresses_of(host: str, port: int) -> list[str]:
    """Returns the addresses of a host name, sorted. Connect to one of these: the name may resolve differently later.

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
    """Returns whether an address belongs to the public internet.

    An IPv6 address that stands for an IPv4 address (mapped, 6to4, NAT64 by the well-known prefix) is public if the IPv4
    address is.
    """
    parsed = _reached(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed not in _GLOBAL_UNICAST:
        return False
    special = any(parsed in network for network in _NEVER_PUBLIC)
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved and not special


def is_link_local(address: str) -> bool:
    """Returns whether an address is link-local, as cloud metadata services are, also as IPv4 within IPv6."""
    return _reached(address).is_link_local


def _reached(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Returns the IPv4 address that an IPv6 address stands for; else the address itself."""
    parsed = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return parsed
    if parsed in _NAT64:
        return ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
    return parsed.ipv4_mapped or parsed.sixtofour or parsed
