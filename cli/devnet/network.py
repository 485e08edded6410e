"""Starts the services of a devnet, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from cli.connection import open_chain
from cli.devnet.directory import DevnetDirectory
from cli.devnet.economy import CHEATER, RUN_TERMS, TERMS, VALIDATORS, Economy, found_economy, worker_names
from cli.devnet.learning import cheater_spec, trainer_spec, validator_spec
from cli.devnet.options import DevnetOptions, FirstTask
from cli.devnet.orphan_reaper import OrphanReaper
from cli.devnet.redis import redis_spec
from cli.devnet.run import await_first_rollouts, check_engine, post_rollouts_task
from cli.devnet.services import (
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
from cli.devnet.supervisor import ProcessSpec, SupervisedProcess, Supervisor
from cli.devnet.task import await_first_task, choose_runtime, post_first_task
from cli.devnet.view import View
from ledger.devchain import chain_command, free_port
from protocol.wire.nodes import RuntimeKind

CHAIN_ID = 31_337
GATHER = timedelta(milliseconds=25)
"""Wait of a transaction for others to share its block; a verdict needs two blocks in sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningNetwork:
    """A devnet that is up, or on its way there."""

    rpc: str
    economy: Economy
    directory: DevnetDirectory
    runtime: RuntimeKind
    places: ServicePlaces | None = None
    """Places of its services; None without services."""
    workers: Sequence[tuple[str, str]] = ()
    """Names of the provider and node keys of those that it runs."""


class NetworkStart:
    """Starts a devnet, one part after the other.

    Args:
        options: What was chosen.
        directory: Its folder.
        supervisor: Runs the processes.
        guardian: Ends what is left of them.
        view: Told what happens.
    """

    def __init__(
        self,
        options: DevnetOptions,
        directory: DevnetDirectory,
        supervisor: Supervisor,
        guardian: OrphanReaper,
        view: View,
    ) -> None:
        self._options = options
        self._directory = directory
        self._supervisor = supervisor
        self._guardian = guardian
        self._view = view
        self._image: asyncio.Task[None] | None = None
        self.trainer: SupervisedProcess | None = None

    async def foundation(self) -> RunningNetwork:
        """The chain with its contracts, the pool, everybody's keys and money; for a pool without services, all of it.

        Raises:
            ProcessFailed: The chain did not start.
        """
        options = self._options
        runtime = await choose_runtime(options.runtime)
        if options.learns:
            check_engine(options.run.engine, runtime)
        self._image = asyncio.create_task(self._make_image(runtime))
        rpc = await self._start_chain()
        workers = () if options.ledger_only else tuple(worker_names(options.workers, cheater=options.cheats))
        terms = RUN_TERMS if options.learns else TERMS
        economy = await found_economy(
            rpc, CHAIN_ID, self._directory, workers=workers, terms=terms, say=self._view.event
        )
        if options.ledger_only:
            write_ledger_configuration(self._directory, rpc, CHAIN_ID)
            return RunningNetwork(rpc=rpc, economy=economy, directory=self._directory, runtime=runtime)
        redis, redis_url_file = redis_spec(self._directory, free_port())
        places = ServicePlaces(
            rpc=rpc,
            chain_id=CHAIN_ID,
            redis_url_file=redis_url_file,
            discovery_port=free_port(),
            discovery_address=economy.keys["discovery"].address,
            orchestrator_port=free_port(),
            origin_port=free_port(),
            relay_ports=tuple(free_port() for _ in range(RELAYS)),
            validator_ports=tuple(free_port() for _ in VALIDATORS),
        )
        honest = next((node for provider, node in workers if (provider, node) != CHEATER), None)
        worker = None if honest is None else (honest, runtime)
        write_configuration(self._directory, places, options.run, worker)
        await self._supervisor.start(redis)
        return RunningNetwork(
            rpc=rpc, economy=economy, directory=self._directory, runtime=runtime, places=places, workers=workers
        )

    async def services(self, network: RunningNetwork, places: ServicePlaces) -> None:
        """Starts services, validators, trainer and workers; returns when work arrives.

        Raises:
            ProcessFailed: One did not start, or no work comes.
        """
        options, directory = self._options, self._directory
        services = [discovery_spec(directory, places), orchestrator_spec(directory, places)]
        if options.learns:
            services.append(origin_spec(directory, places))
            services += [relay_spec(directory, places, n + 1) for n in range(RELAYS)]
        await asyncio.gather(*[self._supervisor.start(service) for service in services])
        keys = network.economy.keys
        self._guardian.watch_containers([keys[node].address for _, node in network.workers])
        learners = [self._start_learners(places)] if options.learns else []
        await asyncio.gather(self._give_work(network, places), *learners, self._start_workers(network, places))
        nodes = len(network.workers)
        if nodes and options.learns:
            await self._await_work(network, places)
        elif nodes:
            await await_first_task(directory, places, nodes=nodes, say=self._view.event)
            self._view.event(f"the first task runs on {nodes} nodes")

    async def aclose(self) -> None:
        """Ends what is still being made."""
        if self._image is not None:
            self._image.cancel()
            await asyncio.gather(self._image, return_exceptions=True)

    async def _await_work(self, network: RunningNetwork, places: ServicePlaces) -> None:
        """Returns when all honest nodes have handed in work, or the run is over: a cheat may never come to any."""
        keys = network.economy.keys
        honest = [keys[node].address for provider, node in network.workers if (provider, node) != CHEATER]
        working = asyncio.create_task(await_first_rollouts(self._directory, places, nodes=honest, say=self._view.event))
        over = asyncio.create_task(self.trainer.done.wait()) if self.trainer is not None else None
        try:
            await asyncio.wait({working, *([over] if over else [])}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                self._view.event(f"work of {len(honest)} honest nodes is on the ledger")
        finally:
            for task in (working, over):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    async def _start_learners(self, places: ServicePlaces) -> None:
        self.trainer, *_ = await asyncio.gather(
            self._supervisor.start(trainer_spec(self._directory, places, self._options.run)),
            *[
                self._supervisor.start(validator_spec(self._directory, places, number + 1))
                for number in range(self._options.validators)
            ],
        )

    async def _start_workers(self, network: RunningNetwork, places: ServicePlaces) -> None:
        specs: list[ProcessSpec] = []
        for pair in network.workers:
            name = pair[1]
            cheats = pair == CHEATER
            # Whoever cheats owns the machine, and does without a container.
            runtime = RuntimeKind.PROCESS if cheats else network.runtime
            settings = write_worker_settings(self._directory, places, name, runtime)
            specs.append(cheater_spec(name, self._options.cheat, settings) if cheats else worker_spec(name, settings))
        await asyncio.gather(*[self._supervisor.start(spec) for spec in specs])

    async def _give_work(self, network: RunningNetwork, places: ServicePlaces) -> None:
        """Posts the first task, for nodes to run once they have joined."""
        if self._image is not None:
            await self._image
        if self._options.task is FirstTask.HELLO:
            await post_first_task(self._directory, places, network.runtime, self._view.event)
            return
        engine = self._options.run.engine
        await post_rollouts_task(self._directory, places, network.runtime, engine, self._view.event)

    async def _make_image(self, runtime: RuntimeKind) -> None:
        """Makes the image that containers need while all else starts; in a process of its own, so it can be ended."""
        options = self._options
        if runtime is RuntimeKind.PROCESS or options.ledger_only or not options.workers:
            return
        self._view.event("making a container image from this machine's own Python (the first time, up to a minute)")
        await self._supervisor.complete(image_spec("hello" if options.task is FirstTask.HELLO else "rollouts"))

    async def _start_chain(self) -> str:
        port = free_port()
        rpc = f"http://127.0.0.1:{port}"

        async def answers() -> bool:
            async with open_chain(rpc, CHAIN_ID):
                return True

        command = chain_command(
            self._options.chain,
            port=port,
            state=self._directory.chain_state,
            block_time=self._options.block_time,
            gather=GATHER,
            chain_id=CHAIN_ID,
        )
        await self._supervisor.start(ProcessSpec(name="chain", command=command, gate=answers))
        return rpc
