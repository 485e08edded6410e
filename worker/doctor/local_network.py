"""Checks whether tasks reach the local network, and whether they reach the relays that they need."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Sequence
from datetime import timedelta
from ipaddress import AddressValueError, IPv4Address, ip_address
from urllib.parse import urlsplit

from protocol.errors import MusterError
from protocol.http.url_safety import addresses_of
from protocol.identity.keys import Key
from protocol.runtime.findings import DoctorFinding, failure, ok, warning
from worker.runtime.docker import DockerRuntime, engine_socket
from worker.runtime.network_filter import NetworkFilter
from worker.settings import LocalNetwork, WorkerSettings

_CHECK = "local network"
_RESOLVE_TIMEOUT = timedelta(seconds=5)


async def check_local_network(
    settings: WorkerSettings, *, with_docker: bool, addresses: Sequence[str]
) -> DoctorFinding | None:
    """Checks whether tasks reach the local network, as the settings say.

    If they must not, the packet filter is installed for a moment.

    Returns None if tasks without Docker get no network, or tasks may reach a local network that does not exist.

    Args:
        settings: Settings of the worker.
        with_docker: Whether tasks run in Docker.
        addresses: Addresses of this machine.
    """
    if with_docker and settings.denies_local_network:
        return await _check_filter(settings)
    if not (with_docker or settings.allow_host_network):
        return None
    private = sorted(each for each in addresses if (found := ip_address(each)).is_private and not found.is_loopback)
    if not private:
        return None
    reached = f"tasks with a network can reach the networks of {', '.join(private[:4])}"
    if settings.local_network is LocalNetwork.ALLOW:
        return ok(_CHECK, f"{reached}, as local_network allows")
    return warning(
        _CHECK,
        reached,
        'set local_network = "deny" in [worker], without allow_host_network, if you do not trust the pool; '
        '"allow" silences this warning',
    )


async def check_relays(urls: Sequence[str], settings: WorkerSettings) -> DoctorFinding | None:
    """Warns of relays in private networks, which tasks can't reach with `local_network = "deny"`.

    Returns None if there is no such relay.
    """
    if not settings.denies_local_network:
        return None
    allowed = NetworkFilter(allowed=settings.allow_networks)
    found = await asyncio.gather(*(_addresses(url) for url in urls))
    denied = [
        (url, address)
        for url, addresses in zip(urls, found, strict=True)
        for address in addresses
        if not allowed.allows(address)
    ]
    if not denied:
        return None
    named = ", ".join(f"{url} ({address})" for url, address in denied[:4])
    return warning(
        "relays",
        f"tasks can't reach relays in private networks: {named}",
        "if you trust the pool, add the relays' addresses to allow_networks in [worker], such as 10.0.0.5/32",
    )


def own_addresses() -> list[str]:
    """Returns the addresses with which this machine reaches other networks; sends nothing."""
    found = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # RFC 5737, RFC 3849
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            found.append(str(probe.getsockname()[0]))
    return found


async def _check_filter(settings: WorkerSettings) -> DoctorFinding:
    """Installs the packet filter as the worker does when it starts."""
    runtime = DockerRuntime(
        Key.generate().address,
        socket=engine_socket(settings.docker_host),
        network_filter=NetworkFilter(allowed=settings.allow_networks),
    )
    try:
        await runtime.check_filter()
    except MusterError as error:
        return failure(_CHECK, error.detail[:500], error.hint)
    finally:
        await runtime.close()
    besides = f", except {', '.join(map(str, settings.allow_networks))}" if settings.allow_networks else ""
    return ok(_CHECK, f"tasks in Docker can't reach private networks and this machine{besides}")


async def _addresses(url: str) -> list[IPv4Address]:
    """Returns the IPv4 addresses of a URL's host; none if the name can't be resolved."""
    parts = urlsplit(url)
    with contextlib.suppress(MusterError, TimeoutError):
        async with asyncio.timeout(_RESOLVE_TIMEOUT.total_seconds()):
            return list(_ipv4(await addresses_of(parts.hostname or "", parts.port or 443)))
    return []


def _ipv4(addresses: Iterable[str]) -> Iterable[IPv4Address]:
    for address in addresses:
        with contextlib.suppress(AddressValueError):
            yield IPv4Address(address)
