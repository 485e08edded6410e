"""Runs the checks of `muster worker doctor`.

Without valid settings, it runs only the checks that need no settings.
"""

from __future__ import annotations

from protocol.errors import MusterError
from protocol.runtime.clock import SystemClock
from protocol.runtime.findings import DoctorFinding, Level, failure, ok
from protocol.runtime.threads import run_in_thread
from protocol.wire.nodes import RuntimeKind
from worker.app import node_key
from worker.doctor import ledger, local_network, machine, network, run, software
from worker.machine.gpus import read_gpus
from worker.machine.hardware import read_hardware
from worker.membership.joining import OrchestratorLocation, load_membership
from worker.settings import WorkerSettings, default_state
from worker.state import StateDirectory


async def examine(settings: WorkerSettings | None, settings_error: MusterError | None = None) -> list[DoctorFinding]:
    """Returns the findings of all checks.

    Args:
        settings: Settings of the worker; None if they could not be read.
        settings_error: Error that occurred when the settings were read, if any.
    """
    state = (settings.state if settings is not None else default_state()).expanduser().absolute()
    existing = next(parent for parent in (state, *state.parents) if parent.exists())
    inventory = await run_in_thread(read_gpus)
    hardware = await run_in_thread(read_hardware, existing, inventory)
    findings = [
        machine.check_gpus(inventory),
        machine.check_processor(hardware),
        machine.check_memory(hardware),
        machine.check_disk(state),
    ]
    docker, gpus_supported = await software.check_docker(settings.docker_host if settings is not None else None)
    toolkit = software.check_toolkit(inventory, gpus_supported)
    findings += [docker, *([toolkit] if toolkit is not None else []), await software.check_sandbox(docker)]
    if settings is None:
        detail, hint = (
            (settings_error.detail, settings_error.hint)
            if settings_error is not None
            else ("there are no settings", "")
        )
        return [*findings, failure("settings", detail, hint or "write [worker] in muster.toml")]
    findings.append(ok("settings", f"pool {settings.pool_id}, state in {state}"))
    with_docker = settings.runtime is not RuntimeKind.PROCESS and docker.level is Level.OK
    reached = await local_network.check_local_network(
        settings, with_docker=with_docker, addresses=local_network.own_addresses()
    )
    findings += [] if reached is None else [reached]
    membership = load_membership(StateDirectory(state), settings.pool_id)
    findings += await _services(settings, membership)
    try:
        key = await run_in_thread(node_key, settings)
    except MusterError as error:
        return [*findings, failure("wallet", error.detail, error.hint)]
    if membership is not None:
        findings += await run.check_run(
            membership, settings, key=key, clock=SystemClock(), has_gpu=bool(inventory.gpus)
        )
    return findings + await ledger.check_ledger(settings, key)


async def _services(settings: WorkerSettings, membership: OrchestratorLocation | None) -> list[DoctorFinding]:
    places = [("discovery", location) for location in settings.discovery]
    if membership is not None:
        places.append(("orchestrator", membership.url))
    checked = [
        await network.check_service(name, place, clock=SystemClock(), allow_plain_http=settings.allow_plain_http)
        for name, place in places
    ]
    findings = [finding for several in checked for finding in several]
    if membership is None:
        findings.append(ok("orchestrator", "unknown until the pool invites this node; nothing to check yet"))
    return findings
