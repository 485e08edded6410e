"""Builds a worker from its settings and runs it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from ledger.deployment import Deployment
from protocol.clients import DiscoveryClient
from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.keystores import find_key
from protocol.runtime.clock import SystemClock
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.wire.nodes import Registration, RuntimeKind
from worker.chain.ledger_chain import open_chain
from worker.daemon import Daemon
from worker.delivery.pool_delivery import PoolDelivery
from worker.dependencies import Dependencies
from worker.machine.gpus import GpuInventory, read_gpus
from worker.machine.hardware import read_hardware, read_software
from worker.runtime.docker import DockerRuntime, engine_socket
from worker.runtime.images import PulledImages
from worker.runtime.interface import FilterFailed, Runtime, RuntimeDown
from worker.runtime.network_filter import NetworkFilter
from worker.runtime.process import WARNING, ProcessRuntime
from worker.settings import WorkerSettings
from worker.state import StateDirectory, StateLock

_log = get_logger(__name__)


def node_key(settings: WorkerSettings) -> Key:
    """Returns the node's key, from `MUSTER_NODE_KEY` or the node's keystore.

    Raises:
        MusterError: There is no key, or the keystore can't be decrypted.
    """
    return find_key("node", keystore=settings.keystore, password_file=settings.password_file)


def docker_runtime(settings: WorkerSettings, node: Address, state: StateDirectory) -> DockerRuntime:
    """Returns this worker's Docker runtime.

    Tasks run as the worker's own user. If that user is root, tasks run as the user of their image.
    """
    user = None if os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}"
    return DockerRuntime(
        node,
        socket=engine_socket(settings.docker_host),
        allow_host_network=settings.allow_host_network,
        readable=settings.readable,
        user=user,
        network_filter=NetworkFilter(allowed=settings.allow_networks) if settings.denies_local_network else None,
        images=PulledImages(state.images, clock=SystemClock()),
    )


def process_runtime(settings: WorkerSettings, node: Address, state: StateDirectory) -> ProcessRuntime:
    """Returns this worker's sandboxed process runtime."""
    return ProcessRuntime(
        node,
        directory=state.processes,
        readable=settings.readable,
        niceness=settings.task_niceness,
        allow_host_network=settings.allow_host_network,
    )


async def choose_runtime(settings: WorkerSettings, node: Address, state: StateDirectory) -> Runtime:
    """Returns the configured runtime.

    If none is configured, it returns Docker if an engine answers, else the process sandbox.

    Raises:
        MusterError: The configured runtime can't be used; or none is configured, and neither runtime can be used.
    """
    docker_error: MusterError
    if settings.runtime is not RuntimeKind.PROCESS:
        try:
            docker = docker_runtime(settings, node, state)
            if settings.runtime is RuntimeKind.DOCKER:
                return docker  # no check: if the engine is down now, the worker waits for it
            await docker.check()
        except (RuntimeDown, InvalidInput) as error:
            if settings.runtime is RuntimeKind.DOCKER:
                raise
            docker_error = error
        else:
            return docker
        _log.info("no-docker", detail=docker_error.detail)
    process = process_runtime(settings, node, state)
    await process.check()
    _log.warning("process-runtime", warning=WARNING)
    return process


async def require_filter(runtime: Runtime) -> None:
    """Tries the packet filter of the Docker runtime once, so that a machine without it joins no pool.

    Containers that an earlier start left and whose network contradicts the settings are removed if the filter fails.
    If the engine does not answer, nothing is checked: the worker waits for the engine.

    Raises:
        FilterFailed: Tasks can't be kept away from the local network, as the settings demand.
    """
    if not isinstance(runtime, DockerRuntime):
        return
    try:
        await runtime.check_filter()
    except FilterFailed as error:
        for container in await runtime.containers():
            if container.network_denied:
                await runtime.remove(container.name)
        raise FilterFailed(
            f"the worker does not start: {error.detail}", hint=error.hint, retryable=error.retryable
        ) from error
    except RuntimeDown as error:
        _log.warning("filter-not-checked", detail=error.detail, hint=error.hint)


async def describe_software(runtime: Runtime, inventory: GpuInventory) -> tuple[str | None, bool]:
    """Returns the Docker engine's version and whether containers can use GPUs.

    The version is None if it is unknown.
    """
    if not isinstance(runtime, DockerRuntime):
        return None, bool(inventory.gpus)
    try:
        return await runtime.check(), await runtime.gpus_supported()
    except RuntimeDown:
        return None, False


RuntimeChoice = Callable[[WorkerSettings, Address, StateDirectory], Awaitable[Runtime]]
"""Function that chooses the runtime; see `choose_runtime`."""


async def run_worker(
    settings: WorkerSettings, *, choose: RuntimeChoice = choose_runtime, deliver: type[PoolDelivery] = PoolDelivery
) -> None:
    """Runs a worker until SIGTERM or SIGINT.

    Args:
        settings: The worker's settings.
        choose: Function that chooses the runtime.
        deliver: Class that delivers files to the pool. The attacks of the devnet pass another class.

    Raises:
        MusterError: The worker can't start: there is no key or no runtime, tasks can't be kept away from the local
            network, another worker uses the state directory, or the deployment file is malformed.
    """
    key = node_key(settings)
    clock = SystemClock()
    deployment = Deployment.load(settings.deployment)
    state = StateDirectory(settings.state.expanduser().absolute())
    async with AsyncExitStack() as stack:
        stack.enter_context(StateLock(state, key.address))
        runtime = await choose(settings, key.address, state)
        await require_filter(runtime)
        inventory = await run_in_thread(read_gpus)
        docker_version, gpu_containers = await describe_software(runtime, inventory)
        software = read_software([runtime.kind], docker_version=docker_version, gpu_containers=gpu_containers)

        def describe() -> Registration:
            return Registration(
                pool_id=settings.pool_id,
                hardware=read_hardware(state.root, inventory),
                software=software,
                labels=settings.labels,
            )

        chain = await stack.enter_async_context(
            open_chain(
                rpc=settings.chain_url.get_secret_value(),
                deployment=deployment,
                key=key,
                pool_id=settings.pool_id,
                clock=clock,
            )
        )
        daemon = Daemon(
            Dependencies(
                settings=settings,
                key=key,
                state=state,
                runtime=runtime,
                gpus=inventory.gpus,
                chain=chain,
                discovery=[
                    DiscoveryClient(url, key=key, clock=clock, allow_plain_http=settings.allow_plain_http)
                    for url in settings.discovery
                ],
                describe=describe,
                clock=clock,
                task_user=runtime.user if isinstance(runtime, ProcessRuntime) else None,
                warnings=[WARNING] if runtime.kind is RuntimeKind.PROCESS else [],
                deliver=deliver,
            )
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, daemon.stop)
        _log.info("worker", node=key.address, pool=settings.pool_id, state=str(state.root), runtime=runtime.kind)
        await daemon.run()
