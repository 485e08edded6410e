"""What a worker is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from protocol.clients import DiscoveryClient
from protocol.clock import Clock
from protocol.keys import Key
from protocol.wire.nodes import Registration
from worker.chain import Chain
from worker.delivery import PoolDelivery
from worker.launch import InstalledGpu
from worker.runtime.interface import Runtime
from worker.settings import WorkerSettings
from worker.state import StateDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a daemon needs; `app.build_worker` makes the real ones."""

    settings: WorkerSettings
    key: Key
    state: StateDirectory
    runtime: Runtime
    gpus: tuple[InstalledGpu, ...]
    chain: Chain
    discovery: Sequence[DiscoveryClient]
    describe: Callable[[], Registration]
    clock: Clock
    task_user: int | None = None
    warnings: Sequence[str] = ()
    deliver: type[PoolDelivery] = PoolDelivery
    """What carries files to the pool."""
    transport: httpx.AsyncBaseTransport | None = None
    """Of the orchestrator, in tests that serve it in the same process."""
