"""Settings of the discovery service.

They are read from `[discovery]` in the settings file, from `MUSTER_DISCOVERY_…` variables, and from flags.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, SecretStr

from protocol.http.rates import Rate
from protocol.runtime.settings import Settings

Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]


class DiscoverySettings(Settings):
    """Settings of `muster discovery serve`; several instances share one Redis and one key."""

    service: ClassVar[str] = "discovery"

    host: str = Field("127.0.0.1", description="Address to listen on; a reverse proxy terminates TLS")
    port: int = Field(8001, ge=0, le=65535, description="Port to listen on; 0 for any free one")
    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        description="Redis that stores records and invites; all instances share it",
    )
    chain_url: SecretStr = Field(SecretStr("http://127.0.0.1:8545"), description="JSON-RPC endpoint of the chain")
    deployment: Path = Field(description="File that names the chain and the contracts' addresses")
    keystore: Path | None = Field(
        None, description="Keystore file of the key that signs answers; or MUSTER_DISCOVERY_KEY"
    )
    password_file: Path | None = Field(
        None, description="File with the keystore's password; or MUSTER_DISCOVERY_PASSWORD"
    )
    trusted_proxies: tuple[str, ...] = Field(
        (), description="Networks of reverse proxies whose X-Forwarded-For is trusted"
    )

    peers: tuple[str, ...] = Field(
        (),
        max_length=16,
        description="URLs of discovery services whose nodes' signed records are pulled; `#0x…` adds the address, with "
        "which that service may read this one's",
    )
    federated_records: int = Field(
        200_000,
        ge=2,
        le=10_000_000,
        description="Maximum records from peers, of all pools; each peer has an equal part, and half of that for nodes "
        "that are not on the ledger",
    )
    federated_bytes: int = Field(
        256 << 20,
        ge=1 << 20,
        le=1 << 40,
        description="Maximum bytes of the records from peers, divided in the same way",
    )
    peer_seconds: Seconds = Field(30, description="Pause between two rounds of pulling from a peer, in seconds")
    allow_plain_http: bool = Field(
        False, description="Allow plain http to peers on other machines; only inside an encrypted network"
    )

    record_seconds: Seconds = Field(
        300, description="Time until a record expires unless its node refreshes it, in seconds"
    )
    nodes_per_ip: int = Field(
        64, ge=1, le=100_000, description="Maximum nodes that are registered from one IP (IPv6: one /64)"
    )
    nodes_per_pool: int = Field(
        100_000, ge=2, le=10_000_000, description="Maximum records of a pool; half of them only for nodes on the ledger"
    )
    role_seconds: Seconds = Field(15, description="Time for which the roles of a pool are cached, in seconds")
    stale_role_seconds: Seconds = Field(
        600, description="Time for which cached roles are used while the chain is down, in seconds"
    )
    poll_seconds: Seconds = Field(2, description="Pause between two reads of the ledger's events, in seconds")
    stale_facts_seconds: Seconds = Field(
        60, description="Age from which cached ledger facts count as stale, in seconds"
    )
    confirmations: int = Field(0, ge=0, le=1000, description="Confirmations (blocks on top) before an event counts")
    ip_requests_per_second: int = Field(
        50, ge=1, le=100_000, description="Maximum requests per second of one IP; a burst may have four times as many"
    )
    requests_per_second: int = Field(
        20,
        ge=1,
        le=100_000,
        description="Maximum requests per second of one signer; a burst may have ten times as many",
    )
    connections: int = Field(
        16_384,
        ge=16,
        le=1_000_000,
        description="Maximum open connections; the process's limit of open files also applies",
    )
    connections_per_ip: int = Field(
        1024, ge=1, le=1_000_000, description="Maximum open connections of one IP; not applied to trusted proxies"
    )

    @property
    def record_life(self) -> timedelta:
        """Time until a record expires unless it is refreshed."""
        return timedelta(seconds=self.record_seconds)

    @property
    def ip_rate(self) -> Rate:
        """Rate limit of one IP."""
        count = self.ip_requests_per_second
        return Rate(count=count, per=timedelta(seconds=1), burst=4 * count)

    @property
    def address_rate(self) -> Rate:
        """Rate limit of one signer."""
        count = self.requests_per_second
        return Rate(count=count, per=timedelta(seconds=1), burst=10 * count)
