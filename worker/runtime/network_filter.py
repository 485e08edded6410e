"""Packet filter rules that keep a task's container away from the local network.

The rules are input of `iptables-restore` and `ip6tables-restore`, for the network namespace of one container. They
filter what the container sends; a container that can't answer can't be used from outside either.

Routes instead of rules would not be enough: a process without any privilege can bind a socket to an interface
(`SO_BINDTODEVICE`), and Linux then reaches hosts on the link, this machine among them, although a blackhole route is in
the way (`ip_route_output_key_hash_rcu` in net/ipv4/route.c).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import psutil

RESOLVER_FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""Files from which Docker takes the name servers of containers. With systemd-resolved the first names only its stub on
loopback, and Docker reads the second.
"""

DENIED = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",  # RFC 1918
        "100.64.0.0/10",  # RFC 6598: carrier-grade NAT, and overlay networks such as Tailscale's
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's services for its own virtual machines
        "169.254.0.0/16",  # RFC 3927: link-local; cloud metadata at 169.254.169.254
        "172.16.0.0/12",  # RFC 1918; Docker's own networks
        "192.0.0.0/24",  # RFC 6890; cloud metadata at 192.0.0.192
        "192.0.2.0/24",  # RFC 5737: documentation
        "192.88.99.0/24",  # RFC 7526: the withdrawn anycast of 6to4 relays
        "192.168.0.0/16",  # RFC 1918
        "198.18.0.0/15",  # RFC 2544: benchmarks
        "198.51.100.0/24",  # RFC 5737
        "203.0.113.0/24",  # RFC 5737
        "224.0.0.0/4",  # multicast: discovery of services on the link
        "240.0.0.0/4",  # reserved, and the broadcast address
    )
)
"""IPv4 networks that are not the public internet: those for which `protocol.http.url_safety.is_public` is False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRules:
    """Input of `iptables-restore` and of `ip6tables-restore`."""

    ipv4: str
    ipv6: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFilter:
    """Denies private networks and this machine to containers.

    Args:
        allowed: Networks that containers reach although they are private.
    """

    allowed: tuple[IPv4Network, ...] = ()

    @property
    def label(self) -> str:
        """Text that identifies the contributor's choice; a container with another one is replaced."""
        return " ".join(("deny", *map(str, sorted(self.allowed))))

    def rules(self, *, own: Iterable[IPv4Address], name_servers: Iterable[IPv4Address]) -> FilterRules:
        """Returns the rules for one container.

        Args:
            own: Addresses of this machine. Public ones are denied too, because services of this machine may listen
                there behind a firewall.
            name_servers: Name servers to which the engine sends queries. It does so from the container's namespace, so
                that port 53 of private ones has to be open.
        """
        reachable = [f"-A OUTPUT -d {network} -j ACCEPT" for network in sorted(self.allowed)]
        reachable += [
            f"-A OUTPUT -p {protocol} -d {server} --dport 53 -j ACCEPT"
            for server in sorted(set(name_servers))
            for protocol in ("udp", "tcp")
        ]
        denied = [*DENIED, *(IPv4Network(address) for address in sorted(set(own)) if not _is_denied(address))]
        refused = [f"-A OUTPUT -d {network} -j REJECT --reject-with icmp-admin-prohibited" for network in denied]
        return FilterRules(
            ipv4=_table([*reachable, *refused]),
            # The worker's network has no IPv6. The rule holds if the engine's settings add it.
            ipv6=_table(["-A OUTPUT -j REJECT --reject-with icmp6-adm-prohibited"]),
        )

    def allows(self, address: IPv4Address) -> bool:
        """Returns whether containers reach an address, unless it is this machine's."""
        return not _is_denied(address) or any(address in network for network in self.allowed)


def own_addresses() -> list[IPv4Address]:
    """Returns the IPv4 addresses of this machine's interfaces."""
    return [
        IPv4Address(found.address)
        for interface in psutil.net_if_addrs().values()
        for found in interface
        if found.family == socket.AF_INET
    ]


def name_servers(files: Sequence[Path] = RESOLVER_FILES) -> list[IPv4Address]:
    """Returns the IPv4 name servers of this machine, without those on loopback."""
    return [server for file in files for server in _servers_in(file) if not server.is_loopback]


def _servers_in(file: Path) -> Iterator[IPv4Address]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in file.read_text().splitlines():
            match line.split():
                case ["nameserver", address, *_]:
                    with contextlib.suppress(ValueError):
                        yield IPv4Address(address)


def _is_denied(address: IPv4Address) -> bool:
    return any(address in network for network in DENIED)


def _table(rules: Sequence[str]) -> str:
    # Loopback is the container's own. Docker's resolver at 127.0.0.11 answers there too.
    lines = ["*filter", ":INPUT ACCEPT", ":FORWARD DROP", ":OUTPUT ACCEPT", "-A OUTPUT -o lo -j ACCEPT", *rules]
    return "\n".join([*lines, "COMMIT", ""])
