"""`muster pool run`, `tasks`, `task` and `groups`: post and show tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.output.listing import listing
from cli.output.printing import JsonOption, note, say, show_fields, show_json, show_table
from cli.output.quantities import moment, parse_size
from cli.output.tables import Column, Columns
from cli.output.values import Ago
from cli.pool.connection import Manager, Where, find_task, open_orchestrator, short
from cli.pool.filters import NewestOption, SinceOption, UntilOption, parsed_moment
from cli.pool.task_files import build_task, pairs, read_task_file, secrets_from_environment
from protocol.errors import InvalidInput
from protocol.wire.tasks import DesiredState, NetworkMode, RestartKind, Task, TaskState

TaskName = Annotated[str, typer.Argument(help="The task's id, a prefix of it, or its name.")]
EVERY_NODE: Literal["every-node"] = "every-node"
TASKS = Columns.of(
    Column("id", least=8),
    Column("name", least=8),
    "state",
    Column("nodes", least=12),
    Column("image", drop=3, least=12),
    Column("posted", drop=2),
    Column("why", drop=1, least=12),
)
GROUPS = Columns.of(Column("id", least=8), Column("task", least=8), "size", Column("members", least=20))


@listing(watch=True)
async def tasks(
    context: typer.Context,
    *,
    running: Annotated[bool, typer.Option("--running", help="Only tasks that have not been stopped.")] = False,
    state: Annotated[list[TaskState] | None, typer.Option(help="Only tasks in this state; may be repeated.")] = None,
    name: Annotated[str | None, typer.Option(help="Only tasks with this name.")] = None,
    label: Annotated[str | None, typer.Option(help="Only tasks for nodes with this label, as name=value.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    newest: NewestOption = False,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """List the pool's tasks."""
    times = {"since": parsed_moment(since), "until": parsed_moment(until)}
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        listed = client.tasks(states=state or (), name=name, label=label, newest_first=newest, **times)
        found = [task async for task in listed if not running or task.desired_state is DesiredState.RUNNING]
    if as_json:
        show_json(found)
        return
    show_table(
        TASKS,
        [_row(task) for task in found],
        empty="no such task" if state or name or label or since or until else "no task was posted yet",
    )


@listing(watch=True)
async def task(
    context: typer.Context, name: TaskName, where: Where = None, manager: Manager = None, as_json: JsonOption = False
) -> None:
    """Show one task."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        found = await find_task(client, name)
    if as_json:
        show_json(found)
    else:
        show_fields(_fields(found))


async def run(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE] [-- COMMAND...]", help="A task's file (not with --image), and the task's command."
        ),
    ] = None,
    *,
    image: Annotated[str | None, typer.Option(help="Container image; with this option, no file is read.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the task; default: from the image's name.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="Environment variable NAME=VALUE; may be repeated.")] = None,
    secret: Annotated[
        list[str] | None, typer.Option(help="NAME of an environment variable with a secret; repeatable.")
    ] = None,
    registry_user: Annotated[
        str | None,
        typer.Option(help="User name for a private image; the password is read from MUSTER_REGISTRY_PASSWORD."),
    ] = None,
    replicas: Annotated[str | None, typer.Option(help="Number of nodes (or of groups), or every-node.")] = None,
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes in a group, which start together.")
    ] = None,
    priority: Annotated[int | None, typer.Option(min=-100, max=100)] = None,
    cpus: Annotated[float | None, typer.Option(help="CPU cores.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory, for example 2GiB.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs of one node.")] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="Memory of each GPU, for example 24GiB.")] = None,
    gpu_model: Annotated[list[str] | None, typer.Option(help="Accepted GPU model; may be repeated.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="Only nodes with this label, NAME=VALUE; repeatable.")] = None,
    restart: Annotated[RestartKind | None, typer.Option(help="When a container is restarted.")] = None,
    network: Annotated[NetworkMode | None, typer.Option(help="Network access of the container.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Path in the container at which the task's own volume appears.")
    ] = None,
    shared: Annotated[
        list[str] | None, typer.Option(help="Path in the container at which the shared volume appears.")
    ] = None,
    writable_root: Annotated[bool, typer.Option("--writable-root", help="Let the container write anywhere.")] = False,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Post a task from a TOML or JSON file, from options, or from both; options override the file.

    muster pool run task.toml · muster pool run --image busybox --replicas 2 -- sh -c 'echo $MUSTER_NODE_ADDRESS'
    """
    rest = list(words or [])
    fields = {} if image is not None else _from_file(rest)
    said: dict[str, Any] = {
        "image": image,
        "name": name,
        "command": rest or None,
        "replicas": read_replicas(replicas),
        "group_size": group_size,
        "priority": priority,
        "restart": None if restart is None else {**fields.get("restart", {}), "kind": restart},
        "network": network,
        "read_only_root": False if writable_root else None,
        "resources": _over(fields, "resources", cpus=cpus, memory_bytes=_size(memory)),
        "gpus": _over(fields, "gpus", count=gpus, memory_bytes=_size(gpu_memory), models=gpu_model),
        "environment": _more(fields, "environment", pairs(env or [], what="--env")),
        "selector": _over(fields, "selector", labels=pairs(label or [], what="--label") or None),
        "volumes": [*fields.get("volumes", ()), *_volumes(data, shared=False), *_volumes(shared, shared=True)],
        "secrets": _more(fields, "secrets", secrets_from_environment(secret or [])),
        "registry": registry_from_environment(registry_user) or fields.get("registry"),
    }
    fields |= {key: value for key, value in said.items() if value is not None}
    fields.setdefault("name", _name_of(str(fields.get("image", ""))))
    new = build_task(fields)
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        made = await client.create_task(new)
    if as_json:
        show_json(made)
        return
    say(made.id)
    note(f"{made.spec.name} is {made.state.value}; `muster pool logs --follow --task {made.id[:8]}` shows its output")


@listing(watch=True)
async def groups(
    context: typer.Context, where: Where = None, manager: Manager = None, as_json: JsonOption = False
) -> None:
    """List groups. A group consists of nodes that run one task together."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        found = await client.groups()
    if as_json:
        show_json(found)
        return
    rows = [
        (
            group.id,
            group.task_id,
            f"{len(group.members)} of {group.size}",
            [f"{member.rank}: {short(member.node)} ({member.state.value})" for member in group.members],
        )
        for group in found
    ]
    show_table(GROUPS, rows, empty="no task needs groups now")


def _from_file(words: list[str]) -> dict[str, Any]:
    if not words:
        raise InvalidInput("no task is given", hint="give a task's file, or --image IMAGE and a command")
    return read_task_file(Path(words.pop(0)))


def read_replicas(text: str | None) -> int | Literal["every-node"] | None:
    """Parses a number of replicas, or `every-node`.

    Raises:
        InvalidInput: The text is neither a number nor `every-node`.
    """
    if text is None:
        return None
    if text == EVERY_NODE:
        return EVERY_NODE
    if not text.isascii() or not text.isdigit():
        raise InvalidInput(f"--replicas {text[:20]!r} is neither a number nor {EVERY_NODE}")
    return int(text)


def _size(text: str | None) -> int | None:
    return None if text is None else parse_size(text)


def _over(fields: dict[str, Any], table: str, **said: object) -> dict[str, Any] | None:
    """Returns a table of the task file, in which the options that are not None replace values."""
    merged = {**fields.get(table, {}), **{key: value for key, value in said.items() if value is not None}}
    return merged or None


def _more(fields: dict[str, Any], table: str, said: dict[str, str]) -> dict[str, Any] | None:
    return {**fields.get(table, {}), **said} or None


def _volumes(paths: list[str] | None, *, shared: bool) -> list[dict[str, Any]]:
    return [{"target": path, "shared": shared} for path in paths or []]


def registry_from_environment(user: str | None) -> dict[str, str] | None:
    """Returns a registry's credentials, with the password from `MUSTER_REGISTRY_PASSWORD`; None without a user."""
    if user is None:
        return None
    password = secrets_from_environment(["MUSTER_REGISTRY_PASSWORD"])["MUSTER_REGISTRY_PASSWORD"]
    return {"username": user, "password": password}


def _name_of(image: str) -> str:
    """Returns a task's name from its image: the last part of the repository."""
    last = image.partition("@")[0].rsplit("/", 1)[-1].partition(":")[0].lower()
    return last.strip("._-")[:63] or "task"


def _counts(task: Task) -> str | None:
    return ", ".join(f"{count} {state.value}" for state, count in task.assignments.items() if count) or None


def _row(task: Task) -> tuple[object, ...]:
    state = task.state.value if task.desired_state is DesiredState.RUNNING else f"{task.state.value} (stopped)"
    if task.state.value == "stopped":
        state = "stopped"
    return (
        task.id,
        task.spec.name,
        state,
        _counts(task),
        task.spec.image,
        Ago(task.created_at_ms),
        task.reason or None,
    )


def _fields(task: Task) -> dict[str, object]:
    spec = task.spec
    return {
        "id": task.id,
        "name": spec.name,
        "state": task.state,
        "why": task.reason or None,
        "wanted": task.desired_state,
        "nodes": _counts(task),
        "image": spec.image,
        "command": " ".join(spec.command) or None,
        "replicas": spec.replicas,
        "group_size": spec.group_size,
        "priority": spec.priority,
        "generation": task.generation,
        "posted": moment(task.created_at_ms),
        "secrets": list(task.secret_names),
    }
