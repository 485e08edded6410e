"""Tasks that a devnet's nodes run: `rollouts` generates for the run, `hello` prints numbers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from cli.devnet.containers import engine_answers
from cli.devnet.directory import DevnetDirectory
from cli.devnet.image import ROLLOUTS_TAG, TAG
from cli.devnet.options import RunScale
from cli.devnet.settings import ROOT, ServicePlaces
from cli.devnet.supervisor import ProcessFailed
from cli.output.quantities import counted
from cli.pool.nodes import failure_of
from protocol.clients import OrchestratorClient
from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import Address
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.logs import printable
from protocol.wire.assignments import AssignmentState
from protocol.wire.nodes import RuntimeKind
from protocol.wire.pool import NodeView
from protocol.wire.tasks import MEBIBYTE, NetworkMode, NewTask, Resources, RestartKind, RestartRule, TaskSpec
from rollouts.precision import EngineName

HELLO = "hello"
ROLLOUTS = "rollouts"
VLLM_PYTHON = ROOT / ".tools" / "vllm" / "bin" / "python"

_HELLO_TIMEOUT = timedelta(seconds=60)
_POLL = timedelta(milliseconds=300)

_HELLO_PROGRAM = """
import json, os, socket, time

def report(path, value):
    body = json.dumps(value).encode()
    bridge = socket.socket(socket.AF_UNIX)
    bridge.connect(os.environ["MUSTER_BRIDGE_SOCKET"])
    token = os.environ["MUSTER_BRIDGE_TOKEN"]
    head = f"POST {path} HTTP/1.1\\r\\nHost: bridge\\r\\nAuthorization: Bearer {token}\\r\\n"
    head += f"Content-Type: application/json\\r\\nContent-Length: {len(body)}\\r\\nConnection: close\\r\\n\\r\\n"
    bridge.sendall(head.encode() + body)
    bridge.recv(4096)
    bridge.close()

print("hello from", os.environ["MUSTER_NODE_ADDRESS"], "in", os.environ["MUSTER_TASK_NAME"], flush=True)
for count in range(10**9):
    print("count", count, flush=True)
    report("/v1/metrics", {"metrics": {"count": count}})
    time.sleep(1)
"""


async def choose_runtime(requested: RuntimeKind | None) -> RuntimeKind:
    """Returns the requested runtime.

    The default is Docker if an engine responds, else the process sandbox.
    """
    return requested or (RuntimeKind.DOCKER if await asyncio.to_thread(engine_answers) else RuntimeKind.PROCESS)


def check_engine(engine: EngineName, runtime: RuntimeKind) -> None:
    """Checks that tasks can generate with this engine on this machine.

    Raises:
        InvalidInput: The runtime's image or this machine does not contain the engine.
    """
    if engine is not EngineName.VLLM:
        return
    if runtime is RuntimeKind.DOCKER:
        raise InvalidInput(
            "the devnet's own image has no vLLM", hint="take --runtime process with --engine vllm, or --engine torch"
        )
    if not VLLM_PYTHON.exists():
        raise InvalidInput(f"there is no vLLM in {VLLM_PYTHON.parents[1]}", hint="`make tools` installs it")


def hello_task() -> TaskSpec:
    """Returns the task that prints the node's address and then a rising number every second."""
    return TaskSpec(
        name=HELLO,
        image=TAG,
        command=("python3", "-c", _HELLO_PROGRAM),
        resources=Resources(cpus=0.25, memory_bytes=128 * MEBIBYTE),
        network=NetworkMode.NONE,
        restart=RestartRule(kind=RestartKind.ALWAYS),
        stop_grace_seconds=1,
    )


def rollouts_task(
    runtime: RuntimeKind, engine: EngineName, scale: RunScale = RunScale(), *, serves: bool = False
) -> TaskSpec:
    """Returns the task that generates rollouts for the run, or answers the gateway's clients (`serves`)."""
    python = "python3"
    if runtime is RuntimeKind.PROCESS:
        python = str(VLLM_PYTHON if engine is EngineName.VLLM else Path(sys.executable))
    return TaskSpec(
        name=ROLLOUTS,
        image=ROLLOUTS_TAG,
        command=(
            python,
            *("-m", "rollouts", "--engine", engine.value, "--dtype", "float32", "--device", "cpu", "--threads", "1"),
            *("--groups", str(scale.groups_per_slot)),
            *(("--keep-versions", "1") if scale.share_versions else ()),
            *(("--serve",) if serves else ()),
        ),
        environment={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} if runtime is RuntimeKind.PROCESS else {},
        resources=Resources(cpus=1.0, memory_bytes=scale.task_memory),
        network=NetworkMode.HOST,
        restart=RestartRule(kind=RestartKind.ALWAYS),
        stop_grace_seconds=5,
    )


def open_orchestrator(directory: DevnetDirectory, places: ServicePlaces) -> OrchestratorClient:
    """Returns a client of the orchestrator that uses the pool owner's token."""
    return OrchestratorClient(places.orchestrator, token=directory.owner_token.read_text().strip())


async def post_task(directory: DevnetDirectory, places: ServicePlaces, spec: TaskSpec) -> None:
    """Posts a task for every node, unless a task of the same name exists already."""
    async with open_orchestrator(directory, places) as client:
        if not [task async for task in client.tasks() if task.spec.name == spec.name]:
            await client.create_task(NewTask(spec=spec))


class FailureWatch:
    """Reports failures of a task on the devnet's nodes as soon as the orchestrator lists them.

    Args:
        task: Name of the task.
        on_event: Called with each node's first failure; the task may still recover.
    """

    def __init__(self, task: str, on_event: Callable[[str], None]) -> None:
        self._task = task
        self._on_event = on_event
        self._reported: set[Address] = set()

    def check(self, nodes: Iterable[NodeView]) -> None:
        """Checks the states that the orchestrator lists for these nodes.

        Raises:
            ProcessFailed: A node has given the task up; the message quotes the last lines of the task's output.
        """
        for node in nodes:
            assignment, failure = node.assignment, printable(failure_of(node))
            if assignment is None or assignment.task_name != self._task or not failure:
                continue
            if assignment.state is AssignmentState.FAILED:
                raise ProcessFailed(
                    f"{node.address} has given up its task: {failure}",
                    hint="`muster pool logs` shows the whole output of the task",
                )
            if node.address not in self._reported and assignment.exit_code != 0:
                self._reported.add(node.address)
                self._on_event(f"{node.address}: {failure}")


async def await_hello(
    directory: DevnetDirectory,
    places: ServicePlaces,
    *,
    nodes: int,
    on_event: Callable[[str], None],
) -> None:
    """Returns when the task `hello` runs on this many nodes.

    Raises:
        ProcessFailed: The task does not run on this many nodes within a minute, or a node has given the task up; the
            message has the states of the nodes.
    """
    clock, failures = SystemClock(), FailureWatch(HELLO, on_event)
    deadline = clock.monotonic() + _HELLO_TIMEOUT.total_seconds()
    async with open_orchestrator(directory, places) as client:
        while True:
            tasks = [task async for task in client.tasks() if task.spec.name == HELLO]
            if tasks and tasks[0].assignments.get(AssignmentState.RUNNING, 0) >= nodes:
                return
            known = [node async for node in client.nodes()]
            failures.check(known)
            if clock.monotonic() > deadline:
                raise ProcessFailed(
                    f"the task does not run on {counted(nodes, 'node')}: {_states(known) or 'no node is known'}",
                    hint=f"the workers' logs are in {directory.path / 'logs'}",
                )
            await clock.sleep(_POLL)


async def await_first_rollouts(
    directory: DevnetDirectory,
    places: ServicePlaces,
    *,
    nodes: Collection[Address],
    on_event: Callable[[str], None],
    within: timedelta = RunScale().first_rollouts,
    clock: Clock | None = None,
) -> None:
    """Returns when each of these nodes has submitted work.

    Args:
        directory: Folder of the devnet.
        places: Addresses of the devnet's services.
        nodes: Nodes to wait for.
        on_event: Called with the task's first failure on each of these nodes.
        within: Longest wait for the first file of a further node. The default is long, because a busy machine takes
            minutes to start ten processes that import torch.
        clock: Source of time.

    Raises:
        ProcessFailed: A node has given its task up, or no further node submitted work in time; the message has the
            states of the nodes.
    """
    clock, failures = clock or SystemClock(), FailureWatch(ROLLOUTS, on_event)
    missing, since = set(nodes), clock.monotonic()
    async with open_orchestrator(directory, places) as client:
        while missing:
            with suppress(MusterError):
                arrived = missing & {item.node async for item in client.rollouts(status="all")}
                if arrived:
                    missing, since = missing - arrived, clock.monotonic()
                    continue
            known = await _known(client, missing)
            failures.check(known)
            if clock.monotonic() > since + within.total_seconds():
                raise ProcessFailed(
                    f"{counted(len(missing), 'honest node')} without submitted work: "
                    f"{_states(known) or 'the pool does not know them'}",
                    hint=f"logs are in {directory.path / 'logs'}; `muster pool logs` shows the output of tasks",
                )
            await clock.sleep(_POLL)


async def _known(client: OrchestratorClient, nodes: Collection[Address]) -> list[NodeView]:
    """Returns the pool's view of these nodes; empty while the orchestrator does not answer."""
    with suppress(MusterError):
        return [node async for node in client.nodes() if node.address in nodes]
    return []


def _states(nodes: Iterable[NodeView]) -> str:
    return "; ".join(f"{node.address} is {node.state.value} ({node.reason})" for node in nodes)
