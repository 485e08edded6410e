"""Builds the validator service from its settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
from fastapi import FastAPI

from ledger.confirmations import warn_if_unconfirmed
from ledger.deployment import Deployment
from ledger.transactions.pending import SendPolicy
from protocol.clients import NodeClient, OrchestratorClient, ServiceLocation
from protocol.errors import Conflict, Unavailable
from protocol.http.object_transfer import ObjectTransfer
from protocol.identity.keys import Key
from protocol.identity.keystores import find_key
from protocol.redis.connection import connect_redis
from protocol.runtime.budgets import keep_rule, machine_memory, weights_budget
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.files import FileLocked, locked_file
from protocol.runtime.logs import get_logger
from rollouts.files.limits import ReadLimits
from rollouts.precision import Dtype
from validator.app import build_validator
from validator.chain.connection import PoolChain
from validator.dependencies import Remote
from validator.examination.examiner import LocalExaminer
from validator.examination.settings import KEPT_VERSIONS, ExaminerSettings
from validator.loops.epochs import check_epoch_length
from validator.settings import ValidatorSettings

LONGEST_POLL = timedelta(milliseconds=200)
"""Longest pause between two polls for a transaction's receipt; the setting `poll_s` applies if it is shorter."""

_log = get_logger(__name__)


class DirectoryInUse(Conflict):
    """Another running validator uses the same state directory."""

    code = "directory-in-use"
    default_hint = "give each validator its own directory, or stop the other validator"


def open_validator(settings: ValidatorSettings) -> FastAPI:
    """Returns the validator's application, without connecting to any service.

    Raises:
        MusterError: The key or the deployment file can't be read, or a setting is invalid.
    """
    key, clock = own_key(settings), SystemClock()
    examiner = LocalExaminer(budgeted(settings), clock=clock)
    return build_validator(
        settings,
        redis=connect_redis(settings.redis_url.get_secret_value()),
        chain=open_chain(settings, key=key, clock=clock),
        remote=open_remote(settings, key=key, clock=clock),
        examiner=examiner,
        key=key,
        clock=clock,
        numerics=examiner.numerics,
    )


def own_key(settings: ValidatorSettings) -> Key:
    """Returns the validator's key, from `MUSTER_VALIDATOR_KEY` or from its keystore file.

    Raises:
        MusterError: There is no key, or it can't be read.
    """
    return find_key("validator", keystore=settings.keystore, password_file=settings.password_file)


def open_chain(settings: ValidatorSettings, *, key: Key, clock: Clock) -> PoolChain:
    """Returns the client of the pool on its chain; the client connects at its first use."""
    deployment = Deployment.load(settings.deployment)
    warn_if_unconfirmed(chain_id=deployment.chain_id, confirmations=settings.confirmations)
    return PoolChain(
        settings.chain_url.get_secret_value(),
        deployment,
        key=key,
        pool_id=settings.pool_id,
        confirmations=settings.confirmations,
        clock=clock,
        policy=SendPolicy(poll=min(LONGEST_POLL, timedelta(seconds=settings.poll_s))),
    )


def open_remote(
    settings: ValidatorSettings, *, key: Key, clock: Clock, transport: httpx.AsyncBaseTransport | None = None
) -> Remote:
    """Returns the HTTP clients of the pool's orchestrator and object store.

    Args:
        settings: Settings of the validator.
        key: The validator's key, which signs requests.
        clock: Clock of requests.
        transport: HTTP transport to an orchestrator in the same process, for simulations; None for the network.
    """
    plain = settings.allow_plain_http
    location = ServiceLocation.parse(settings.orchestrator, allow_plain_http=plain)
    return Remote(
        reader=OrchestratorClient(location, key=key, clock=clock, allow_plain_http=plain, transport=transport),
        writer=NodeClient(location, key=key, clock=clock, allow_plain_http=plain, transport=transport),
        transfer=ObjectTransfer(location.url, clock=clock, allow_plain_http=plain, transport=transport),
    )


def examiner_settings(settings: ValidatorSettings) -> ExaminerSettings:
    """Returns the examiner's part of the validator's settings."""
    examiner = ExaminerSettings(
        home=settings.directory / "policies",
        policies=settings.policies,
        calibration=settings.calibration,
        processes=settings.workers,
        device=settings.device,
        dtype=None if settings.dtype is None else Dtype(settings.dtype),
        threads=settings.threads,
        vllm_python=settings.vllm_python,
        policy_memory=settings.policy_memory_bytes,
        scoring=timedelta(seconds=settings.scoring_s),
        deadline=timedelta(seconds=settings.examination_s),
        most=ReadLimits(
            file_bytes=settings.file_most_bytes,
            rows=settings.file_most_rows,
            decoded_bytes=settings.file_decoded_bytes,
            tokens=settings.file_most_tokens,
        ),
        allow_plain_http=settings.allow_plain_http,
    )
    return examiner if settings.slash_margin is None else replace(examiner, margin=settings.slash_margin)


def budgeted(settings: ValidatorSettings) -> ExaminerSettings:
    """Returns the examiner's settings with a disk budget for versions; logs the memory budget of each worker."""
    examiner, memory = examiner_settings(settings), machine_memory()
    share = weights_budget(memory, processes=settings.workers)
    _log.info(
        "weights-held",
        bytes_per_worker=share if examiner.policy_memory is None else examiner.policy_memory,
        workers=settings.workers,
        memory_bytes=memory,
        by="memory" if examiner.policy_memory is None else "settings",
        on_gpu="half of its memory / workers" if examiner.policy_memory is None else "the same",
    )
    keep = keep_rule(examiner.home / "checkpoints", told=settings.kept_versions, most=KEPT_VERSIONS)
    return replace(examiner, keep=keep)


async def check_pool(settings: ValidatorSettings) -> None:
    """Checks the epoch length against the pool's judge period, before the service starts.

    An unreachable chain does not prevent the start: the epoch loop makes the same check before each epoch.

    Raises:
        EpochTooShort: The setting `epoch_s` is shorter than the pool's judge period.
        MusterError: The key can't be read, or the chain is not the one in the settings.
    """
    chain = open_chain(settings, key=own_key(settings), clock=SystemClock())
    try:
        terms = await chain.terms()
    except Unavailable as error:
        _log.warning("pool-not-checked", why=error.detail)
        return
    finally:
        await chain.aclose()
    check_epoch_length(timedelta(seconds=settings.epoch_s), judge_period=terms.judge_period)


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Locks a state directory for one validator process, which may then remove files that an earlier process left.

    Raises:
        DirectoryInUse: Another process holds the lock.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_file(directory / "lock"))
        except FileLocked as error:
            raise DirectoryInUse(f"another validator uses {directory}") from error
        yield
