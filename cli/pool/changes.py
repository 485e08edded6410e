"""`muster pool stop`, `start`, `change` and `set-secrets`: changes of posted tasks."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from cli.output.printing import JsonOption, say, show_json, show_result
from cli.pool.connection import Manager, Where, find_task, open_orchestrator
from cli.pool.task_files import secrets_from_environment
from cli.pool.tasks import TaskName, read_replicas, registry_from_environment
from cli.transactions.changes import Change, DryRunOption, YesOption
from protocol.errors import InvalidInput
from protocol.wire.tasks import DesiredState, TaskPatch, TaskSecrets


async def stop(
    context: typer.Context,
    name: TaskName,
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the task as well.")] = False,
    where: Where = None,
    manager: Manager = None,
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stop a task on all its nodes."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        found = await find_task(client, name)
        called = f"{found.spec.name} ({found.id})"
        if delete:
            change = Change(
                as_json=as_json,
                question=f"stop and delete {called}? This can't be undone.",
                confirmed=confirmed,
                dry_run=dry_run,
            )
            change.plan_request(f"stop and delete {called}")
            await client.delete_task(found.id)
            text = f"{called} is deleted; its containers are stopped"
            show_result(text, {"id": found.id, "name": found.spec.name, "deleted": True}, as_json=as_json)
            return
        Change(as_json=as_json, dry_run=dry_run).plan_request(f"stop {called}")
        stopped = await client.change_task(found.id, TaskPatch(desired_state=DesiredState.STOPPED))
    if as_json:
        show_json(stopped)
    else:
        say(f"{stopped.spec.name} ({stopped.id}) is {stopped.state.value}")


async def start(
    context: typer.Context, name: TaskName, where: Where = None, manager: Manager = None, as_json: JsonOption = False
) -> None:
    """Run a stopped task again."""
    await _change(context, name, TaskPatch(desired_state=DesiredState.RUNNING), where, manager, as_json)


async def change(
    context: typer.Context,
    name: TaskName,
    *,
    replicas: Annotated[str | None, typer.Option(help="Number of nodes (or of groups), or every-node.")] = None,
    priority: Annotated[int | None, typer.Option(min=-100, max=100)] = None,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Change the priority of a task or the number of nodes that run it.

    Nodes that keep the task are not interrupted.
    """
    if replicas is None and priority is None:
        raise InvalidInput("no change is given", hint="give --replicas or --priority")
    await _change(
        context, name, TaskPatch(replicas=read_replicas(replicas), priority=priority), where, manager, as_json
    )


async def set_secrets(
    context: typer.Context,
    name: TaskName,
    *,
    secret: Annotated[
        list[str] | None, typer.Option(help="Environment variable whose value is a secret of the task; repeatable.")
    ] = None,
    registry_user: Annotated[
        str | None, typer.Option(help="User of the image's registry; password in MUSTER_REGISTRY_PASSWORD.")
    ] = None,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Replace all secrets of a task, or its registry credentials; its containers are replaced at once."""
    if not secret and registry_user is None:
        raise InvalidInput(
            "no secret is given", hint="give --secret NAME for each secret of the task, or --registry-user"
        )
    given = {
        "secrets": secrets_from_environment(secret) if secret else None,
        "registry": registry_from_environment(registry_user),
    }
    try:
        new = TaskSecrets.model_validate(given)
    except ValidationError:
        raise InvalidInput(
            "a secret has a wrong name, or more than 32,768 characters",
            hint="a name has letters, digits and underscores, and does not begin with a digit",
        ) from None
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        found = await find_task(client, name)
        task = await client.change_task_secrets(found.id, new)
    if as_json:
        show_json(task)
    else:
        say(f"{task.spec.name} ({task.id}) has the secrets {', '.join(task.secret_names) or 'of its registry only'}")


async def _change(
    context: typer.Context, name: str, patch: TaskPatch, where: str | None, manager: str | None, as_json: bool
) -> None:
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        found = await find_task(client, name)
        task = await client.change_task(found.id, patch)
    if as_json:
        show_json(task)
        return
    say(
        f"{task.spec.name} ({task.id}) is {task.state.value}; "
        f"replicas {task.spec.replicas}, priority {task.spec.priority}"
    )
