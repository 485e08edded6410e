"""A worker that runs an attack as its rollout task: the real daemon of a dishonest owner.

A contributor owns the machine, so the worker can't prevent them from running another program instead of the task.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from cli.devnet.attacks.attack import Attack
from protocol.identifiers import Address
from worker.app import run_worker
from worker.runtime.interface import ContainerSpec, Runtime
from worker.runtime.process import ProcessRuntime
from worker.settings import WorkerSettings
from worker.state import StateDirectory

ROOT = Path(__file__).resolve().parents[3]
_HONEST = ("-m", "rollouts")


class CheatingRuntime(ProcessRuntime):
    """Starts the attack in place of the honest rollout task; leaves other tasks unchanged.

    Args:
        cheat: Attack that the task runs.
        node: Address of the node.
        settings: Settings of the worker.
        state: The worker's own directory.
    """

    def __init__(self, cheat: Attack, *, node: Address, settings: WorkerSettings, state: StateDirectory) -> None:
        super().__init__(
            node,
            directory=state.processes,
            readable=(*settings.readable, ROOT),
            niceness=settings.task_niceness,
            allow_host_network=settings.allow_host_network,
        )
        self._cheat = cheat

    async def start(self, spec: ContainerSpec) -> None:
        """Starts the task, with its command changed."""
        await super().start(with_attack(spec, self._cheat))


def with_attack(spec: ContainerSpec, cheat: Attack) -> ContainerSpec:
    """Returns the container with the attack's program in place of the honest one.

    Other containers stay unchanged.
    """
    _, *rest = spec.command or ("",)
    if tuple(rest[:2]) != _HONEST:
        return spec
    command = (sys.executable, "-m", "cli.devnet.attacks.task", cheat.name, *rest[2:])
    environment = {"OMP_NUM_THREADS": "1", **spec.environment, "PYTHONPATH": str(ROOT)}
    return replace(spec, entrypoint=None, command=command, environment=environment)


async def run_cheat(cheat: Attack, settings: WorkerSettings) -> None:
    """Runs the worker until SIGTERM or SIGINT.

    Raises:
        MusterError: The worker can't start or go on; the same cases as for an honest worker.
    """

    async def choose(told: WorkerSettings, node: Address, state: StateDirectory) -> Runtime:
        runtime = CheatingRuntime(cheat, node=node, settings=told, state=state)
        await runtime.check()
        return runtime

    await run_worker(settings, choose=choose, deliver=cheat.delivery)
