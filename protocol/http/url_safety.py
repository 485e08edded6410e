"""URL checks against server-side request forgery (SSRF).

A URL that a stranger chose must not lead into the networks of this machine.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

import httpx

from protocol.errors import InvalidInput, Unavailable

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""Part of the IPv6 address space from which IANA allocates. Outside of it, only addresses that embed a public IPv4
address are public.
"""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Prefix of RFC 6052. A gateway translates these addresses to the IPv4 address in their last 32 bits."""

_NEVER_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # RFC 6890: IETF protocol assignments; cloud metadata at 192.0.0.192
        "192.88.99.0/24",  # RFC 7526: the withdrawn anycast of 6to4 relays
        "168.63.129.16/32",  # a public address at which Azure serves only its own virtual machines
        "2001::/23",  # RFC 2928: IETF protocol assignments, Teredo among them
        "3fff::/20",  # RFC 9637: addresses for use in documentation
    )
)
"""Special networks that `is_global` reports as global in some supported versions of Python."""


def without_secrets(url: str) -> str:
    """Returns scheme, host and port only: providers put API keys into paths, queries and user names.

    Raises:
        ValueError: The URL is malformed.
    """
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def parse_http_url(url: str, *, what: str, code: str = InvalidInput.code, query: bool = False) -> SplitResult:
    """Returns the parts of an http or https URL.

    The URL must have a host, and no user, password or fragment.

    Args:
        url: The URL, which a stranger may have chosen.
        what: Name of the URL in errors, such as `a relay's URL`.
        code: Error code of the raised error.
        query: Whether a query is allowed.

    Raises:
        InvalidInput: The URL is malformed or has a part that is not allowed.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # reading these attributes raises ValueError if they are malformed
    except ValueError:
        # Neither error repeats the URL, because it may contain a password.
        raise InvalidInput(f"{what} is not a URL", hint="write a URL like https://pool.example", code=code) from None
    extra = parts.username is not None or parts.password is not None or parts.fragment or (parts.query and not query)
    if parts.scheme not in {"http", "https"} or not host or extra:
        excluded = "user and fragment" if query else "user, query and fragment"
        raise InvalidInput(
            f"{what} must have the form https://host/path, without {excluded}",
            hint="write a URL like https://pool.example",
            code=code,
        )
    return parts


async def addresses_of(host: str, port: int) -> list[str]:
    """Returns the IP addresses of a host name, in the order in which the system would try them.

    So an IPv6 address that this machine can't reach comes after the reachable ones. The caller must connect to one of
    these addresses (`directed_to`), because the name may resolve differently later.

    Raises:
        Unavailable: The name can't be resolved.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(
            f"the host name {host[:100]} can't be resolved",
            hint="check the name, and this machine's DNS",
            code="unknown-host",
        ) from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def directed_to(request: httpx.Request, address: str) -> httpx.Request:
    """Directs a request to an IP address that was checked, and returns it.

    TLS still verifies the certificate of the URL's host name, and the header `Host` still has it. Without this, the
    HTTP client would resolve the name again and may connect to another address (DNS rebinding).
    """
    request.extensions = {**request.extensions, "sni_hostname": request.url.host}
    request.url = request.url.copy_with(host=address)
    return request


def is_public(address: str) -> bool:
    """Returns whether an IP address belongs to the public internet.

    An IPv6 address that contains an IPv4 address (mapped, 6to4, or NAT64 with the well-known prefix) is public if the
    IPv4 address is public.
    """
    parsed = _reached(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed not in _GLOBAL_UNICAST:
        return False
    special = any(parsed in network for network in _NEVER_PUBLIC)
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved and not special


def is_in(address: str, networks: Sequence[ipaddress.IPv4Network]) -> bool:
    """Returns whether an IP address is in one of the networks.

    This includes IPv4 addresses inside IPv6 addresses.
    """
    parsed = _reached(address)
    return isinstance(parsed, ipaddress.IPv4Address) and any(parsed in network for network in networks)


def is_loopback(host: str) -> bool:
    """Returns whether a host, given by its name or IP address, is this machine.

    The names are `localhost` and those below it (RFC 6761); they are not resolved.
    """
    try:
        return ipaddress.ip_address(host.split("%", 1)[0]).is_loopback
    except ValueError:
        name = host.lower()
        return name == "localhost" or name.endswith(".localhost")


def is_link_local(address: str) -> bool:
    """Returns whether an IP address is link-local, as cloud metadata services are.

    This includes link-local IPv4 addresses inside IPv6 addresses.
    """
    return _reached(address).is_link_local


def _reached(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Returns the IPv4 address that an IPv6 address contains, else the address itself."""
    parsed = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return parsed
    if parsed in _NAT64:
        return ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
    return parsed.ipv4_mapped or parsed.sixtofour or parsed
