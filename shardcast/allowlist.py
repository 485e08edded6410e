"""Allow lists for checkpoint downloads, for nginx and nftables.

The module writes the lists, and makes nginx and nftables load them.

A new list replaces the old one atomically, so that no download is refused in between. A list contains IP addresses, not
nodes: nodes behind one address are allowed or blocked together.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import Final

from protocol.errors import InvalidInput, Unavailable
from protocol.runtime.files import write_atomically

Network = IPv4Network | IPv6Network

NFT_TIMEOUT: Final = timedelta(seconds=30)
"""Longest run time of one `nft` command."""
TABLE: Final = "inet muster"
"""Family and name of the nftables table; the chain that uses the table's sets is in `deploy/nftables/shardcast.nft`."""
_PER_LINE: Final = 16
"""Number of networks in one `add element` command."""

_HEAD: Final = "# Written by `muster shardcast allowlist`. Manual changes are lost.\n"


class ReloadFailed(Unavailable):
    """The list was written, but nginx or nft did not load it."""

    code = "reload-failed"


def allowed_networks(ips: Iterable[IPv4Address | IPv6Address], *, also: Iterable[str] = ()) -> tuple[Network, ...]:
    """Returns the smallest set of networks that covers exactly these addresses, IPv4 first.

    Args:
        ips: Addresses of nodes. An IPv4-mapped IPv6 address counts as its IPv4 address, because IP packets contain
            the IPv4 address.
        also: Further networks to allow, such as `203.0.113.0/24`.

    Raises:
        InvalidInput: One of `also` is not a network.
    """
    four: list[IPv4Network] = []
    six: list[IPv6Network] = []
    for network in [*map(_single, ips), *map(_network, also)]:
        if isinstance(network, IPv4Network):
            four.append(network)
        else:
            six.append(network)
    return (*ipaddress.collapse_addresses(four), *ipaddress.collapse_addresses(six))


def nginx_list(networks: Iterable[Network]) -> str:
    """Returns the lines of an nginx `geo` block, one per network, such as `203.0.113.7/32 1;`."""
    return _HEAD + "".join(f"{network} 1;\n" for network in networks)


def nftables_list(networks: Iterable[Network]) -> str:
    """Returns commands for `nft -f` that replace the elements of the address sets `allowed4` and `allowed6`.

    `nft -f` applies all commands of a file or none of them, so that no packet is checked against half a list.
    """
    listed = list(networks)
    parts = [_HEAD, f"add table {TABLE}\n"]
    for name, kind, version in (("allowed4", "ipv4_addr", 4), ("allowed6", "ipv6_addr", 6)):
        parts.append(f"add set {TABLE} {name} {{ type {kind}; flags interval; auto-merge; }}\n")
        parts.append(f"flush set {TABLE} {name}\n")
        members = [str(network) for network in listed if network.version == version]
        parts += [
            f"add element {TABLE} {name} {{ {', '.join(members[at : at + _PER_LINE])} }}\n"
            for at in range(0, len(members), _PER_LINE)
        ]
    return "".join(parts)


@dataclass(slots=True, kw_only=True)
class FirewallRules:
    """Files that receive the allow list, and the processes that load these files.

    Args:
        nginx: File that a `geo` block of nginx includes; None writes no nginx list.
        nginx_pid: PID file of nginx, whose master process gets SIGHUP to reload its configuration; None sends no
            signal.
        nftables: File of commands for `nft`; None writes no nftables list.
        apply: Whether to run `nft` on the file `nftables`.
    """

    nginx: Path | None = None
    nginx_pid: Path | None = None
    nftables: Path | None = None
    apply: bool = False
    _behind: set[str] = field(default_factory=lambda: {"nginx", "nftables"}, init=False)
    """Those of the two programs, nginx and nftables, that may not have loaded the newest list yet."""

    async def install(self, networks: Iterable[Network]) -> bool:
        """Writes changed files and makes nginx and nft load them; returns whether any file was loaded.

        Raises:
            ReloadFailed: nginx or nft did not load its file; the next call tries again.
            OSError: A file can't be written; the old file is unchanged.
        """
        listed = list(networks)
        if self.nginx is not None and replace_file(self.nginx, nginx_list(listed)):
            self._behind.add("nginx")
        if self.nftables is not None and replace_file(self.nftables, nftables_list(listed)):
            self._behind.add("nftables")
        outcomes = [await self._reload_nftables(), self._reload_nginx()]
        for outcome in outcomes:
            if isinstance(outcome, ReloadFailed):
                raise outcome
        return True in outcomes

    async def _reload_nftables(self) -> bool | ReloadFailed:
        if self.nftables is None or not self.apply or "nftables" not in self._behind:
            return False
        try:
            await apply_nftables(self.nftables)
        except ReloadFailed as error:
            return error
        self._behind.discard("nftables")
        return True

    def _reload_nginx(self) -> bool | ReloadFailed:
        if self.nginx_pid is None or "nginx" not in self._behind:
            return False
        try:
            hang_up(self.nginx_pid)
        except ReloadFailed as error:
            return error
        self._behind.discard("nginx")
        return True


def replace_file(path: Path, text: str) -> bool:
    """Replaces a file atomically, unless its content is the same.

    Returns:
        Whether the file changed.
    """
    try:
        if path.read_text() == text:
            return False
    except FileNotFoundError:
        pass
    write_atomically(path, text, mode=0o644)  # readable by all: nginx's worker processes run as another user
    return True


def hang_up(pid_file: Path) -> None:
    """Sends SIGHUP to nginx, which reloads its configuration.

    Running downloads continue in nginx's old worker processes.

    Raises:
        ReloadFailed: nginx does not run, or this user may not signal it.
    """
    try:
        os.kill(int(pid_file.read_text().strip()), signal.SIGHUP)
    except (OSError, ValueError) as error:
        raise ReloadFailed(
            f"can't signal the nginx process that {pid_file} names: {error}",
            hint="check that nginx runs, and that this user may signal it",
        ) from None


async def apply_nftables(path: Path) -> None:
    """Loads a file of commands by `nft -f`.

    Raises:
        ReloadFailed: `nft` is not installed, fails, or takes too long; the active sets are unchanged.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            "nft", "-f", str(path), stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise ReloadFailed(f"can't run nft: {error}", hint="install nftables") from None
    try:
        async with asyncio.timeout(NFT_TIMEOUT.total_seconds()):
            _, stderr = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ReloadFailed(f"nft took longer than {NFT_TIMEOUT.total_seconds():.0f} s") from None
    if process.returncode:
        lines = stderr.decode(errors="replace").strip().splitlines()
        raise ReloadFailed(
            f"nft refuses {path}: {lines[0] if lines else process.returncode}",
            hint="run this as root, or with the capability CAP_NET_ADMIN, which nft needs",
        )


def _single(ip: IPv4Address | IPv6Address) -> Network:
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return IPv4Network(ip) if isinstance(ip, IPv4Address) else IPv6Network(ip.packed)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise InvalidInput(
            f"{text[:60]!r} is not a network", hint="give an address or a network, such as 203.0.113.7 or 10.0.0.0/8"
        ) from None
