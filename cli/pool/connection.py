"""Opens a client of the pool's orchestrator for a command: its location and the credentials."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from cli.configuration import Configuration
from cli.keys import open_key
from protocol.clients import OrchestratorClient
from protocol.errors import InvalidInput, NotFound
from protocol.http.client import Unreachable
from protocol.http.location import ServiceLocation
from protocol.identifiers import Address
from protocol.wire.pool import NodeView
from protocol.wire.tasks import Task

TOKEN_VARIABLE = "MUSTER_POOL_TOKEN"  # noqa: S105 - the variable's name
MOST_TOKEN_BYTES = 4096

Where = Annotated[
    str | None,
    typer.Option("--orchestrator", help="URL of the pool's orchestrator; default from the configuration."),
]
Manager = Annotated[
    str | None,
    typer.Option("--manager", help="Sign as the pool's manager with this key, instead of sending a token."),
]


@asynccontextmanager
async def open_orchestrator(
    configuration: Configuration, *, where: str | None = None, manager: str | None = None
) -> AsyncIterator[OrchestratorClient]:
    """Returns a client with the owner's token (`MUSTER_POOL_TOKEN`, else the configured file) or the manager's key.

    Raises:
        InvalidInput: No orchestrator is configured, or neither a token nor a key.
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
    """Returns the task with this id, prefix of an id, or name.

    Of several tasks with the same name, returns the newest.

    Raises:
        NotFound: No task has this id, prefix or name.
        InvalidInput: Several ids have this prefix.
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
        raise InvalidInput(f"{len(begun)} tasks begin with {text}", hint="give more digits of the id")
    if not begun:
        raise NotFound(f"there is no task {text}", hint="`muster pool tasks` lists them")
    return begun[0]


async def working_nodes(client: OrchestratorClient, task: Task | None) -> list[NodeView]:
    """Returns the nodes that run the task, else those that ran it last; for None, the nodes that run any task."""
    nodes = [node async for node in client.nodes() if node.assignment is not None]
    if task is None:
        return [node for node in nodes if node.assignment and node.assignment.ended_at_ms is None]
    had = [node for node in nodes if node.assignment and node.assignment.task_id == task.id]
    return [node for node in had if node.assignment and node.assignment.ended_at_ms is None] or had


def short(node: Address) -> str:
    """Returns a shortened address."""
    return f"{node[:6]}…{node[-4:]}"


def location_of(configuration: Configuration, where: str | None) -> ServiceLocation:
    """Returns the orchestrator's location from the option, else from the configuration.

    Raises:
        InvalidInput: Neither the option nor the configuration names an orchestrator, or the URL is invalid.
    """
    location = where or configuration.pool.orchestrator
    if location is None:
        raise InvalidInput(
            "no orchestrator is configured",
            hint="give --orchestrator URL, or set orchestrator under [pool] in muster.toml",
        )
    return ServiceLocation.parse(location)


def token_place(configuration: Configuration) -> str | None:
    """Returns where the owner's token is configured, in plain words; None if it is not configured."""
    if os.environ.get(TOKEN_VARIABLE, "").strip():
        return f"in the variable {TOKEN_VARIABLE}"
    return None if configuration.pool.token_file is None else f"in the file {configuration.pool.token_file}"


def token_of(configuration: Configuration) -> str:
    """Returns the owner's token.

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
