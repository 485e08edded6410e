"""The devnet's run: the task that generates for it, and how one sees that it has begun."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from cli.devnet.directory import DevnetDirectory
from cli.devnet.image import ROLLOUTS_TAG
from cli.devnet.services import GROUPS_PER_SLOT, ROOT, ServicePlaces
from cli.devnet.supervisor import ProcessFailed
from cli.devnet.task import FailureWatch, open_orchestrator, post_task
from protocol.clients import OrchestratorClient
from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import Address
from protocol.runtime.clock import Clock, SystemClock
from protocol.wire.nodes import RuntimeKind
from protocol.wire.pool import NodeView
from protocol.wire.tasks import MEBIBYTE, NetworkMode, Resources, RestartKind, RestartRule, TaskSpec
from rollouts.precision import EngineName

NAME = "rollouts"
VLLM_PYTHON = ROOT / ".tools" / "vllm" / "bin" / "python"
_PATIENCE = timedelta(minutes=5)
"""A busy machine takes minutes to start ten processes that bring torch."""
_LOOK_AGAIN = timedelta(milliseconds=300)


def check_engine(engine: EngineName, runtime: RuntimeKind) -> None:
    """Makes sure that tasks can generate with this engine here.

    Raises:
        InvalidInput: They can't.
    """
    if engine is not EngineName.VLLM:
        return
    if runtime is RuntimeKind.DOCKER:
        raise InvalidInput(
            "the devnet's own image has no vLLM", hint="take --runtime process with --engine vllm, or --engine torch"
        )
    if not VLLM_PYTHON.exists():
        raise InvalidInput(f"there is no vLLM in {VLLM_PYTHON.parents[1]}", hint="`make tools` installs it")


async def post_rollouts_task(
    directory: DevnetDirectory,
    places: ServicePlaces,
    runtime: RuntimeKind,
    engine: EngineName,
    say: Callable[[str], None],
) -> None:
    """Posts the task; does nothing if it is there already."""
    spec = TaskSpec(
        name=NAME,
        image=ROLLOUTS_TAG,
        command=(
            str(_python(engine)) if runtime is RuntimeKind.PROCESS else "python3",
            *("-m", "rollouts", "--engine", engine.value, "--dtype", "float32", "--device", "cpu", "--threads", "1"),
            *("--groups", str(GROUPS_PER_SLOT)),
        ),
        environment={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} if runtime is RuntimeKind.PROCESS else {},
        resources=Resources(cpus=1.0, memory_bytes=2048 * MEBIBYTE),
        network=NetworkMode.HOST,
        restart=RestartRule(kind=RestartKind.ALWAYS),
        stop_grace_seconds=5,
    )
    await post_task(directory, places, spec, runtime, say)


def _python(engine: EngineName) -> Path:
    return VLLM_PYTHON if engine is EngineName.VLLM else Path(sys.executable)


async def await_first_rollouts(
    directory: DevnetDirectory,
    places: ServicePlaces,
    *,
    nodes: Collection[Address],
    say: Callable[[str], None],
    clock: Clock | None = None,
) -> None:
    """Returns when each of these nodes has work on the ledger.

    Args:
        directory: The devnet's.
        places: Where its services are.
        nodes: Those that are waited for.
        say: Told the first failure of the task on each of them.
        clock: Whose time is waited.

    Raises:
        ProcessFailed: One of them has given its task up, or for five minutes no further one had work; says where the
            nodes are instead.
    """
    clock, failures = clock or SystemClock(), FailureWatch(NAME, say)
    missing, since = set(nodes), clock.monotonic()
    async with open_orchestrator(directory, places) as client:
        while missing:
            with suppress(MusterError):
                come = missing & {item.node async for item in client.rollouts(status="all")}
                if come:
                    missing, since = missing - come, clock.monotonic()
                    continue
            failures.look(await _known(client, missing))
            if clock.monotonic() > since + _PATIENCE.total_seconds():
                raise await _no_work(directory, client, missing)
            await clock.sleep(_LOOK_AGAIN)


async def _no_work(
    directory: DevnetDirectory, client: OrchestratorClient, missing: Collection[Address]
) -> ProcessFailed:
    states = [f"{node.address} is {node.state.value} ({node.reason})" for node in await _known(client, missing)]
    return ProcessFailed(
        f"{len(missing)} honest nodes have handed in no work: {'; '.join(states) or 'the pool does not know them'}",
        hint=f"logs are in {directory.path / 'logs'}; `muster pool logs` shows what tasks say",
    )


async def _known(client: OrchestratorClient, nodes: Collection[Address]) -> list[NodeView]:
    """Returns the pool's view of these nodes; empty while the orchestrator does not answer."""
    with suppress(MusterError):
        return [node async for node in client.nodes() if node.address in nodes]
    return []
