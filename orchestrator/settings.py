"""Settings of the orchestrator.

They are read from `[orchestrator]` in the settings file, from `MUSTER_ORCHESTRATOR_…` variables, and from flags.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from orchestrator.domain.deliveries import DeliveryTerms
from orchestrator.domain.heartbeat_interval import HeartbeatInterval
from orchestrator.domain.retention import RetentionPolicy
from orchestrator.domain.run_terms import RunTerms
from orchestrator.domain.upload_quota import Quota
from orchestrator.scheduler.plan import SchedulerTimeouts
from protocol.errors import InvalidInput
from protocol.http.location import ServiceLocation
from protocol.http.rates import Rate
from protocol.http.tokens import TokenSetting
from protocol.identifiers import run_id
from protocol.runtime.settings import Settings, default_directory
from protocol.wire.base import Labels, Name, ShortText
from protocol.wire.runs import MOST_GROUPS_PER_SLOT, MOST_GROUPS_PER_STEP, MOST_UNITS_PER_GROUP, GatewayUrl, RelayUrl
from protocol.wire.uploads import LARGEST_OBJECT

GIBIBYTE = 1 << 30
DAY_S = 86_400.0


class Requirements(BaseModel):
    """Hardware and labels that a machine needs, so that its node is invited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_gpus: int = Field(0, ge=0, description="Number of GPUs that a machine needs")
    min_gpu_memory_bytes: int = Field(
        0, ge=0, description="Minimum memory of a GPU, in bytes; GPUs with less don't count"
    )
    gpu_models: tuple[ShortText, ...] = Field(
        (), description="GPU models that count, as named by the driver; default: all"
    )
    min_cpu_cores: int = Field(1, ge=1, description="Number of CPU cores that a machine needs")
    min_memory_bytes: int = Field(0, ge=0, description="Memory that a machine needs, in bytes")
    min_disk_bytes: int = Field(0, ge=0, description="Free disk space that a machine needs, in bytes")
    labels: Labels = Field({}, description="Labels that a machine needs, with their values")


class OrchestratorSettings(Settings):
    """Settings of one orchestrator. Several replicas of a pool share Redis, keys and settings."""

    service: ClassVar[str] = "orchestrator"

    host: str = Field("127.0.0.1", description="Address to listen on")
    port: int = Field(8002, ge=0, le=65535, description="Port to listen on; 0 for any free one")
    public_url: str = Field(description="URL by which workers reach this pool's orchestrators; invites contain it")
    pool_id: int = Field(ge=1, description="Number of the pool on the ledger")
    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"), description="Redis 6.2 or newer, with appendonly on"
    )
    chain_url: SecretStr = Field(SecretStr("http://127.0.0.1:8545"), description="JSON-RPC endpoint of the chain")
    deployment: Path = Field(description="File that names the chain and the contracts' addresses")
    confirmations: int = Field(0, ge=0, le=1000, description="Confirmations (blocks on top) before an event counts")
    keystore: Path | None = Field(
        None, description="Keystore file of the pool's orchestrator key; or MUSTER_ORCHESTRATOR_KEY"
    )
    password_file: Path | None = Field(
        None, description="File with the password of `keystore`; or MUSTER_ORCHESTRATOR_PASSWORD"
    )
    manager_keystore: Path | None = Field(
        None, description="Keystore file of the pool's manager, needed to ban nodes from here; or MUSTER_MANAGER_KEY"
    )
    manager_password_file: Path | None = Field(
        None, description="File with the password of `manager_keystore`; or MUSTER_MANAGER_PASSWORD"
    )
    discovery: tuple[str, ...] = Field(
        (), description="URLs of discovery services; `#0x…` at the end pins the service's address"
    )
    allow_plain_http: bool = Field(
        False, description="Allow plain http to other machines; only inside an encrypted network"
    )
    public_page: bool = Field(
        True, description="True to publish nodes, progress, verdicts, payments and terms at /public, without a login"
    )
    tokens: tuple[TokenSetting, ...] = Field((), description="Tokens of the owner's API; there is no default token")
    secrets_key_file: Path | None = Field(
        None,
        description="Key file that encrypts secrets of tasks in Redis; created if missing; the same for all replicas",
    )
    trusted_proxies: tuple[str, ...] = Field(
        (), description="Networks of reverse proxies whose X-Forwarded-For is trusted"
    )
    requirements: Requirements = Field(
        Requirements(), description="Requirements that a machine must meet to be invited"
    )

    shortest_interval_s: float = Field(10.0, ge=0.1, le=3600, description="Shortest heartbeat interval, in seconds")
    target_rate: float = Field(
        500.0, gt=0, description="Maximum heartbeats per second of the whole pool; a larger pool gets a longer interval"
    )
    stagger: float = Field(0.1, ge=0, le=1, description="Largest random extension of the interval, as a fraction of it")
    unhealthy_after: float = Field(2.0, gt=1, description="Intervals without a heartbeat until a node is unhealthy")
    dead_after: float = Field(5.0, gt=1, description="Intervals without a heartbeat until a node is dead")

    invite_life_s: float = Field(300.0, ge=10, le=86_400, description="Validity of an invite, in seconds")
    invites_per_minute: float = Field(
        120.0,
        gt=0,
        description="Maximum invites per minute for new nodes, and as many for silent members; per discovery service",
    )
    eviction_rest_s: float = Field(
        3600.0, ge=0, description="Time until an evicted node may be invited again, in seconds"
    )
    discovery_every_s: float = Field(
        5.0, ge=0.1, description="Pause between two reads of a discovery service, in seconds"
    )
    ledger_every_s: float = Field(2.0, ge=0.1, description="Pause between two reads of the ledger's events, in seconds")
    removals_every_s: float = Field(
        5.0, ge=0.1, description="Pause between two batches of removals on the ledger, in seconds"
    )
    schedule_every_s: float = Field(0.25, ge=0.05, description="Pause between two runs of the scheduler, in seconds")
    liveness_every_s: float = Field(0.5, ge=0.05, description="Pause between two checks for overdue nodes, in seconds")
    lease_s: float = Field(
        10.0,
        ge=1,
        description="Duration of a loop's leader lease, in seconds; after its end another replica takes over",
    )
    drain_patience_s: float = Field(
        600.0, ge=0, description="Time that a task may take to finish on a draining node, in seconds"
    )

    run: Name | None = Field(None, description="Name of the pool's run; without one no slots are leased")
    run_async_level: int = Field(
        2, ge=0, le=64, description="Number of steps by which generation may run ahead of the newest version"
    )
    run_groups: int = Field(
        32, ge=0, le=MOST_GROUPS_PER_STEP, description="Groups per step until the trainer states a demand"
    )
    run_max_rounds: int = Field(8, ge=0, le=1000, description="Number of times that a step's demand may be raised")
    run_groups_per_slot: int = Field(8, ge=1, le=MOST_GROUPS_PER_SLOT, description="Maximum groups of one slot")
    run_slots_per_node: int = Field(4, ge=1, le=64, description="Slots that a node may hold at the same time")
    run_lease_s: float = Field(
        600.0, ge=1, le=86_400, description="Longest lease of a slot, in seconds; at most the pool's notice period"
    )
    run_lease_least_s: float = Field(
        30.0,
        ge=1,
        le=86_400,
        description="Shortest lease, in seconds; a lease is four times the median delivery time, within these bounds",
    )
    run_grace_s: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="Time after a lease's end for which its work may still appear on the ledger, in seconds",
    )
    run_pending_s: float = Field(
        900.0, ge=1, description="Time after a submission for which its step waits for a verdict, in seconds"
    )
    run_delivery_window: int = Field(
        20, ge=1, le=200, description="Number of a node's newest leases that count for its delivery rate"
    )
    run_provider_window: int = Field(
        60,
        ge=1,
        le=400,
        description="Number of the newest leases of all nodes of a provider that count for their common delivery rate",
    )
    run_free_rejections: int = Field(
        2, ge=0, le=200, description="Rejected work items among a node's newest leases that don't count as failures"
    )
    run_delivery_least: int = Field(
        5,
        ge=1,
        le=200,
        description="Minimum number of finished leases; a node with fewer is not throttled",
    )
    run_delivery_threshold: float = Field(
        0.5, ge=0, le=1, description="Delivery rate below which a node gets no leases for a while"
    )
    run_throttle_pause_s: float = Field(
        600.0, ge=0, description="Time for which a throttled node gets no leases, in seconds"
    )
    run_kept_steps: int = Field(
        64, ge=1, le=100_000, description="Number of closed steps whose rollouts are still listed"
    )
    run_ask_again_s: float = Field(
        2.0, ge=0.05, le=3600, description="Pause before a node asks for a slot again if no step needs rollouts, in s"
    )
    run_serving: bool = Field(
        False, description="True if the run's slots answer requests of a gateway's clients; needs run_gateway_url"
    )
    run_gateway_url: GatewayUrl = Field(
        "", description="URL at which nodes reach the gateway of a serving run; `#0x…` adds the address of its key"
    )
    run_relays: tuple[RelayUrl, ...] = Field((), description="URLs of relays, used if the trainer names none")
    relays_in_private_networks: bool = Field(
        False, description="Allow relays with plain http and private addresses; for devnets and internal pools"
    )
    run_units_per_group: int | None = Field(
        None,
        ge=1,
        le=MOST_UNITS_PER_GROUP,
        description="Maximum work units per group; if set, slots are leased before a trainer names a version",
    )
    relayer_keystore: Path | None = Field(
        None,
        description="Keystore file of the relayer, which pays gas; or MUSTER_RELAYER_KEY; default: orchestrator key",
    )
    relayer_password_file: Path | None = Field(
        None, description="File with the password of `relayer_keystore`; or MUSTER_RELAYER_PASSWORD"
    )
    relay_every_s: float = Field(
        1.0, ge=0.05, description="Pause between two relayed batches, in seconds; a newly queued request ends it early"
    )
    relay_transactions: int = Field(
        2,
        ge=1,
        le=16,
        description="Relayed transactions in flight at the same time; a higher number is faster and costs more gas",
    )
    relay_consents_per_day: int = Field(
        64,
        ge=0,
        le=10_000,
        description="Maximum registrations of strangers' nodes that the relayer pays for per day (UTC); 0: none",
    )

    node_rate_per_s: float = Field(5.0, gt=0, description="Maximum requests per second of one node")
    node_burst: int = Field(50, ge=1, description="Maximum burst of requests of one node")
    role_rate_per_s: float = Field(
        200.0, gt=0, description="Maximum requests per second of a validator, publisher or manager"
    )
    role_burst: int = Field(1000, ge=1, description="Maximum burst of requests of a validator, publisher or manager")
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
    streams: int = Field(64, ge=1, description="Maximum concurrent streams of logs and events, and blocking reads")
    webhooks_to_private_networks: bool = Field(
        False, description="Allow webhooks to loopback and private addresses; for devnets and internal receivers"
    )

    storage_directory: Path = Field(
        default_factory=partial(default_directory, "objects"),
        description="Directory of uploaded files, if storage_bucket is not set",
    )
    storage_reserve_bytes: int = Field(
        GIBIBYTE,
        ge=0,
        description="Bytes of the directory's disk that stay free, in addition to the space of uploads in progress",
    )
    storage_bucket: str | None = Field(None, description="Bucket of an S3-compatible store for uploaded files")
    storage_endpoint: str | None = Field(
        None, description="URL of the S3-compatible store, as nodes reach it; default: Amazon S3"
    )
    storage_region: str = Field("us-east-1", description="Region of the bucket, used in request signatures")
    storage_access_key: SecretStr | None = Field(
        None, description="Access key of the store; default: credentials that boto3 finds (role, environment)"
    )
    storage_secret_key: SecretStr | None = Field(None, description="Secret of storage_access_key")
    storage_checks_sha256: bool = Field(
        True, description="True if the store checks x-amz-checksum-sha256; Google Cloud Storage does not"
    )
    storage_checks_absence: bool = Field(
        True, description="True if the store honours If-None-Match: *; Google Cloud Storage does not"
    )
    upload_most_bytes: int = Field(
        2 * GIBIBYTE, ge=1, le=LARGEST_OBJECT, description="Largest file that may be uploaded, in bytes"
    )
    upload_bytes_per_unit: int = Field(
        256, ge=1, le=1 << 20, description="Bytes of a rollout file allowed for each work unit of the file's lease"
    )
    upload_bytes_per_group: int = Field(
        1 << 20,
        ge=0,
        le=1 << 32,
        description="Further bytes allowed for each group of the lease, for prompts and names",
    )
    upload_url_life_s: float = Field(
        900.0, ge=10, le=604_800, description="Time within which a file must be uploaded completely, in seconds"
    )
    download_url_life_s: float = Field(3600.0, ge=10, le=604_800, description="Validity of a download link, in seconds")
    uploads_per_hour: int = Field(1000, ge=1, description="Maximum number of files that one node may upload in an hour")
    upload_bytes_per_hour: int = Field(
        50 * GIBIBYTE, ge=1, description="Maximum bytes that one node may upload in an hour"
    )
    upload_other_bytes_per_hour: int = Field(
        GIBIBYTE, ge=1, description="Maximum bytes that a node may upload in an hour in files without a lease"
    )
    upload_kept_s: float = Field(
        7 * DAY_S,
        ge=0,
        description="Minimum time that nodes' files are kept, in seconds; files of open work and of accepted work "
        "that is not learned yet are kept longer; 0: files are never deleted",
    )
    audit_kept_s: float = Field(
        30 * DAY_S,
        ge=0,
        description="Minimum time that audit files are kept, in seconds, and longer like nodes' files; 0: for ever",
    )
    log_kept_s: float = Field(
        7 * DAY_S,
        ge=3600,
        description="Time that ended assignments and their logs are kept, in seconds; the newest 50,000 at most",
    )
    log_bytes: int = Field(
        GIBIBYTE,
        ge=1 << 20,
        description="Maximum bytes of all logs in Redis; beyond it, the oldest lines of the largest log are deleted",
    )
    task_kept_s: float = Field(
        90 * DAY_S, ge=0, description="Time that completed and failed tasks are kept, in seconds; 0: for ever"
    )
    event_kept_s: float = Field(
        90 * DAY_S,
        ge=0,
        description="Time that the pool's events are kept, in seconds; 0: the newest 100,000, whatever their age",
    )
    node_kept_s: float = Field(
        30 * DAY_S,
        ge=0,
        description="Time that nodes without membership are kept after discovery stops listing them, in seconds; "
        "0: for ever",
    )
    retention_dry_run: bool = Field(
        False, description="Delete no files, tasks, events and nodes because of their age; only log and count them"
    )
    sweep_every_s: float = Field(
        10.0, ge=0.1, description="Pause between two rounds of the loop that deletes old files and records, in seconds"
    )
    uploads_open: int = Field(32, ge=1, description="Maximum uploads that one node may have in progress")

    @field_validator("run_gateway_url")
    @classmethod
    def _gateway(cls, value: str) -> str:
        try:
            return str(ServiceLocation.parse(value, allow_plain_http=True)) if value else ""
        except InvalidInput as error:
            raise ValueError(f"{error.detail}; {error.hint}") from None

    @model_validator(mode="after")
    def _serving_needs_gateway(self) -> Self:
        if self.run_serving != bool(self.run_gateway_url):
            raise ValueError("a serving run needs both run_serving = true and run_gateway_url, other runs neither")
        return self

    def heartbeat_interval(self) -> HeartbeatInterval:
        """Returns the rule for the interval and the deadlines of heartbeats."""
        return HeartbeatInterval(
            shortest=timedelta(seconds=self.shortest_interval_s),
            target_rate=self.target_rate,
            stagger=self.stagger,
            unhealthy_after=self.unhealthy_after,
            dead_after=self.dead_after,
        )

    def node_rate(self) -> Rate:
        """Returns the maximum request rate of a node, and of the sessions of a provider together."""
        return Rate.per_second(self.node_rate_per_s, burst=self.node_burst)

    def ip_rate(self) -> Rate:
        """Returns the maximum request rate of an IP."""
        return Rate.per_second(self.ip_rate_per_s, burst=self.ip_burst)

    def role_rate(self) -> Rate:
        """Returns the maximum request rate of validators, publisher and manager."""
        return Rate.per_second(self.role_rate_per_s, burst=self.role_burst)

    def quota(self) -> Quota:
        """Returns the upload quota of one node."""
        return Quota(
            window=timedelta(hours=1),
            files=self.uploads_per_hour,
            bytes=self.upload_bytes_per_hour,
            other_bytes=self.upload_other_bytes_per_hour,
            open=self.uploads_open,
        )

    def retention(self) -> RetentionPolicy:
        """Returns the times for which objects and records are kept."""
        return RetentionPolicy(
            files=timedelta(seconds=self.upload_kept_s),
            audits=timedelta(seconds=self.audit_kept_s),
            tasks=timedelta(seconds=self.task_kept_s),
            events=timedelta(seconds=self.event_kept_s),
            nodes=timedelta(seconds=self.node_kept_s),
        )

    def run_terms(self) -> RunTerms | None:
        """Returns the terms of the run; None if there is no run."""
        if self.run is None:
            return None
        return RunTerms(
            name=self.run,
            run=run_id(self.run),
            pool_id=self.pool_id,
            async_level=self.run_async_level,
            default_demand=self.run_groups,
            max_rounds=self.run_max_rounds,
            groups_per_slot=self.run_groups_per_slot,
            most_live=self.run_slots_per_node,
            lease=timedelta(seconds=self.run_lease_s),
            lease_least=timedelta(seconds=self.run_lease_least_s),
            grace=timedelta(seconds=self.run_grace_s),
            pending=timedelta(seconds=self.run_pending_s),
            deliveries=DeliveryTerms(
                newest=self.run_delivery_window,
                provider_newest=max(self.run_provider_window, self.run_delivery_window),
                least=self.run_delivery_least,
                threshold=self.run_delivery_threshold,
                rejections=self.run_free_rejections,
                pause=timedelta(seconds=self.run_throttle_pause_s),
            ),
            kept_steps=self.run_kept_steps,
            ask_again=timedelta(seconds=self.run_ask_again_s),
            gateway=self.run_gateway_url if self.run_serving else None,
            relays=self.run_relays,
            units_per_group=self.run_units_per_group,
        )

    def scheduler_timeouts(self) -> SchedulerTimeouts:
        """Returns the time limits of the scheduler."""
        return SchedulerTimeouts(drain=timedelta(seconds=self.drain_patience_s))
