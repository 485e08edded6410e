"""Settings of the orchestrator: `[orchestrator]` in the settings file, `MUSTER_ORCHESTRATOR_…`, or flags."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from orchestrator.domain.deliveries import DeliveryTerms
from orchestrator.domain.heartbeat_interval import HeartbeatInterval
from orchestrator.domain.run_terms import RunTerms
from orchestrator.domain.upload_quota import Quota
from orchestrator.scheduler.plan import SchedulerTimeouts
from protocol.http.rates import Rate
from protocol.http.tokens import TokenSetting
from protocol.identifiers import run_id
from protocol.runtime.settings import Settings
from protocol.wire.base import Labels, Name, ShortText
from protocol.wire.runs import MOST_GROUPS_PER_SLOT, MOST_GROUPS_PER_STEP, MOST_UNITS_PER_GROUP, RelayUrl
from protocol.wire.uploads import LARGEST_OBJECT

GIBIBYTE = 1 << 30


def default_storage() -> Path:
    """`/var/lib/muster/objects` for root, else below the user's own data directory."""
    if os.geteuid() == 0:
        return Path("/var/lib/muster/objects")
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "muster" / "objects"


class Requirements(BaseModel):
    """Hardware that a machine needs to be invited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_gpus: int = Field(0, ge=0, description="GPUs that a machine must have to be invited")
    min_gpu_memory_bytes: int = Field(0, ge=0, description="Memory that each GPU which counts must have")
    gpu_models: tuple[ShortText, ...] = Field(
        (), description="Models that count, named as the driver names them; default: any"
    )
    min_cpu_cores: int = Field(1, ge=1, description="CPU cores that a machine must have")
    min_memory_bytes: int = Field(0, ge=0, description="Memory that a machine must have")
    min_disk_bytes: int = Field(0, ge=0, description="Free disk, where volumes go, that a machine must have")
    labels: Labels = Field({}, description="Labels that a machine must have, with these values")


class OrchestratorSettings(Settings):
    """Settings of one orchestrator. Several may serve one pool: same Redis, same keys, same settings."""

    service: ClassVar[str] = "orchestrator"

    host: str = Field("127.0.0.1", description="Address to listen on")
    port: int = Field(8002, ge=0, le=65535, description="Port to listen on; 0 for any free one")
    public_url: str = Field(description="Where workers reach this pool's orchestrators; stands in invites")
    pool_id: int = Field(ge=1, description="Number of the pool on the ledger")
    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"), description="Redis 6.2 or newer, with appendonly on"
    )
    chain_url: SecretStr = Field(SecretStr("http://127.0.0.1:8545"), description="JSON-RPC endpoint of the chain")
    deployment: Path = Field(description="File that names the chain and the contracts' addresses")
    confirmations: int = Field(0, ge=0, le=1000, description="Blocks on top before an event counts")
    keystore: Path | None = Field(
        None, description="Keystore file of the pool's orchestrator key; or MUSTER_ORCHESTRATOR_KEY"
    )
    password_file: Path | None = Field(None, description="File with its password; or MUSTER_ORCHESTRATOR_PASSWORD")
    manager_keystore: Path | None = Field(
        None, description="Keystore file of the pool's manager, if bans are written from here; or MUSTER_MANAGER_KEY"
    )
    manager_password_file: Path | None = Field(None, description="File with its password; or MUSTER_MANAGER_PASSWORD")
    discovery: tuple[str, ...] = Field(
        (), description="Discovery services to read: URLs, with `#0x…` the address that each must have"
    )
    allow_plain_http: bool = Field(False, description="Let http go to other machines, inside an encrypted network only")
    tokens: tuple[TokenSetting, ...] = Field((), description="Tokens of the owner's API; there is no default one")
    secrets_key_file: Path | None = Field(
        None, description="Seals the secrets of tasks in Redis; made when it is not there; the same for all replicas"
    )
    trusted_proxies: tuple[str, ...] = Field((), description="Networks whose X-Forwarded-For is believed")
    requirements: Requirements = Field(Requirements(), description="What a machine must have to be invited")

    shortest_interval_s: float = Field(10.0, ge=0.1, le=3600, description="No node speaks more often")
    target_rate: float = Field(500.0, gt=0, description="Heartbeats per second that the pool may cost")
    stagger: float = Field(0.1, ge=0, le=1, description="Share of the interval that is drawn at random")
    unhealthy_after: float = Field(2.0, gt=1, description="Missed intervals until a node is unhealthy")
    dead_after: float = Field(5.0, gt=1, description="Missed intervals until it is dead")

    invite_life_s: float = Field(300.0, ge=10, le=86_400, description="How long an invite may be redeemed")
    invites_per_minute: float = Field(
        120.0,
        gt=0,
        description="Invites signed for new nodes, and as many for silent members, for each discovery service",
    )
    eviction_rest_s: float = Field(3600.0, ge=0, description="How long an evicted node is not invited again")
    discovery_every_s: float = Field(5.0, ge=0.1, description="Pause between two readings of a discovery service")
    ledger_every_s: float = Field(2.0, ge=0.1, description="Pause between two readings of the ledger's events")
    removals_every_s: float = Field(5.0, ge=0.1, description="Pause between two batches of removals on the ledger")
    schedule_every_s: float = Field(0.25, ge=0.05, description="Pause between two looks at what changed")
    liveness_every_s: float = Field(0.5, ge=0.05, description="Pause between two looks at what is overdue")
    lease_s: float = Field(10.0, ge=1, description="How long a loop's lease lasts without its holder")
    drain_patience_s: float = Field(600.0, ge=0, description="How long a task may finish on a draining node")

    run: Name | None = Field(None, description="Name of the run that this pool works on; none: nobody leases slots")
    run_async_level: int = Field(2, ge=0, le=64, description="Steps that generation may be ahead of the newest version")
    run_groups: int = Field(32, ge=0, le=MOST_GROUPS_PER_STEP, description="Groups per step, until the trainer says")
    run_max_rounds: int = Field(8, ge=0, le=1000, description="How often a step's demand may be raised")
    run_groups_per_slot: int = Field(8, ge=1, le=MOST_GROUPS_PER_SLOT, description="The most groups of one slot")
    run_slots_per_node: int = Field(4, ge=1, le=64, description="Slots that a node may hold at a time")
    run_lease_s: float = Field(
        600.0, ge=1, le=86_400, description="Longest lease of a slot; at most the pool's notice period"
    )
    run_lease_least_s: float = Field(
        30.0, ge=1, le=86_400, description="Shortest lease; between them it is four times the median delivery"
    )
    run_grace_s: float = Field(30.0, ge=0, le=3600, description="How long after that its work may still be found")
    run_pending_s: float = Field(900.0, ge=1, description="How long a step waits for a verdict")
    run_delivery_window: int = Field(20, ge=1, le=200, description="Newest leases that a node is judged by")
    run_provider_window: int = Field(
        60, ge=1, le=400, description="Newest leases of all nodes of a provider that they are judged by together"
    )
    run_free_rejections: int = Field(
        2, ge=0, le=200, description="Rejected works among a node's newest leases that don't count against it"
    )
    run_delivery_least: int = Field(5, ge=1, le=200, description="With fewer leases nobody is judged")
    run_delivery_threshold: float = Field(0.5, ge=0, le=1, description="Delivered share below which a node rests")
    run_rest_s: float = Field(600.0, ge=0, description="How long it gets no leases then")
    run_kept_steps: int = Field(64, ge=1, le=100_000, description="Closed steps whose rollouts are still listed")
    run_ask_again_s: float = Field(2.0, ge=0.05, le=3600, description="What a task waits that has nothing to do")
    run_relays: tuple[RelayUrl, ...] = Field((), description="Where versions are fetched, if the trainer does not say")
    relays_in_private_networks: bool = Field(
        False, description="Let relays register by plain http and private addresses; for devnets and internal pools"
    )
    run_units_per_group: int | None = Field(
        None, ge=1, le=MOST_UNITS_PER_GROUP, description="Take up the ledger's newest version, with so many units"
    )
    relayer_keystore: Path | None = Field(
        None, description="Keystore file of who pays for what is carried; or MUSTER_RELAYER_KEY; default: our own key"
    )
    relayer_password_file: Path | None = Field(None, description="File with its password; or MUSTER_RELAYER_PASSWORD")
    relay_every_s: float = Field(
        1.0, ge=0.05, description="Pause between two batches that are carried to the ledger, unless something comes in"
    )
    relay_transactions: int = Field(
        2, ge=1, le=16, description="Transactions with them under way at a time; more are sooner, and cost more gas"
    )

    node_rate_per_s: float = Field(5.0, gt=0, description="Requests per second of one node")
    node_burst: int = Field(50, ge=1, description="Requests of one node at once")
    role_rate_per_s: float = Field(200.0, gt=0, description="Requests per second of a validator, publisher or manager")
    role_burst: int = Field(1000, ge=1, description="Requests of one of them at once")
    ip_rate_per_s: float = Field(1000.0, gt=0, description="Requests per second of one IP")
    ip_burst: int = Field(5000, ge=1, description="Requests of one IP at once")
    connections: int = Field(
        16_384, ge=16, le=1_000_000, description="Connections at a time, and no more than open files allow"
    )
    connections_per_ip: int = Field(
        1024, ge=1, le=1_000_000, description="Connections of one IP at a time; trusted proxies may have all"
    )
    streams: int = Field(64, ge=1, description="Followers of logs and events at a time")
    webhooks_to_private_networks: bool = Field(
        False, description="Let webhooks go to loopback and private addresses; for devnets and internal receivers"
    )

    storage_directory: Path = Field(
        default_factory=default_storage, description="Where uploaded files lie, unless a bucket is named"
    )
    storage_reserve_bytes: int = Field(
        GIBIBYTE,
        ge=0,
        description="Disk that stays free where uploaded files lie, beside files under way, unless a bucket is named",
    )
    storage_bucket: str | None = Field(None, description="Bucket of an S3-compatible store for uploaded files")
    storage_endpoint: str | None = Field(None, description="URL of that store, as nodes reach it; Amazon's without one")
    storage_region: str = Field("us-east-1", description="Region that the store signs for")
    storage_access_key: SecretStr | None = Field(
        None, description="Its access key; without one, what boto3 finds by itself (a role, the usual variables)"
    )
    storage_secret_key: SecretStr | None = Field(None, description="The secret that belongs to it")
    storage_checks_sha256: bool = Field(
        True, description="Whether the store refuses other bytes by x-amz-checksum-sha256; Google's does not"
    )
    storage_checks_absence: bool = Field(
        True, description="Whether the store refuses to overwrite by If-None-Match; Google's does not"
    )
    upload_most_bytes: int = Field(
        2 * GIBIBYTE, ge=1, le=LARGEST_OBJECT, description="Largest file that anybody may upload"
    )
    upload_bytes_per_unit: int = Field(
        256, ge=1, le=1 << 20, description="Bytes of a rollout file that a lease allows for each of its work units"
    )
    upload_bytes_per_group: int = Field(
        1 << 20, ge=0, le=1 << 32, description="Bytes besides for each of its groups: prompts and names"
    )
    upload_url_life_s: float = Field(
        900.0, ge=10, le=604_800, description="Time within which a file must be sent; what is not whole then is refused"
    )
    download_url_life_s: float = Field(3600.0, ge=10, le=604_800, description="How long a link to a file is good")
    uploads_per_hour: int = Field(1000, ge=1, description="Files that one node may upload in an hour")
    upload_bytes_per_hour: int = Field(50 * GIBIBYTE, ge=1, description="Bytes that one node may upload in an hour")
    upload_other_bytes_per_hour: int = Field(
        GIBIBYTE, ge=1, description="Of these, bytes of files that are not the work of a lease"
    )
    upload_kept_s: float = Field(
        7 * 86_400.0,
        ge=0,
        description="How long files that no submitted work names are kept at least; 0: for ever, nothing is deleted",
    )
    sweep_every_s: float = Field(10.0, ge=0.1, description="Pause between two pages of the store that are swept")
    uploads_open: int = Field(32, ge=1, description="Uploads that one node may have begun at a time")

    def pace(self) -> HeartbeatInterval:
        """Intervals and deadlines."""
        return HeartbeatInterval(
            shortest=timedelta(seconds=self.shortest_interval_s),
            target_rate=self.target_rate,
            stagger=self.stagger,
            unhealthy_after=self.unhealthy_after,
            dead_after=self.dead_after,
        )

    def role_rate(self) -> Rate:
        """Returns the request rate of validators, publisher and manager."""
        return Rate(count=max(1, round(self.role_rate_per_s * 60)), per=timedelta(minutes=1), burst=self.role_burst)

    def quota(self) -> Quota:
        """Returns the upload quota of one node."""
        return Quota(
            window=timedelta(hours=1),
            files=self.uploads_per_hour,
            bytes=self.upload_bytes_per_hour,
            other_bytes=self.upload_other_bytes_per_hour,
            open=self.uploads_open,
        )

    def run_terms(self) -> RunTerms | None:
        """The run's numbers; None if there is no run."""
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
                rest=timedelta(seconds=self.run_rest_s),
            ),
            kept_steps=self.run_kept_steps,
            ask_again=timedelta(seconds=self.run_ask_again_s),
            relays=self.run_relays,
            units_per_group=self.run_units_per_group,
        )

    def patience(self) -> SchedulerTimeouts:
        """Returns the time limits of the scheduler."""
        return SchedulerTimeouts(drain=timedelta(seconds=self.drain_patience_s))
