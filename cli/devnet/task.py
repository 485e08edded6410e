"""The devnet's first task: it says who it is and counts, on every node, in a container where there is an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from cli.devnet.containers import engine_answers
from cli.devnet.directory import DevnetDirectory
from cli.devnet.image import TAG
from cli.devnet.services import ServicePlaces
from cli.devnet.supervisor import ProcessFailed
from protocol.clients import OrchestratorClient
from protocol.clock import Clock, SystemClock
from protocol.wire.nodes import RuntimeKind
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
    """What was asked for; else Docker if an engine answers."""
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


async def await_first_task(
    directory: DevnetDirectory, places: ServicePlaces, *, nodes: int, clock: Clock | None = None
) -> None:
    """Returns when the task runs on so many nodes.

    Raises:
        ProcessFailed: It does not within a minute; says where the nodes are instead.
    """
    clock = clock or SystemClock()
    until = clock.monotonic() + _PATIENCE.total_seconds()
    async with open_orchestrator(directory, places) as client:
        while True:
            tasks = [task async for task in client.tasks() if task.spec.name == NAME]
            if tasks and tasks[0].assignments.get(AssignmentState.RUNNING, 0) >= nodes:
                return
            if clock.monotonic() > until:
                states = [f"{node.address} is {node.state.value} ({node.reason})" async for node in client.nodes()]
                raise ProcessFailed(
                    f"the task does not run on {nodes} nodes: {'; '.join(states) or 'no node is known'}",
                    hint=f"the workers' logs are in {directory.path / 'logs'}",
                )
            await clock.sleep(timedelta(milliseconds=200))


def open_orchestrator(directory: DevnetDirectory, places: ServicePlaces) -> OrchestratorClient:
    """A client with the owner's token."""
    return OrchestratorClient(places.orchestrator, token=directory.owner_token.read_text().strip())
