"""Command `muster gateway run`, which runs the service; `cli/gateway` adds the operator's commands."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.app import build_gateway
from gateway.chain.pool import LedgerLink
from gateway.settings import GatewaySettings
from ledger.deployment import Deployment
from protocol.http.serving.service import run_service
from protocol.identifiers import run_id
from protocol.identity.keystores import find_key
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock
from protocol.runtime.configuration_file import ConfigOption, reads
from protocol.runtime.logs import configure_logs


@reads("gateway")
def run(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 for any free one.")] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run the gateway until SIGTERM or SIGINT."""
    configure_logs(level=log_level, service=True)
    settings = GatewaySettings.load(file=config, flags={"host": host, "port": port})
    key = find_key("gateway", keystore=settings.keystore, password_file=settings.password_file)
    clock = SystemClock()
    ledger = LedgerLink(
        settings.chain_url.get_secret_value(),
        Deployment.load(settings.deployment),
        pool_id=settings.pool_id,
        run=run_id(settings.run),
        clock=clock,
    )
    redis = connect_redis(settings.redis_url.get_secret_value())
    run_service(
        build_gateway(settings, redis=redis, ledger=ledger, key=key, clock=clock),
        host=settings.host,
        port=settings.port,
    )
