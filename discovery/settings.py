"""Settings of the discovery service."""

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
        SecretStr("redis://127.0.0.1:6379/0"), description="Redis that holds records and invites"
    )
    chain_url: SecretStr = Field(SecretStr("http://127.0.0.1:8545"), description="JSON-RPC of the ledger's chain")
    deployment: Path = Field(description="File that names the chain and the contracts' addresses")
    keystore: Path | None = Field(
        None, description="Key that signs responses; its address is the audience of requests. Or MUSTER_DISCOVERY_KEY"
    )
    password_file: Path | None = Field(None, description="File with the keystore's password; or ..._PASSWORD")
    trusted_proxies: tuple[str, ...] = Field((), description="Networks whose X-Forwarded-For header is trusted")

    record_seconds: Seconds = Field(300, description="How long a record lasts unless the node refreshes it")
    nodes_per_ip: int = Field(
        64, ge=1, le=100_000, description="Nodes registered from one IP (IPv6: one /64) at a time"
    )
    nodes_per_pool: int = Field(
        100_000, ge=2, le=10_000_000, description="Records of a pool; the second half is kept for nodes on the ledger"
    )
    role_seconds: Seconds = Field(15, description="How long a role read from the ledger is cached")
    stale_role_seconds: Seconds = Field(
        600, description="How long a cached role is used while the chain is unavailable"
    )
    poll_seconds: Seconds = Field(2, description="How often the ledger's events are read")
    stale_facts_seconds: Seconds = Field(60, description="Age at which the ledger's facts count as stale")
    confirmations: int = Field(
        0, ge=0, le=1000, description="Blocks required on top of a block before its events count"
    )
    ip_requests_per_second: int = Field(
        50, ge=1, le=100_000, description="Requests per second from one IP; bursts of up to four seconds' worth"
    )
    requests_per_second: int = Field(
        20, ge=1, le=100_000, description="Requests per second of one address; bursts of up to ten seconds' worth"
    )
    connections: int = Field(
        16_384, ge=16, le=1_000_000, description="Connections at a time, and no more than open files allow"
    )
    connections_per_ip: int = Field(
        1024, ge=1, le=1_000_000, description="Connections of one IP at a time; trusted proxies have no such limit"
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
