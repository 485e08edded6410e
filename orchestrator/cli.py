"""`muster orchestrator`: run the service."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from ledger.confirmations import warn_if_unconfirmed
from ledger.deployment import Deployment
from orchestrator.app import build_orchestrator
from orchestrator.chain.pool import LedgerPool
from orchestrator.chain.run import LedgerRun
from orchestrator.settings import OrchestratorSettings
from protocol.errors import NotFound
from protocol.http.serving.service import run_service
from protocol.identifiers import ZERO_DIGEST, run_id
from protocol.identity.keys import Key
from protocol.identity.keystores import find_key
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock
from protocol.runtime.configuration_file import ConfigOption, reads
from protocol.runtime.logs import configure_logs
from protocol.runtime.tracing import TracingSettings, tracing

LONGEST_POLL = timedelta(milliseconds=200)
"""Longest pause between two checks whether a relayed transaction is mined; `relay_every_s / 5` if that is shorter."""

app = typer.Typer(name="orchestrator", no_args_is_help=True, help="Run a pool's orchestrator.")


@app.callback()
def orchestrator() -> None:
    """Run a pool's orchestrator."""


@app.command()
@reads("orchestrator", "tracing")
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 for any free one.")] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Serve until SIGTERM or SIGINT."""
    configure_logs(level=log_level, service=True)
    settings = OrchestratorSettings.load(file=config, flags={"host": host, "port": port})
    key = find_key("orchestrator", keystore=settings.keystore, password_file=settings.password_file)
    deployment = Deployment.load(settings.deployment)
    warn_if_unconfirmed(chain_id=deployment.chain_id, confirmations=settings.confirmations)
    clock = SystemClock()
    redis = connect_redis(settings.redis_url.get_secret_value())
    ledger = LedgerPool(
        settings.chain_url.get_secret_value(),
        deployment,
        pool_id=settings.pool_id,
        key=key,
        manager=_manager(settings),
        redis=redis,
        confirmations=settings.confirmations,
        clock=clock,
    )
    # Created even if the pool has no run, because joins are also relayed through this object.
    run_ledger = LedgerRun(
        settings.chain_url.get_secret_value(),
        deployment,
        pool_id=settings.pool_id,
        run=ZERO_DIGEST if settings.run is None else run_id(settings.run),
        relayer=_relayer(settings) or key,
        redis=redis,
        confirmations=settings.confirmations,
        clock=clock,
        poll=min(LONGEST_POLL, timedelta(seconds=settings.relay_every_s) / 5),
    )
    service = build_orchestrator(settings, redis=redis, ledger=ledger, run_ledger=run_ledger, key=key, clock=clock)
    with tracing("orchestrator", TracingSettings.load(file=config)):
        run_service(service, host=settings.host, port=settings.port)


def _relayer(settings: OrchestratorSettings) -> Key | None:
    """Returns the key that pays for relayed transactions; None: the orchestrator's own key."""
    try:
        return find_key("relayer", keystore=settings.relayer_keystore, password_file=settings.relayer_password_file)
    except NotFound:
        if settings.relayer_keystore is not None:
            raise
        return None


def _manager(settings: OrchestratorSettings) -> Key | None:
    """Returns the manager's key; None if this orchestrator does not hold that key."""
    try:
        return find_key("manager", keystore=settings.manager_keystore, password_file=settings.manager_password_file)
    except NotFound:
        if settings.manager_keystore is not None:
            raise
        return None
