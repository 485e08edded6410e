"""Starts the services of a devnet, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from cli.connection import open_chain
from cli.devnet.directory import DevnetDirectory
from cli.devnet.economy import CHEATER, STAKE, TERMS, VALIDATORS, Economy, found_economy, run_terms, worker_names
from cli.devnet.options import DevnetOptions, FirstTask, Verification
from cli.devnet.orphan_reaper import OrphanReaper
from cli.devnet.ports import DevnetPorts
from cli.devnet.redis import redis_spec
from cli.devnet.services import (
    discovery_spec,
    image_spec,
    orchestrator_spec,
    origin_spec,
    relay_spec,
    trainer_spec,
    validator_spec,
    worker_spec,
)
from cli.devnet.serving import STAKE as SERVING_STAKE
from cli.devnet.serving import (
    await_answer,
    gateway_spec,
    gateway_table,
    make_tokens,
    publish_spec,
    verifier_spec,
)
from cli.devnet.settings import (
    ServicePlaces,
    write_configuration,
    write_ledger_configuration,
    write_worker_settings,
)
from cli.devnet.supervisor import ProcessSpec, SupervisedProcess, Supervisor
from cli.devnet.tasks import (
    await_first_rollouts,
    await_hello,
    check_engine,
    choose_runtime,
    hello_task,
    post_task,
    rollouts_task,
)
from cli.devnet.view import View
from cli.output.quantities import counted
from ledger.devchain import chain_command
from protocol.runtime.waiting import cancel_all, run_unless
from protocol.wire.nodes import RuntimeKind

CHAIN_ID = 31_337
GATHER = timedelta(milliseconds=25)
"""Time for which the chain collects transactions before it makes a block. The time is short, because a verdict needs
two successive blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningNetwork:
    """A devnet with chain, contracts and pool; its services may still be starting."""

    rpc: str
    economy: Economy
    runtime: RuntimeKind
    places: ServicePlaces | None = None
    """Addresses of the devnet's services; None without services."""
    workers: Sequence[tuple[str, str]] = ()
    """For each worker, the names of its provider key and its node key."""


class NetworkStart:
    """Starts the parts of a devnet in order.

    Args:
        options: Options of the devnet.
        directory: Folder of the devnet.
        supervisor: Starts and restarts the processes.
        reaper: Ends the processes and containers if this process dies.
        view: Shows events.
    """

    def __init__(
        self,
        options: DevnetOptions,
        directory: DevnetDirectory,
        supervisor: Supervisor,
        reaper: OrphanReaper,
        view: View,
    ) -> None:
        self._options = options
        self._directory = directory
        self._supervisor = supervisor
        self._reaper = reaper
        self._view = view
        self._image: asyncio.Task[None] | None = None
        self._ports = DevnetPorts(directory)
        self.trainer: SupervisedProcess | None = None

    async def foundation(self) -> RunningNetwork:
        """Starts the chain, deploys the contracts and creates the pool.

        Also starts Redis, unless the devnet has no services (`--ledger-only`).

        Raises:
            ProcessFailed: The chain did not start.
        """
        options = self._options
        runtime = await choose_runtime(options.runtime)
        if options.has_model:
            check_engine(options.run.engine, runtime)
        self._image = asyncio.create_task(self._make_image(runtime))
        rpc = await self._start_chain()
        workers = () if options.ledger_only else tuple(worker_names(options.workers, cheater=options.cheats))
        terms = run_terms(options.run.scale) if options.has_model else TERMS
        economy = await found_economy(
            rpc,
            CHAIN_ID,
            self._directory,
            workers=workers,
            terms=terms,
            stake=SERVING_STAKE if options.serves else STAKE,
            on_event=self._view.event,
        )
        if options.ledger_only:
            write_ledger_configuration(self._directory, rpc, CHAIN_ID)
            return RunningNetwork(rpc=rpc, economy=economy, runtime=runtime)
        ports = self._ports
        redis, redis_url_file = redis_spec(self._directory, ports.of("redis"))
        places = ServicePlaces(
            rpc=rpc,
            chain_id=CHAIN_ID,
            redis_url_file=redis_url_file,
            discovery_port=ports.of("discovery"),
            discovery_address=economy.keys["discovery"].address,
            orchestrator_port=ports.of("orchestrator"),
            origin_port=ports.of("origin"),
            relay_ports=tuple(ports.of(f"relay-{n + 1}") for n in range(options.run.scale.relays)),
            validator_ports=tuple(ports.of(name) for name in VALIDATORS),
            gateway_port=ports.of("gateway") if options.serves else 0,
            trainer_metrics_port=ports.of("trainer") if options.learns else None,
            worker_metrics_ports={node: ports.of(node) for _, node in workers},
        )
        ports.save()
        honest = next((node for provider, node in workers if (provider, node) != CHEATER), None)
        worker = None if honest is None else (honest, runtime)
        gateway = gateway_table(self._directory, places, options.verify) if options.serves else None
        write_configuration(self._directory, places, options.run, worker, gateway=gateway)
        await self._supervisor.start(redis)
        return RunningNetwork(rpc=rpc, economy=economy, runtime=runtime, places=places, workers=workers)

    async def services(self, network: RunningNetwork, places: ServicePlaces) -> None:
        """Starts services, validators, trainer and workers, and waits until the nodes work.

        Returns when every honest node has submitted work, or when all nodes run the task `hello`.

        Raises:
            ProcessFailed: A process did not start, or a node did not begin to work in time.
        """
        options, directory = self._options, self._directory
        services = [discovery_spec(directory, places), orchestrator_spec(directory, places)]
        if options.has_model:
            services.append(origin_spec(directory, places))
            keep = options.run.scale.keep_versions
            services += [relay_spec(directory, places, n + 1, keep=keep) for n in range(options.run.scale.relays)]
        await asyncio.gather(*[self._supervisor.start(service) for service in services])
        keys = network.economy.keys
        self._reaper.watch_containers([keys[node].address for _, node in network.workers])
        learners = []
        if options.learns:
            learners.append(self._start_learners(places))
        elif options.serves:
            learners += [self._start_serving(places), self._start_validators(places)]
        await asyncio.gather(self._post_task(network, places), *learners, self._start_workers(network, places))
        nodes = len(network.workers)
        if nodes and options.learns:
            await self._await_work(network, places)
        elif nodes and options.serves:
            await await_answer(directory, places, on_event=self._view.event)
        elif nodes:
            await await_hello(directory, places, nodes=nodes, on_event=self._view.event)
            self._view.event(f"the first task runs on {counted(nodes, 'node')}")

    async def aclose(self) -> None:
        """Cancels the build of the image."""
        if self._image is not None:
            await cancel_all([self._image])

    async def _await_work(self, network: RunningNetwork, places: ServicePlaces) -> None:
        """Waits until every honest node has submitted work, or the run is over.

        Does not wait for a cheater, because some attacks never submit work.
        """
        keys = network.economy.keys
        honest = [keys[node].address for provider, node in network.workers if (provider, node) != CHEATER]
        over = self.trainer.done if self.trainer is not None else asyncio.Event()
        waiting = await_first_rollouts(
            self._directory,
            places,
            nodes=honest,
            on_event=self._view.event,
            within=self._options.run.scale.first_rollouts,
        )
        await run_unless(over, waiting)
        if not over.is_set():
            self._view.event(f"work of {counted(len(honest), 'honest node')} is on the ledger")

    async def _start_learners(self, places: ServicePlaces) -> None:
        self.trainer, _ = await asyncio.gather(
            self._supervisor.start(trainer_spec(self._directory, places, self._options.run)),
            self._start_validators(places),
        )

    async def _start_validators(self, places: ServicePlaces) -> None:
        specs = [
            validator_spec(self._directory, places, number + 1, self._options.run.scale)
            for number in range(self._options.validators)
        ]
        await asyncio.gather(*[self._supervisor.start(spec) for spec in specs])

    async def _start_serving(self, places: ServicePlaces) -> None:
        """Publishes the model, and starts the gateway and its verifier."""
        directory, options = self._directory, self._options
        await self._supervisor.complete(publish_spec(directory, places, options.run))
        await self._supervisor.start(gateway_spec(directory, places))
        await make_tokens(directory, self._supervisor)
        if options.verify is not Verification.NONE:
            await self._supervisor.start(verifier_spec(directory, places, options.run))

    async def _start_workers(self, network: RunningNetwork, places: ServicePlaces) -> None:
        specs: list[ProcessSpec] = []
        for pair in network.workers:
            name = pair[1]
            cheat = self._options.cheat if pair == CHEATER else ""
            # The attack kit replaces the task's program, which is possible only in the process sandbox.
            runtime = RuntimeKind.PROCESS if cheat else network.runtime
            settings = write_worker_settings(self._directory, places, name, runtime, self._options.run)
            specs.append(worker_spec(name, settings, cheat=cheat))
        await asyncio.gather(*[self._supervisor.start(spec) for spec in specs])

    async def _post_task(self, network: RunningNetwork, places: ServicePlaces) -> None:
        """Posts the task, which each node runs after it has joined the pool."""
        if self._image is not None:
            await self._image
        run = self._options.run
        spec = hello_task()
        if self._options.has_model:
            spec = rollouts_task(network.runtime, run.engine, run.scale, serves=self._options.serves)
        await post_task(self._directory, places, spec)
        self._view.event(f"the task {spec.name} is posted; {network.runtime.value} runs it")

    async def _make_image(self, runtime: RuntimeKind) -> None:
        """Makes the containers' image while the services start.

        A separate process makes the image, so that this process can cancel the build.
        """
        options = self._options
        if runtime is RuntimeKind.PROCESS or options.ledger_only or not options.workers:
            return
        self._view.event("making a container image from this machine's Python (takes up to a minute the first time)")
        await self._supervisor.complete(image_spec("hello" if options.task is FirstTask.HELLO else "rollouts"))

    async def _start_chain(self) -> str:
        port = self._ports.of("chain")
        self._ports.save()
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
