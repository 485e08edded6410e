"""Settings of the validator: `[validator]` in the settings file, `MUSTER_VALIDATOR_…`, or flags."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from pydantic import Field, SecretStr

from protocol.http.tokens import TokenSetting
from protocol.runtime.settings import Settings
from protocol.wire.runs import RelayUrl
from validator.audit.rate import RatePolicy
from validator.queue.retry_policy import RetryPolicy

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30


def default_directory() -> Path:
    """Returns `/var/lib/muster/validator` for root, else a directory below the user's data directory."""
    if os.geteuid() == 0:
        return Path("/var/lib/muster/validator")
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "muster" / "validator"


class ValidatorSettings(Settings):
    """Settings of one validator. Several may share a Redis, each with its own directory."""

    service: ClassVar[str] = "validator"

    host: str = Field("127.0.0.1", description="Address to listen on: status and metrics, for the operator only")
    port: int = Field(8003, ge=0, le=65535, description="Port to listen on; 0 for any free one")
    tokens: tuple[TokenSetting, ...] = Field((), description="Tokens of its API; its own key is taken without one")
    pool_id: int = Field(ge=1, description="Number of the pool on the ledger")
    orchestrator: str = Field(description="URL of the pool's orchestrator, with `#0x…` the address that it must have")
    allow_plain_http: bool = Field(False, description="Let http go to other machines, inside an encrypted network only")
    redis_url: SecretStr = Field(SecretStr("redis://127.0.0.1:6379/0"), description="Redis 6.2 or newer")
    chain_url: SecretStr = Field(SecretStr("http://127.0.0.1:8545"), description="JSON-RPC endpoint of the chain")
    deployment: Path = Field(description="File that names the chain and the contracts' addresses")
    confirmations: int = Field(0, ge=0, le=1000, description="Blocks on top before a submission counts")
    keystore: Path | None = Field(None, description="Keystore file of the validator's key; or MUSTER_VALIDATOR_KEY")
    password_file: Path | None = Field(None, description="File with its password; or MUSTER_VALIDATOR_PASSWORD")
    directory: Path = Field(
        default_factory=default_directory, description="Where files and versions lie; of this process alone"
    )

    workers: int = Field(2, ge=1, le=256, description="Processes that examine, each one piece of work at a time")
    in_hand: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Pieces of work that are fetched, examined or reported at a time; 2 * workers + 6",
    )
    lease_s: float = Field(30.0, ge=1, le=3600, description="How long work is a worker's without a sign of it")
    poll_s: float = Field(1.0, ge=0.02, le=60, description="Pause between two readings of the ledger's events")
    takeover_s: float = Field(
        60.0, ge=0, description="How long the next validator waits for the one before it; 0: nobody waits"
    )
    awake_s: float = Field(
        7200.0, ge=1, description="A validator that was not heard of on the ledger for so long is waited for by nobody"
    )
    verdicts_per_transaction: int = Field(64, ge=1, le=256, description="Verdicts sent together, if so many wait")
    verdict_transactions: int = Field(
        2, ge=1, le=16, description="Transactions with verdicts under way at a time; more are sooner, and cost more gas"
    )
    verdicts_waiting: int = Field(512, ge=1, description="Verdicts that may wait for the chain; then workers wait too")
    finalise: bool = Field(True, description="Have the ledger pay, slash and expire what is due")
    finalise_every_s: float = Field(5.0, ge=0.1, le=3600, description="Pause between two looks at what is due")
    finalise_lag_s: float = Field(0.0, ge=0, le=86_400, description="How long others are left to do it first")

    attempts: int = Field(
        8,
        ge=1,
        le=1000,
        description="Failures of one validator, or half as many of two each, after which work is parked",
    )
    first_pause_s: float = Field(1.0, ge=0.05, description="Pause after the first failure; each further one doubles it")
    longest_pause_s: float = Field(60.0, ge=0.1, description="Longest pause between two tries")
    file_most_bytes: int = Field(
        256 * MEBIBYTE, ge=1, description="Largest file of work that is read; of larger ones only the size is judged"
    )
    file_most_rows: int = Field(1 << 18, ge=1, description="Most rows of one")
    file_most_tokens: int = Field(1 << 18, ge=1, description="Most tokens of one row's prompt and output")
    file_decoded_bytes: int = Field(512 * MEBIBYTE, ge=1, description="Most bytes of one when decoded")
    reserve_bytes: int = Field(GIBIBYTE, ge=0, description="Disk that stays free where files lie")

    epoch_s: float = Field(
        3600.0, ge=1, description="How long one secret draws rows; no shorter than the pool's judge period"
    )
    trial: int = Field(8, ge=1, description="Clean verdicts in a row before anything of a new node is left out")
    halved_after: int = Field(8, ge=1, description="With each further so many, the share of rows is halved")
    trial_after_failure: int = Field(64, ge=1, description="As trial, for a node that failed once")
    looks_at_accepted: float = Field(0.05, ge=0, le=1, description="Share of others' acceptances to look at again")
    looks_at_rejected: float = Field(0.25, ge=0, le=1, description="Share of others' rejections to look at again")
    looks_at_forged: float = Field(
        1.0, ge=0, le=1, description="Share of others' verdicts that say forged to look at again"
    )

    relays: tuple[RelayUrl, ...] = Field((), description="Where versions are fetched, instead of the run's own relays")
    policies: Path | None = Field(None, description="Folder of versions that are here already; looked in first")
    calibration: Path | None = Field(None, description="File of limits; without one, those that were shipped")
    device: str | None = Field(None, description="Where torch computes; an accelerator if there is one")
    dtype: str | None = Field(None, description="What it computes in; what each file names by default")
    threads: int = Field(1, ge=1, le=256, description="Threads of torch per worker, on a CPU")
    policy_memory_bytes: int | None = Field(
        None,
        ge=1,
        description="Weights that one worker holds in memory; half of the machine's or the GPU's memory / workers",
    )
    kept_versions: int | None = Field(
        None,
        ge=1,
        description="Fetched versions that stay on disk beside those in use; 3, or fewer within a tenth of the disk",
    )
    slash_margin: float | None = Field(
        None, ge=1, description="How far beyond its limits a statistical failure has to be to be forgery"
    )
    examination_s: float = Field(600.0, ge=1, description="Longest examination of one piece of work")
    scoring_s: float = Field(
        180.0,
        ge=1,
        description="Longest scoring of one file, at most a third of examination_s; later rows are undecided",
    )

    def pieces(self) -> int:
        """Returns the number of items that may be leased at a time."""
        return 2 * self.workers + 6 if self.in_hand is None else self.in_hand

    def retry_policy(self) -> RetryPolicy:
        """Returns the retry limits."""
        return RetryPolicy(
            attempts=self.attempts,
            first=timedelta(seconds=self.first_pause_s),
            most=timedelta(seconds=self.longest_pause_s),
        )

    def rate_policy(self) -> RatePolicy:
        """Returns the audit rate policy."""
        return RatePolicy(
            trial=self.trial, halved_after=self.halved_after, trial_after_failure=self.trial_after_failure
        )
