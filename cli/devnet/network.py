"""What runs in a devnet, written down as plain code, in the order in which it starts."""

from __future__ import annotations

import asyncio
import signal
import uuid
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from cli.connection import open_chain
from cli.devnet.directory import DevnetDirectory, claim_directory
from cli.devnet.economy import Economy, found_economy, worker_names
from cli.devnet.guardian import Guardian
from cli.devnet.redis import redis_spec
from cli.devnet.run import (
    await_first_rollouts,
    post_rollouts_task,
    publish_first_policy,
    run_facts,
)
from cli.devnet.services import (
    POOL,
    RELAYS,
    ServicePlaces,
    discovery_spec,
    image_spec,
    orchestrator_spec,
    origin_spec,
    relay_spec,
    worker_spec,
    write_configuration,
    write_ledger_configuration,
    write_worker_settings,
)
from cli.devnet.supervisor import ProcessSpec, Supervisor
from cli.devnet.task import await_first_task, choose_runtime, open_orchestrator, post_first_task
from cli.devnet.view import View
from ledger.amounts import format_amount
from ledger.chain import ChainKind, chain_command, free_port
from ledger.client import Ledger
from protocol.errors import MusterError
from protocol.wire.nodes import RuntimeKind

CHAIN_ID = 31_337
_REFRESH_SECONDS = 0.5


class FirstTask(StrEnum):
    """What the workers do."""

    ROLLOUTS = "rollouts"
    """Generate rollouts for a run, with a small real model that origin and relays broadcast."""
    HELLO = "hello"
    """Count, and say who they are: enough to try nodes, tasks, logs and events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevnetOptions:
    """What a person may choose."""

    directory: Path
    chain: ChainKind = ChainKind.EMBEDDED
    block_time: timedelta = timedelta(seconds=0.5)
    workers: int = 2
    task: FirstTask = FirstTask.ROLLOUTS
    runtime: RuntimeKind | None = None
    """What tasks run in; None takes Docker where an engine answers, else the process sandbox."""
    keep: bool = False
    ledger_only: bool = False
    """The chain with its contracts and a pool, and no services: nodes are whatever commands make of them."""
    only_check: bool = False
    """Start everything, see that it works, stop."""


async def run_devnet(options: DevnetOptions, view: View) -> None:
    """Runs a devnet until it is told to stop (SIGINT, SIGTERM), or until a process is lost for good.

    Raises:
        ProcessFailed: A process did not start, or was lost.
        Conflict: A devnet runs in the folder already.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, stop.set)
    network_id = uuid.uuid4().hex
    with claim_directory(options.directory, keep=options.keep) as directory, Guardian(network_id) as guardian:
        supervisor = Supervisor(directory.path, network_id=network_id)

        def tell(event: str) -> None:
            view.event(event)
            view.processes(supervisor.processes)

        supervisor.on_event = tell
        async with supervisor:
            starting = asyncio.create_task(_start(options, directory, supervisor, guardian, view))
            if not await _finished(starting, stop):
                return
            if options.only_check:
                return
            await _watch(starting.result(), supervisor, view, stop)


@dataclass(frozen=True, slots=True)
class RunningNetwork:
    """A devnet that is up."""

    rpc: str
    economy: Economy
    directory: DevnetDirectory
    places: ServicePlaces | None = None
    """Where its services are; None if it has none."""


async def _start(
    options: DevnetOptions, directory: DevnetDirectory, supervisor: Supervisor, guardian: Guardian, view: View
) -> RunningNetwork:
    runtime = await choose_runtime(options.runtime)
    image = asyncio.create_task(_make_image(options, runtime, supervisor, view))
    try:
        return await _start_all(options, directory, supervisor, guardian, view, runtime, image)
    finally:
        image.cancel()
        await asyncio.gather(image, return_exceptions=True)


async def _start_all(
    options: DevnetOptions,
    directory: DevnetDirectory,
    supervisor: Supervisor,
    guardian: Guardian,
    view: View,
    runtime: RuntimeKind,
    image: asyncio.Task[None],
) -> RunningNetwork:
    rpc = await _start_chain(options, directory, supervisor)
    workers = 0 if options.ledger_only else options.workers
    economy = await found_economy(rpc, CHAIN_ID, directory, workers=workers, say=view.event)
    if options.ledger_only:
        write_ledger_configuration(directory, rpc, CHAIN_ID)
        view.event("ready: try `.venv/bin/muster pool show` in another terminal, here in this folder")
        return RunningNetwork(rpc, economy, directory)
    redis, redis_url_file = redis_spec(directory, free_port())
    places = ServicePlaces(
        rpc=rpc,
        chain_id=CHAIN_ID,
        redis_url_file=redis_url_file,
        discovery_port=free_port(),
        discovery_address=economy.keys["discovery"].address,
        orchestrator_port=free_port(),
        origin_port=free_port(),
        relay_ports=tuple(free_port() for _ in range(RELAYS)),
    )
    write_configuration(directory, places)
    await supervisor.start(redis)
    services = [discovery_spec(directory, places), orchestrator_spec(directory, places)]
    if options.task is FirstTask.ROLLOUTS:
        services += [origin_spec(directory, places), *(relay_spec(directory, places, n + 1) for n in range(RELAYS))]
    await asyncio.gather(*[supervisor.start(service) for service in services])
    names = [name for _, name in worker_names(workers)]
    guardian.watch_containers([economy.keys[name].address for name in names])
    await asyncio.gather(
        _give_work(options, directory, places, economy, runtime, view, image),
        *[
            supervisor.start(worker_spec(name, write_worker_settings(directory, places, name, runtime)))
            for name in names
        ],
    )
    if names and options.task is FirstTask.HELLO:
        await await_first_task(directory, places, nodes=len(names))
        view.event(f"the first task runs on {len(names)} nodes")
    elif names:
        await await_first_rollouts(directory, places, nodes=len(names))
        view.event(f"work of {len(names)} nodes is on the ledger")
    view.event("ready: try `.venv/bin/muster pool nodes` in another terminal, here in this folder")
    return RunningNetwork(rpc, economy, directory, places)


async def _give_work(
    options: DevnetOptions,
    directory: DevnetDirectory,
    places: ServicePlaces,
    economy: Economy,
    runtime: RuntimeKind,
    view: View,
    image: asyncio.Task[None],
) -> None:
    """What nodes will find to do when they have joined."""
    if options.task is FirstTask.ROLLOUTS:
        await publish_first_policy(directory, places, economy, view.event)
    await image
    if options.task is FirstTask.HELLO:
        await post_first_task(directory, places, runtime, view.event)
        return
    await post_rollouts_task(directory, places, runtime, view.event)


async def _make_image(options: DevnetOptions, runtime: RuntimeKind, supervisor: Supervisor, view: View) -> None:
    """Makes the image that containers need while all else starts; in a process of its own, so that it can be ended."""
    if runtime is RuntimeKind.PROCESS or options.ledger_only or not options.workers:
        return
    view.event("making a container image from this machine's own Python (the first time, up to a minute)")
    await supervisor.complete(image_spec(options.task.value))


async def _start_chain(options: DevnetOptions, directory: DevnetDirectory, supervisor: Supervisor) -> str:
    port = free_port()
    rpc = f"http://127.0.0.1:{port}"

    async def answers() -> bool:
        async with open_chain(rpc, CHAIN_ID):
            return True

    command = chain_command(
        options.chain, port=port, state=directory.chain_state, block_time=options.block_time, chain_id=CHAIN_ID
    )
    spec = ProcessSpec(name="chain", command=command, gate=answers)
    await supervisor.start(spec)
    return rpc


async def _finished(starting: asyncio.Task[RunningNetwork], stop: asyncio.Event) -> bool:
    """Whether the start came to its end before somebody wanted to stop."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    return False


async def _watch(network: RunningNetwork, supervisor: Supervisor, view: View, stop: asyncio.Event) -> None:
    """Keeps the view fresh until somebody wants to stop or a process is lost."""
    lost: asyncio.Task[MusterError] = asyncio.create_task(supervisor.failure())
    stopped = asyncio.create_task(stop.wait())
    refreshing = asyncio.create_task(_refresh(network, supervisor, view))
    try:
        await asyncio.wait({lost, stopped, refreshing}, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            raise lost.result()
        if refreshing.done():
            refreshing.result()
    finally:
        for task in (lost, stopped, refreshing):
            task.cancel()
        await asyncio.gather(lost, stopped, refreshing, return_exceptions=True)


async def _refresh(network: RunningNetwork, supervisor: Supervisor, view: View) -> None:
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(Ledger.connect(network.rpc, network.economy.deployment))
        orchestrator = None
        if network.places is not None:
            orchestrator = await stack.enter_async_context(open_orchestrator(network.directory, network.places))
        while True:
            view.processes(supervisor.processes)
            with suppress(MusterError):  # a service that restarts is told by its own events
                run = {} if orchestrator is None else run_facts(await orchestrator.run())
                view.facts({**await _facts(network, ledger), **run})
            await asyncio.sleep(_REFRESH_SECONDS)


async def _facts(network: RunningNetwork, ledger: Ledger) -> dict[str, str]:
    pool, escrow, totals = (
        await ledger.pools.get(POOL),
        await ledger.pools.escrow(POOL),
        await ledger.work.totals(POOL),
    )
    return {
        "chain": f"{network.rpc} (id {CHAIN_ID}), block {await ledger.block()}",
        "pool": f"{POOL} {pool.status.name.lower()}, {pool.member_count} members",
        "escrow": f"{format_amount(escrow.balance)} MUST, {format_amount(escrow.reserved)} reserved for open work",
        "earned": f"{format_amount(totals.accrued)} MUST, {format_amount(totals.paid)} of it claimed",
        "configuration": str(network.directory.configuration),
    }
