"""Keeps requests to services that the pool names out of the contributor's network."""

from __future__ import annotations

from urllib.parse import urlsplit

from protocol.clients import ServiceLocation
from protocol.errors import InvalidInput, Unavailable
from protocol.http.url_safety import addresses_of, is_in, is_link_local, is_public
from worker.runtime.network_filter import own_addresses
from worker.settings import WorkerSettings

PORTS = {"http": 80, "https": 443}
"""Ports of URLs without one."""


class PoolReach:
    """Decides which addresses of the pool's services the worker may connect to.

    An address in a private network, or of this machine, is allowed only if it is also the address of a discovery
    service in the contributor's own settings, or if `allow_networks` lists it. With `allow_plain_http`, the pool is in
    the contributor's network, and only link-local addresses are refused: metadata services of clouds are there.

    Args:
        settings: Settings of the worker.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings

    async def address_of(self, host: str, port: int) -> str:
        """Resolves a host name, checks all of its addresses, and returns the one to connect to.

        Raises:
            InvalidInput: The name has an address that is not allowed.
            Unavailable: The name can't be resolved.
        """
        found = await addresses_of(host, port)
        here = {str(each) for each in own_addresses()}
        settings = self._settings
        inside = [
            each for each in found if (each in here or not is_public(each)) and not is_in(each, settings.allow_networks)
        ]
        if settings.allow_plain_http:
            refused = [each for each in inside if is_link_local(each)]
        else:
            own = await self._of_own_discovery() if inside else set()
            refused = [each for each in inside if each not in own]
        if refused:
            raise InvalidInput(
                f"the host {host[:100]} of a URL from the pool has the private address {refused[0]}",
                hint="if the pool is in your network, list the address in allow_networks",
                code="private-address",
            )
        return found[0]

    async def check(self, location: ServiceLocation) -> None:
        """Checks a URL, so that one that can't be used now is not added.

        Raises:
            InvalidInput: It leads to an address that is not allowed.
            Unavailable: The name can't be resolved.
        """
        parts = urlsplit(location.url)
        await self.address_of(parts.hostname or "", parts.port or PORTS[parts.scheme])

    async def _of_own_discovery(self) -> set[str]:
        """Returns the addresses of the discovery services in the settings; those that can't be resolved are missing."""
        found: set[str] = set()
        for each in self._settings.discovery:
            parts = urlsplit(ServiceLocation.parse(each, allow_plain_http=True).url)
            try:
                found.update(await addresses_of(parts.hostname or "", parts.port or PORTS[parts.scheme]))
            except Unavailable:
                continue
        return found
