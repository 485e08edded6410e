"""Settings of the validator: `[validator]` in the settings file, `MUSTER_VALIDATOR_…`, or flags."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field, SecretStr

from protocol.http.tokens import TokenSetting
from protocol.runtime.settings import Settings, default_directory
from protocol.wire.runs import RelayUrl
from validator.audit.rate import RatePolicy
from validator.queue.retry_policy import RetryPolicy

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30


class ValidatorSettings(Settings):
    """Settings of one validator. Several validators may share one Redis, each with its own directory."""

    service: ClassVar[str] = "validator"

    host: str = Field("127.0.0.1", description="Address to listen on; the API is for the operator and monitoring only")
    port: int = Field(8003, ge=0, le=65535, description="Port to listen on; 0 for any free one")
    tokens: tuple[TokenSetting, ...] = Field((), description="Bearer tokens of the API; its own key needs none")
    pool_id: int = Field(ge=1, description="Number of the pool on the ledger")
    orchestrator: str = Field(description="URL of the pool's orchestrator, followed by `#` and the address of its key")
    allow_plain_http: bool = Field(
        False, description="Allow plain http to other machines; only inside an encrypted network"
    )
    redis_url: SecretStr = Field(SecretStr("redis://127.0.0.1:6379/0"), description="Redis 6.2 or newer")
    chain_url: SecretStr = Field(SecretStr("http://127.0.0.1:8545"), description="JSON-RPC endpoint of the chain")
    deployment: Path = Field(description="File with the chain's id and the contracts' addresses")
    confirmations: int = Field(0, ge=0, le=1000, description="Blocks on top of a submission before it counts")
    keystore: Path | None = Field(None, description="Keystore file of the validator's key; or MUSTER_VALIDATOR_KEY")
    password_file: Path | None = Field(
        None, description="File with the keystore's password; or MUSTER_VALIDATOR_PASSWORD"
    )
    directory: Path = Field(
        default_factory=partial(default_directory, "validator"),
        description="Directory of files and versions; no other process may use it",
    )

    workers: int = Field(2, ge=1, le=256, description="Examining processes; each examines one submission at a time")
    in_hand: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Submissions that are fetched, examined or reported at a time; by default 2 * workers + 6",
    )
    lease_s: float = Field(
        30.0, ge=1, le=3600, description="Seconds after which the queue gives a silent process's work to another"
    )
    poll_s: float = Field(1.0, ge=0.02, le=60, description="Seconds between two reads of the ledger's events")
    takeover_s: float = Field(
        60.0, ge=0, description="Seconds that a validator leaves to each one before it in the order; 0 for no delay"
    )
    awake_s: float = Field(
        7200.0, ge=1, description="Seconds without activity on the ledger after which no validator waits for another"
    )
    verdicts_per_transaction: int = Field(64, ge=1, le=256, description="Maximum number of verdicts per transaction")
    verdict_transactions: int = Field(
        2, ge=1, le=16, description="Concurrent transactions with verdicts; more lower the latency, and cost more gas"
    )
    verdicts_waiting: int = Field(
        512, ge=1, description="Maximum number of verdicts that wait for the chain; at the limit, workers pause"
    )
    finalise: bool = Field(True, description="Send transactions that pay, slash and expire due work")
    finalise_every_s: float = Field(5.0, ge=0.1, le=3600, description="Seconds between two checks for due work")
    finalise_lag_s: float = Field(
        0.0, ge=0, le=86_400, description="Seconds after the due time that are left to other accounts to finalise work"
    )

    attempts: int = Field(
        8,
        ge=1,
        le=1000,
        description="Failures of one validator, or half as many of each of two, after which work is parked",
    )
    first_pause_s: float = Field(
        1.0, ge=0.05, description="Seconds before the retry after the first failure; each further failure doubles them"
    )
    longest_pause_s: float = Field(60.0, ge=0.1, description="Longest pause between two attempts, in seconds")
    file_most_bytes: int = Field(
        256 * MEBIBYTE, ge=1, description="Largest rollout file that is read; of larger ones only the size is checked"
    )
    file_most_rows: int = Field(1 << 18, ge=1, description="Maximum number of rows of a rollout file")
    file_most_tokens: int = Field(1 << 18, ge=1, description="Maximum number of tokens of each prompt or output")
    file_decoded_bytes: int = Field(512 * MEBIBYTE, ge=1, description="Maximum bytes of a decoded rollout file")
    reserve_bytes: int = Field(GIBIBYTE, ge=0, description="Bytes that stay free on the disk of `directory`")

    epoch_s: float = Field(
        3600.0, ge=1, description="Seconds for which one audit secret draws rows; at least the pool's judge period"
    )
    trial: int = Field(
        8, ge=1, description="Consecutive clean verdicts of a new node before fewer than all rows are recomputed"
    )
    halved_after: int = Field(
        8, ge=1, description="Further clean verdicts after which the share of recomputed rows is halved each time"
    )
    trial_after_failure: int = Field(64, ge=1, description="Same as `trial`, for a node that failed once")
    looks_at_accepted: float = Field(0.05, ge=0, le=1, description="Share of others' acceptances for a second look")
    looks_at_rejected: float = Field(0.25, ge=0, le=1, description="Share of others' rejections for a second look")
    looks_at_forged: float = Field(1.0, ge=0, le=1, description="Share of others' forgery verdicts for a second look")

    relays: tuple[RelayUrl, ...] = Field((), description="Relays to fetch versions from, instead of the run's relays")
    policies: Path | None = Field(None, description="Folder of versions on this machine, searched before the relays")
    calibration: Path | None = Field(None, description="File of calibrated limits; by default the shipped ones")
    device: str | None = Field(None, description="Torch device; by default an accelerator if there is one, else `cpu`")
    dtype: str | None = Field(None, description="Type of prefills; by default the type that each file names")
    threads: int = Field(1, ge=1, le=256, description="Torch threads of each worker, on a CPU")
    vllm_python: Path | None = Field(
        None,
        description="Python interpreter of an environment with vLLM, for work of numerics classes; by default the "
        "validator's own",
    )
    policy_memory_bytes: int | None = Field(
        None,
        ge=1,
        description="Bytes of weights that each worker holds; by default half of the memory (or GPU memory) / workers",
    )
    kept_versions: int | None = Field(
        None,
        ge=1,
        description="Unused fetched versions that stay on disk; by default 3, or fewer within a tenth of the disk",
    )
    slash_margin: float | None = Field(
        None, ge=1, description="Factor on the limits beyond which a statistical failure is forgery; 4 by default"
    )
    examination_s: float = Field(600.0, ge=1, description="Time limit of each piece of an examination, in seconds")
    scoring_s: float = Field(
        180.0,
        ge=1,
        description="Seconds for scoring one file, at most a third of `examination_s`; later rows stay undecided",
    )

    def pieces(self) -> int:
        """Returns the maximum number of items that this process leases at a time."""
        return 2 * self.workers + 6 if self.in_hand is None else self.in_hand

    def retry_policy(self) -> RetryPolicy:
        """Returns the retry policy for work that could not be judged."""
        return RetryPolicy(
            attempts=self.attempts,
            first=timedelta(seconds=self.first_pause_s),
            most=timedelta(seconds=self.longest_pause_s),
        )

    def rate_policy(self) -> RatePolicy:
        """Returns the policy by which the share of recomputed rows falls."""
        return RatePolicy(
            trial=self.trial, halved_after=self.halved_after, trial_after_failure=self.trial_after_failure
        )
