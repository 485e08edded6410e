"""`muster shardcast allowlist`: limits access to an origin or relay to active nodes of the pool."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from cli.output.printing import JsonOption, note, say, show_json, warn
from cli.pool.connection import Manager, Where, open_orchestrator
from protocol.clients import OrchestratorClient
from protocol.errors import InvalidInput, MusterError, Unavailable
from protocol.runtime.clock import Clock, SystemClock
from shardcast.allowlist import FirewallRules, Network, allowed_networks

ROUND_TIMEOUT = timedelta(seconds=60)
"""Time limit for reading all pages of the orchestrator's list of node addresses."""


async def allowlist(
    context: typer.Context,
    *,
    nginx: Annotated[Path | None, typer.Option(help="File to write with the list, as a geo block of nginx.")] = None,
    nginx_pid: Annotated[
        Path | None, typer.Option(help="Pid file of nginx, to reload its configuration after each change.")
    ] = None,
    nftables: Annotated[Path | None, typer.Option(help="File to write with the list, as sets of nftables.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Run `nft -f` on the --nftables file.")] = False,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="Also admit this network: validators, other relays. May be repeated."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(min=0.2, help="Seconds between two refreshes, which run until interrupted; default: write once."),
    ] = None,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Write the addresses of the pool's active nodes for nginx and nftables, and reload both.

    Without an output file, the command prints the networks. While the orchestrator is down, the last list stays in
    force.
    """
    if apply and nftables is None:
        raise InvalidInput("--apply needs --nftables", hint="give --nftables FILE, too")
    if nginx_pid is not None and nginx is None:
        raise InvalidInput("--nginx-pid needs --nginx", hint="give --nginx FILE, too")
    rules = FirewallRules(nginx=nginx, nginx_pid=nginx_pid, nftables=nftables, apply=apply)
    extra = tuple(also or ())
    allowed_networks((), also=extra)  # reports errors in --also before the first request
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        networks = await refresh(client, rules, also=extra)
        if nginx is None and nftables is None:
            _show(networks, as_json=as_json)
        else:
            note(f"{len(networks)} networks are allowed")
        if every is not None:
            await keep_fresh(client, rules, also=extra, every=timedelta(seconds=every), clock=SystemClock())


async def refresh(client: OrchestratorClient, rules: FirewallRules, *, also: tuple[str, ...]) -> tuple[Network, ...]:
    """Reads the complete list and installs it; a partial list is never installed.

    Raises:
        MusterError: The orchestrator is down or refuses the request, or nginx or nftables could not be updated.
        Unavailable: The list was not complete within `ROUND_TIMEOUT`.
        OSError: A file can't be written.
    """
    try:
        async with asyncio.timeout(ROUND_TIMEOUT.total_seconds()):
            ips = [node.ip async for node in client.allowlist()]
    except TimeoutError as error:
        raise Unavailable(
            f"the orchestrator has not sent the complete list within {ROUND_TIMEOUT.total_seconds():g} s",
            hint="check the connection to the orchestrator, then try again",
        ) from error
    networks = allowed_networks(ips, also=also)
    await rules.install(networks)
    return networks


async def keep_fresh(
    client: OrchestratorClient, rules: FirewallRules, *, also: tuple[str, ...], every: timedelta, clock: Clock
) -> None:
    """Refreshes the list until cancelled; a failed round is logged, and the last list stays in force."""
    count: int | None = None
    while True:
        await clock.sleep(every)
        try:
            networks = await refresh(client, rules, also=also)
        except (MusterError, OSError) as error:
            warn(f"the list was not refreshed: {error}")
            continue
        if len(networks) != count:
            count = len(networks)
            note(f"{count} networks are allowed")


def _show(networks: tuple[Network, ...], *, as_json: bool) -> None:
    if as_json:
        show_json([str(network) for network in networks])
        return
    for network in networks:
        say(str(network))
