"""Command `muster discovery serve`, which runs the service."""

from __future__ import annotations

from typing import Annotated

import typer

from discovery.app import build_discovery
from discovery.chain.link import LedgerLink
from discovery.settings import DiscoverySettings
from ledger.artifacts import Contract
from ledger.confirmations import warn_if_unconfirmed
from ledger.deployment import Deployment
from protocol.http.serving.service import run_service
from protocol.identity.keystores import find_key
from protocol.identity.typed_data import SigningDomain
from protocol.redis.connection import connect_redis
from protocol.runtime.configuration_file import ConfigOption, reads
from protocol.runtime.logs import configure_logs

app = typer.Typer(name="discovery", no_args_is_help=True, help="Run a discovery service.")


@app.callback()
def discovery() -> None:
    """Run a discovery service."""


@app.command()
@reads("discovery")
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 for any free one.")] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL[#ADDRESS]",
            help="Discovery service to pull signed records from, instead of the setting `peers`; may be repeated.",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Serve until SIGTERM or SIGINT."""
    configure_logs(level=log_level, service=True)
    settings = DiscoverySettings.load(file=config, flags={"host": host, "port": port, "peers": peer or None})
    key = find_key("discovery", keystore=settings.keystore, password_file=settings.password_file)
    deployment = Deployment.load(settings.deployment)
    warn_if_unconfirmed(chain_id=deployment.chain_id, confirmations=settings.confirmations)
    redis = connect_redis(settings.redis_url.get_secret_value())
    ledger = LedgerLink(
        settings.chain_url.get_secret_value(), deployment, redis=redis, confirmations=settings.confirmations
    )
    service = build_discovery(
        settings,
        key=key,
        pools=SigningDomain(deployment.chain_id, deployment[Contract.COMPUTE_POOLS]),
        redis=redis,
        ledger=ledger,
    )
    run_service(service, host=settings.host, port=settings.port)
