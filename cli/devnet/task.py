"""The devnet's first task: it says who it is and counts, on every node, in a container where there is an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta

from cli.devnet.containers import engine_answers
from cli.devnet.directory import DevnetDirectory
from cli.devnet.image import TAG
from cli.devnet.services import ServicePlaces
from cli.devnet.supervisor import ProcessFailed
from cli.output import printable
from cli.pool.nodes import failure_of
from protocol.clients import OrchestratorClient
from protocol.identifiers import Address
from protocol.runtime.clock import Clock, SystemClock
from protocol.wire.nodes import RuntimeKind
from protocol.wire.pool import NodeView
from protocol.wire.tasks import (
    MEBIBYTE,
    AssignmentState,
    NetworkMode,
    NewTask,
    Resources,
    RestartKind,
    RestartRule,
    TaskSpec,
)

NAME = "hello"
_PATIENCE = timedelta(seconds=60)

PROGRAM = """
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


async def choose_runtime(asked: RuntimeKind | None) -> RuntimeKind:
    """Returns the requested runtime; by default Docker if an engine responds."""
    return asked or (RuntimeKind.DOCKER if await asyncio.to_thread(engine_answers) else RuntimeKind.PROCESS)


async def post_first_task(
    directory: DevnetDirectory, places: ServicePlaces, runtime: RuntimeKind, say: Callable[[str], None]
) -> None:
    """Posts the task; does nothing if it is there already."""
    spec = TaskSpec(
        name=NAME,
        image=TAG,
        command=("python3", "-c", PROGRAM),
        resources=Resources(cpus=0.25, memory_bytes=128 * MEBIBYTE),
        network=NetworkMode.NONE,
        restart=RestartRule(kind=RestartKind.ALWAYS),
        stop_grace_seconds=1,
    )
    await post_task(directory, places, spec, runtime, say)


async def post_task(
    directory: DevnetDirectory, places: ServicePlaces, spec: TaskSpec, runtime: RuntimeKind, say: Callable[[str], None]
) -> None:
    """Posts a task for every node, unless one of its name is there already."""
    async with open_orchestrator(directory, places) as client:
        if not [task async for task in client.tasks() if task.spec.name == spec.name]:
            await client.create_task(NewTask(spec=spec))
    say(f"the task {spec.name} is posted; {runtime.value} runs it")


class FailureWatch:
    """Tells failures of a task on the devnet's nodes as soon as the pool has them.

    Args:
        name: Of the task.
        say: Told each node's first failure; the task may still recover.
    """

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name = name
        self._say = say
        self._told: set[Address] = set()

    def look(self, nodes: Iterable[NodeView]) -> None:
        """Looks at what nodes report.

        Raises:
            ProcessFailed: A node has given the task up; quotes the last lines of its output.
        """
        for node in nodes:
            held = node.assignment
            words = printable(failure_of(node))
            if held is None or held.task_name != self._name or not words:
                continue
            if held.state is AssignmentState.FAILED:
                raise ProcessFailed(
                    f"{node.address} has given up its task: {words}", hint="`muster pool logs` has all of its output"
                )
            if node.address not in self._told and held.exit_code != 0:
                self._told.add(node.address)
                self._say(f"{node.address}: {words}")


async def await_first_task(
    directory: DevnetDirectory,
    places: ServicePlaces,
    *,
    nodes: int,
    say: Callable[[str], None],
    clock: Clock | None = None,
) -> None:
    """Returns when the task runs on so many nodes.

    Raises:
        ProcessFailed: It does not within a minute, or a node has given it up; says where the nodes are instead.
    """
    clock, failures = clock or SystemClock(), FailureWatch(NAME, say)
    until = clock.monotonic() + _PATIENCE.total_seconds()
    async with open_orchestrator(directory, places) as client:
        while True:
            tasks = [task async for task in client.tasks() if task.spec.name == NAME]
            if tasks and tasks[0].assignments.get(AssignmentState.RUNNING, 0) >= nodes:
                return
            known = [node async for node in client.nodes()]
            failures.look(known)
            if clock.monotonic() > until:
                states = [f"{node.address} is {node.state.value} ({node.reason})" for node in known]
                raise ProcessFailed(
                    f"the task does not run on {nodes} nodes: {'; '.join(states) or 'no node is known'}",
                    hint=f"the workers' logs are in {directory.path / 'logs'}",
                )
            await clock.sleep(timedelta(milliseconds=200))


def open_orchestrator(directory: DevnetDirectory, places: ServicePlaces) -> OrchestratorClient:
    """A client with the owner's token."""
    return OrchestratorClient(places.orchestrator, token=directory.owner_token.read_text().strip())
