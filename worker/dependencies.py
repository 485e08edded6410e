"""Dependencies of the worker daemon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from protocol.clients import DiscoveryClient
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from protocol.wire.nodes import Registration
from worker.chain.ledger_chain import LedgerChain
from worker.delivery.pool_delivery import PoolDelivery
from worker.runtime.interface import Runtime
from worker.settings import WorkerSettings
from worker.state import StateDirectory
from worker.tasks.container_spec import InstalledGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Objects that the daemon needs.

    `app.run_worker` creates them; tests pass substitutes.
    """

    settings: WorkerSettings
    key: Key
    state: StateDirectory
    runtime: Runtime
    gpus: tuple[InstalledGpu, ...]
    """GPUs of the machine that tasks can use."""
    chain: LedgerChain
    discovery: Sequence[DiscoveryClient]
    describe: Callable[[], Registration]
    """Function that returns the current description of the machine, for discovery."""
    clock: Clock
    task_user: int | None = None
    """User id of tasks in the process sandbox; None if tasks run as the worker's own user, and for Docker."""
    warnings: Sequence[str] = ()
    """Warnings that `muster worker status` shows from the start."""
    deliver: type[PoolDelivery] = PoolDelivery
    """Class that delivers files to the pool."""
    transport: httpx.AsyncBaseTransport | None = None
    """HTTP transport to the orchestrator and the discovery services that it names, for tests that run them in the same
    process."""
