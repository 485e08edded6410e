"""Opens a client of the pool's orchestrator with the configured URL and credentials."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cli.configuration.sections import Configuration
from cli.connection import location_of
from cli.keys import open_key
from protocol.clients import OrchestratorClient
from protocol.errors import InvalidInput, NotFound
from protocol.http.client import Unreachable
from protocol.identifiers import Address

if TYPE_CHECKING:
    from protocol.wire.pool import NodeView
    from protocol.wire.tasks import Task

TOKEN_VARIABLE = "MUSTER_POOL_TOKEN"  # noqa: S105 - the name of an environment variable, not a token
MOST_TOKEN_BYTES = 4096

Where = Annotated[
    str | None,
    typer.Option("--orchestrator", help="URL of the pool's orchestrator; default: the configured one."),
]
Manager = Annotated[
    str | None,
    typer.Option("--manager", help="Sign as the pool's manager with this key, instead of sending a token."),
]


@asynccontextmanager
async def open_orchestrator(
    configuration: Configuration, *, where: str | None = None, manager: str | None = None
) -> AsyncIterator[OrchestratorClient]:
    """Yields a client that sends the owner's token or signs with the manager's key.

    The client signs if `manager` names a key. Otherwise the token comes from `MUSTER_POOL_TOKEN` or from the configured
    file.

    Raises:
        InvalidInput: No orchestrator is configured, or there is neither a token nor a key.
    """
    location = location_of(configuration, where)
    key = open_key(configuration, manager) if manager is not None else None
    token = None if key is not None else token_of(configuration)
    async with OrchestratorClient(location, key=key, token=token) as client:
        try:
            yield client
        except Unreachable as error:
            if configuration.path is not None and configuration.path.parent.name == ".devnet":
                error.hint = "if this devnet has ended, `make devnet ARGS=--keep` starts it again with its data"
            raise


async def find_task(client: OrchestratorClient, text: str) -> Task:
    """Returns the task that has the id or name `text`, or an id that begins with `text`.

    If several tasks have this name, returns the newest one.

    Raises:
        NotFound: There is no such task.
        InvalidInput: Several ids begin with `text`.
    """
    named: list[Task] = []
    begun: list[Task] = []
    async for task in client.tasks():
        if task.id == text:
            return task
        if task.spec.name == text:
            named.append(task)
        elif len(text) >= 4 and task.id.startswith(text):
            begun.append(task)
    if named:
        return named[-1]
    if len(begun) > 1:
        raise InvalidInput(f"the ids of {len(begun)} tasks begin with {text}", hint="give more digits of the id")
    if not begun:
        raise NotFound(f"there is no task {text}", hint="`muster pool tasks` lists the tasks")
    return begun[0]


async def working_nodes(client: OrchestratorClient, task: Task | None) -> list[NodeView]:
    """Returns the nodes that run the task.

    If no node runs the task, returns the nodes whose last task it was. If `task` is None, returns all nodes that run
    any task.
    """
    nodes = [node async for node in client.nodes() if node.assignment is not None]
    if task is None:
        return [node for node in nodes if node.assignment and node.assignment.ended_at_ms is None]
    had = [node for node in nodes if node.assignment and node.assignment.task_id == task.id]
    return [node for node in had if node.assignment and node.assignment.ended_at_ms is None] or had


def short(node: Address) -> str:
    """Returns a shortened address, such as `0x12ab…34cd`."""
    return f"{node[:6]}…{node[-4:]}"


def token_place(configuration: Configuration) -> str | None:
    """Describes the place where the owner's token is configured; None if no token is configured."""
    if os.environ.get(TOKEN_VARIABLE, "").strip():
        return f"in the variable {TOKEN_VARIABLE}"
    return None if configuration.pool.token_file is None else f"in the file {configuration.pool.token_file}"


def token_of(configuration: Configuration) -> str:
    """Returns the owner's token from `MUSTER_POOL_TOKEN` or the configured file.

    Raises:
        InvalidInput: No token is configured.
        NotFound: The token's file can't be read.
    """
    if token := os.environ.get(TOKEN_VARIABLE, "").strip():
        return token
    path = configuration.pool.token_file
    if path is None:
        raise InvalidInput(
            "no token for the orchestrator",
            hint=f"set {TOKEN_VARIABLE}, or token_file under [pool] in muster.toml, or sign with --manager KEY",
        )
    try:
        with path.open() as file:
            return file.read(MOST_TOKEN_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"can't read the token file {path}", hint="check token_file under [pool]") from error
