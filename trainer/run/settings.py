"""Settings of a trainer: `[trainer]` in the settings file, `MUSTER_TRAINER_…` variables, or flags."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, SecretStr

from ledger.version_needs import CLOCKS_DIFFER
from protocol.runtime.settings import Settings, default_directory
from protocol.wire.base import Name
from protocol.wire.runs import MOST_GROUPS_PER_STEP, MOST_RELAYS, RelayUrl
from rollouts.precision import Dtype
from trainer.run.gathering.asynchrony import NAMED, Asynchrony, AsynchronyName
from trainer.run.state.pools import PoolSettings

MEBIBYTE = 1 << 20


class TrainerSettings(Settings):
    """Settings of one trainer."""

    service: ClassVar[str] = "trainer"

    run: Name = Field(description="Name of the run, as in the orchestrator's settings")
    pool_id: int = Field(ge=1, description="Number of the pool on the ledger")
    orchestrator: str = Field(description="URL of the pool's orchestrator; `#0x…` pins its address")
    allow_plain_http: bool = Field(
        False, description="Allow plain http to other machines; only inside an encrypted network"
    )
    chain_url: SecretStr = Field(SecretStr("http://127.0.0.1:8545"), description="JSON-RPC endpoint of the chain")
    deployment: Path = Field(description="File that names the ledger's contracts")
    keystore: Path | None = Field(None, description="Keystore of the pool's publisher; or MUSTER_PUBLISHER_KEY")
    password_file: Path | None = Field(
        None, description="File with the keystore's password; or MUSTER_PUBLISHER_PASSWORD"
    )

    start: Path = Field(description="The base: a version's folder with weights, tokenizer and recipe.json")
    policies: Path = Field(description="The origin's folder; each version gets a subfolder named by its number")
    state: Path = Field(
        default_factory=partial(default_directory, "trainer"), description="The trainer's own directory; one per run"
    )
    relays: tuple[RelayUrl, ...] = Field(
        (),
        max_length=MOST_RELAYS,
        description="URLs of relays; default: those that the orchestrator knows",
    )
    dtype: Dtype = Field(Dtype.BFLOAT16, description="Data type of published weights")
    keep_versions: int | None = Field(
        None,
        ge=2,
        description="Number of version folders to keep, besides the base and those that leases or open work "
        "need; default: 16, or fewer that fit in a tenth of the disk",
    )
    clocks_differ_s: float = Field(
        CLOCKS_DIFFER.total_seconds(),
        ge=0,
        le=86400,
        description="Tolerance between the chain's clock and this machine's; needed versions stay this much longer",
    )
    device: str | None = Field(None, description="cpu, cuda, cuda:1; default: an accelerator if there is one")
    mesh_timeout_s: float = Field(600.0, ge=1, le=86400, description="Under torchrun: maximum wait for another process")

    steps: int = Field(100, ge=1, description="Total number of steps; a resumed run performs the remaining ones")
    seed: int = Field(1, ge=0, lt=2**63, description="Seed of the order of groups and of the prompt tables")
    groups_per_step: int = Field(
        32, ge=1, le=MOST_GROUPS_PER_STEP, description="Groups with differing rewards per batch"
    )
    most_groups_per_step: int | None = Field(
        None, ge=1, le=MOST_GROUPS_PER_STEP, description="Maximum groups of a batch; default: groups_per_step"
    )
    asynchrony: AsynchronyName = Field(
        AsynchronyName.TWO_STEP, description="on-policy, one-step, two-step, off-policy or periodic"
    )
    reload_every: int | None = Field(None, ge=1, description="Steps between two versions; overrides asynchrony")
    max_staleness: int | None = Field(
        None, ge=0, le=64, description="Maximum age of rollouts (steps); overrides asynchrony"
    )
    stream: bool | None = Field(None, description="Compute gradients as groups arrive; overrides asynchrony")
    most_waiting_groups: int | None = Field(
        None, ge=1, description="Maximum accepted groups that wait for later steps; default: groups_per_step"
    )
    linger_s: float = Field(
        1.0,
        ge=0,
        le=3600,
        description="How long a full step waits for outstanding work, so that fast nodes are not favoured",
    )
    most_empty_steps: int = Field(
        8, ge=0, description="Maximum consecutive steps without a gradient; one more ends the run"
    )
    pools: PoolSettings = Field(PoolSettings(), description="Selection of prompts by difficulty")
    learning: dict[str, Any] = Field({}, description="Loss, optimiser, packing: docs/learning.md")

    poll_s: float = Field(1.0, ge=0.01, le=60, description="Pause between two requests for the step's rollouts")
    patience_s: float = Field(3600.0, ge=0, description="Maximum outage of orchestrator, chain or store")
    most_file_bytes: int = Field(256 * MEBIBYTE, ge=1, description="Maximum size of a rollout file")
    downloads: int = Field(4, ge=1, le=64, description="Maximum parallel downloads")
    state_every: int = Field(
        1, ge=1, description="Steps between two saved states; a restart repeats the steps after the last saved state"
    )

    evaluate_every: int = Field(0, ge=0, description="Steps between evaluations of held-out prompts; 0: never")
    evaluation_prompts: int = Field(256, ge=1, le=2**20, description="Number of held-out prompts")
    evaluation_samples: int = Field(0, ge=0, le=4096, description="Sampled answers per prompt, for pass@k")
    metrics_port: int | None = Field(None, ge=0, le=65535, description="Serve /metrics on this port; default: do not")
    metrics_host: str = Field(
        "127.0.0.1", min_length=1, description="Address for metrics_port; others than loopback must be protected"
    )

    @property
    def knobs(self) -> Asynchrony:
        """The named asynchrony with explicitly set values applied.

        Raises:
            BadSettings: The combination is invalid.
        """
        named = NAMED[self.asynchrony]
        return Asynchrony(
            reload_every=named.reload_every if self.reload_every is None else self.reload_every,
            max_staleness=named.max_staleness if self.max_staleness is None else self.max_staleness,
            stream=named.stream if self.stream is None else self.stream,
        )

    @property
    def mesh_timeout(self) -> timedelta:
        """Time-out for other processes of the mesh."""
        return timedelta(seconds=self.mesh_timeout_s)

    @property
    def clocks_differ(self) -> timedelta:
        """Tolerance between the chain's clock and this machine's."""
        return timedelta(seconds=self.clocks_differ_s)

    @property
    def most_groups(self) -> int:
        """Maximum groups of a batch."""
        return max(self.groups_per_step, self.most_groups_per_step or 0)

    @property
    def poll(self) -> timedelta:
        """Poll interval."""
        return timedelta(seconds=self.poll_s)

    @property
    def patience(self) -> timedelta:
        """Maximum duration of an outage."""
        return timedelta(seconds=self.patience_s)
