"""Runs the checks of `muster validator doctor`. Without valid settings, it runs only the checks that need none."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from protocol.clients import OrchestratorClient
from protocol.errors import MusterError, NotFound
from protocol.identity.keys import Key
from protocol.redis.connection import check_redis, connect_redis, store_errors
from protocol.runtime.clock import Clock
from protocol.runtime.findings import DoctorFinding, failure, ok, warning
from protocol.wire.runs import RunView
from validator.chain.connection import PoolChain
from validator.dependencies import Remote
from validator.doctor import machine, version
from validator.examination.settings import ExaminerSettings
from validator.loops.epochs import check_epoch_length
from validator.service import examiner_settings, open_chain, open_remote, own_key
from validator.settings import ValidatorSettings

VERDICT_GAS = 150_000
"""Gas of a transaction with one verdict, rounded up: `python -m benchmarks.ledger_gas` measures it."""
FEW_VERDICTS = 1_000
"""Number of verdicts that a key should be able to pay at the least; below it the doctor warns."""
OLDEST_REDIS = (6, 2)


async def diagnose(
    settings: ValidatorSettings | None,
    settings_error: MusterError | None = None,
    *,
    clock: Clock,
    fetch: bool = False,
    check_classes: bool = False,
) -> list[DoctorFinding]:
    """Returns the findings of all checks, the machine's first.

    Args:
        settings: Settings of the validator; None if they could not be read.
        settings_error: Error that occurred when the settings were read, if any.
        clock: This machine's clock.
        fetch: Whether to download the run's version if it is not on this machine.
        check_classes: Whether to recompute the recorded file of each numerics class, half a minute per class.
    """
    if settings is None:
        detail, hint = ("there are no settings", "") if settings_error is None else _words(settings_error)
        found = failure("settings", detail, hint or "write [validator] in muster.toml: docs/validators.md")
        return [found, machine.check_memory(), await machine.check_examiner(ExaminerSettings(home=Path()))]
    findings = [
        ok("settings", f"pool {settings.pool_id}, directory {settings.directory}"),
        machine.check_cores(settings),
        machine.check_memory(),
        machine.check_disk(settings),
        await machine.check_examiner(examiner_settings(settings)),
        await _check_redis(settings),
    ]
    try:
        key = own_key(settings)
    except MusterError as error:
        return [*findings, failure("key", *_words(error))]
    findings.append(ok("key", f"validator {key.address}"))
    try:
        chain = open_chain(settings, key=key, clock=clock)
    except MusterError as error:
        findings.append(failure("chain", *_words(error)))
    else:
        findings += await check_chain(settings, chain, key=key, clock=clock)
        await chain.aclose()
    try:
        remote = open_remote(settings, key=key, clock=clock)
    except MusterError as error:
        return [*findings, failure("orchestrator", *_words(error))]
    findings += await _check_run(settings, remote, clock=clock, fetch=fetch, check_classes=check_classes)
    return findings


async def check_chain(settings: ValidatorSettings, chain: PoolChain, *, key: Key, clock: Clock) -> list[DoctorFinding]:
    """Checks the chain, the key's coin for gas, its role in the pool, and the length of epochs.

    Args:
        settings: Settings of the validator.
        chain: Client of the pool on its chain.
        key: The validator's key.
        clock: This machine's clock.
    """
    try:
        ledger = await chain.ledger()
        now, balance, price = await chain.now(), await ledger.balance(key.address), await ledger.gas_price()
        seated, terms = await chain.is_pool_validator(), await chain.terms()
    except MusterError as error:
        return [failure("chain", *_words(error))]
    behind = (clock.now() - now).total_seconds()
    found = f"chain {chain.deployment.chain_id} with Muster's contracts, newest block {max(0, behind):.0f} s old"
    findings = [
        warning("chain", found, "check that the RPC endpoint is synchronised, and this machine's clock")
        if abs(behind) > 300
        else ok("chain", found),
        _check_gas(balance, price),
        ok("role", f"pool {settings.pool_id} lists this key as a validator")
        if seated
        else failure(
            "role",
            f"pool {settings.pool_id} does not list {key.address} as a validator",
            f"ask the pool's owner: muster pool roles --add-validator {key.address}",
        ),
    ]
    try:
        check_epoch_length(timedelta(seconds=settings.epoch_s), judge_period=terms.judge_period)
    except MusterError as error:
        findings.append(failure("epochs", *_words(error)))
    return findings


def _check_gas(balance: int, price: int) -> DoctorFinding:
    verdicts = balance // max(1, price * VERDICT_GAS)
    found = f"{balance / 1e18:.4f} of the chain's coin, enough for about {verdicts:,} verdicts sent one at a time"
    advice = "send some of the chain's coin to the validator's address"
    if verdicts < 1:
        return failure("gas", found, advice)
    return warning("gas", found, advice) if verdicts < FEW_VERDICTS else ok("gas", found)


async def _check_redis(settings: ValidatorSettings) -> DoctorFinding:
    redis = connect_redis(settings.redis_url.get_secret_value(), retries=0)
    try:
        await check_redis(redis)
        with store_errors():
            release = str((await redis.info("server"))["redis_version"])
    except MusterError as error:
        return failure("redis", error.detail, "start Redis, and check redis_url of the validator's settings")
    finally:
        await redis.aclose()
    if tuple(int(part) for part in release.split(".")[:2]) < OLDEST_REDIS:
        return failure("redis", f"Redis {release} takes writes", "install Redis 6.2 or newer")
    return ok("redis", f"Redis {release} takes writes")


async def _check_run(
    settings: ValidatorSettings, remote: Remote, *, clock: Clock, fetch: bool, check_classes: bool
) -> list[DoctorFinding]:
    """Checks the orchestrator and, if its run has a version, what this machine needs to examine work of it."""
    try:
        answered, view = await check_orchestrator(remote.reader)
    finally:
        await remote.aclose()
    findings = [answered]
    paid = () if view is None or view.checkpoint is None else view.checkpoint.arithmetic
    findings += await version.check_numerics(settings, paid, check=check_classes)
    if view is not None and view.checkpoint is not None:
        findings += await version.check_version(settings, view.run_id, view.checkpoint, clock=clock, fetch=fetch)
    return findings


async def check_orchestrator(reader: OrchestratorClient) -> tuple[DoctorFinding, RunView | None]:
    """Asks the orchestrator for the run, with a request signed by the validator's key.

    Args:
        reader: Client of the orchestrator.

    Returns:
        The finding, and the run; None if there is none.
    """
    url = reader.location.url
    try:
        view = await reader.run()
    except NotFound:
        return warning("orchestrator", f"{url} takes this key's requests, but has no run", "ask the pool's owner"), None
    except MusterError as error:
        detail, hint = _words(error)
        return failure(
            "orchestrator", f"{url}: {detail}", hint or "check the setting orchestrator, and the network"
        ), None
    return ok("orchestrator", f"{url} takes this key's requests; run {view.run}"), view


def _words(error: MusterError) -> tuple[str, str]:
    return error.detail, error.hint
