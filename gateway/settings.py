"""Settings of the gateway.

They are read from `[gateway]` in the settings file, from `MUSTER_GATEWAY_…` variables, and from flags.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, SecretStr

from protocol.http.rates import Rate
from protocol.runtime.settings import Settings
from protocol.wire.base import Name
from protocol.wire.runs import MOST_ARITHMETIC, ArithmeticName
from protocol.wire.served import MOST_BODY_BYTES

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Verify(Enum):
    """When verifiers of the pool's owner check answers."""

    NONE = "none"
    SAMPLED = "sampled"
    BEFORE = "before"


class GatewaySettings(Settings):
    """Settings of `muster gateway run`. Several replicas of a gateway share Redis, key and settings."""

    service: ClassVar[str] = "gateway"

    host: str = Field("127.0.0.1", description="Address to listen on; a reverse proxy terminates TLS")
    port: int = Field(8005, ge=0, le=65535, description="Port to listen on; 0 for any free one")
    public_url: str = Field(description="URL by which workers' tasks reach this gateway")
    pool_id: int = Field(ge=1, description="Number of the pool on the ledger")
    run: Name = Field(description="Name of the pool's run")
    model: str | None = Field(
        None, min_length=1, max_length=200, description="Name of the model in requests; default: the run's name"
    )
    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"), description="Redis 6.2 or newer; all replicas share it"
    )
    chain_url: SecretStr = Field(SecretStr("http://127.0.0.1:8545"), description="JSON-RPC endpoint of the chain")
    deployment: Path = Field(description="File that names the chain and the contracts' addresses")
    keystore: Path | None = Field(
        None, description="Keystore file of the key that signs lists of requests; or MUSTER_GATEWAY_KEY"
    )
    password_file: Path | None = Field(
        None, description="File with the password of `keystore`; or MUSTER_GATEWAY_PASSWORD"
    )
    trusted_proxies: tuple[str, ...] = Field(
        (), description="Networks of reverse proxies whose X-Forwarded-For is trusted"
    )

    arithmetic: tuple[ArithmeticName, ...] = Field(
        ("torch/float32", "vllm/float32"),
        min_length=1,
        max_length=MOST_ARITHMETIC,
        description="Engines with number types, or numerics classes, that may answer; as in the version's recipe",
    )
    verify: Verify = Field(
        Verify.NONE, description="Whether verifiers check no answers, a share of them, or each one before its delivery"
    )
    verify_share: float = Field(0.1, ge=0, le=1, description="Share of the answers that `sampled` verifies")
    verify_timeout_s: Seconds = Field(60, description="Longest wait for a verifier's result, in seconds")
    distrust_time_s: float = Field(
        3600,
        ge=0,
        le=30 * 86_400,
        description="Time for which a node gets no requests after an answer that a verifier found invalid, in seconds",
    )

    slot_time_s: Seconds = Field(
        60, description="Time after a session's first answer at which it ends, so that its node is paid, in seconds"
    )
    margin_s: Seconds = Field(
        60, description="Time before a lease's end at which its session ends, for upload and work claim, in seconds"
    )
    session_lost_s: Seconds = Field(10, description="Time without a poll after which a session is lost, in seconds")
    answer_timeout_s: Seconds = Field(
        60, description="Time without a part of an answer after which another worker gets the request, in seconds"
    )
    wait_timeout_s: Seconds = Field(
        60, description="Longest time that a request waits for a worker; then it gets a 503, in seconds"
    )
    request_timeout_s: Seconds = Field(1800, description="Longest time of a whole request, in seconds")
    attempts: int = Field(3, ge=1, le=16, description="Maximum attempts of workers to answer a request")
    most_waiting: int = Field(
        1024, ge=1, le=100_000, description="Maximum requests that wait for a worker; further ones get a 503"
    )
    most_choices: int = Field(64, ge=1, le=1024, description="Maximum answers (`n`, prompts) to one request")
    body_bytes: int = Field(
        256 * 1024, ge=1024, le=MOST_BODY_BYTES, description="Maximum size of a client's request, in bytes"
    )
    answer_bytes: int = Field(
        8 << 20, ge=64 * 1024, le=32 << 20, description="Maximum size of all parts of one answer, in bytes"
    )
    sessions_per_node: int = Field(4, ge=1, le=64, description="Maximum open sessions of a node")
    sessions_per_provider: int = Field(64, ge=1, le=10_000, description="Maximum open sessions of a provider's nodes")
    most_sessions: int = Field(4096, ge=1, le=100_000, description="Maximum open sessions")

    node_rate_per_s: float = Field(5.0, gt=0, description="Maximum signed requests per second of one node")
    node_burst: int = Field(50, ge=1, description="Maximum burst of signed requests of one node")
    ip_rate_per_s: float = Field(1000.0, gt=0, description="Maximum requests per second of one IP")
    ip_burst: int = Field(5000, ge=1, description="Maximum burst of requests of one IP")
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
    def model_name(self) -> str:
        """Name of the model in requests."""
        return self.run if self.model is None else self.model

    @property
    def node_rate(self) -> Rate:
        """Rate limit of one node."""
        return Rate.per_second(self.node_rate_per_s, burst=self.node_burst)

    @property
    def ip_rate(self) -> Rate:
        """Rate limit of one IP."""
        return Rate.per_second(self.ip_rate_per_s, burst=self.ip_burst)
