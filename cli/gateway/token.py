"""`muster gateway token`: tokens of clients and verifiers, stored as hashes in the gateway's Redis."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.gateway.opened import opened_database
from cli.groups import CommandGroup
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, show_fields, show_result, show_table
from cli.output.tables import Column, Columns
from cli.output.values import Ago, Shown
from gateway.clients.tokens import GatewayRole, TokenQuota, TokenStore
from protocol.errors import InvalidInput
from protocol.runtime.configuration_file import ConfigOption, reads
from protocol.runtime.files import create_atomically

app = CommandGroup(name="token", no_args_is_help=True, help="Tokens of clients and verifiers.")

TOKENS = Columns.of(
    Column("name", least=12),
    "role",
    Column("created", drop=3),
    Column("expires", drop=1),
    Column("per_minute", drop=5),
    Column("concurrent", drop=4),
    Column("per_day", drop=2),
    Column("used_today", drop=2),
    "revoked",
)

NameArgument = Annotated[str, typer.Argument(help="Name of the token's holder: 1 to 63 characters.")]


class RoleOption(StrEnum):
    """Role of a token's holder."""

    CLIENT = "client"
    VERIFIER = "verifier"


@app.command()
@reads("gateway")
async def create(
    name: NameArgument,
    *,
    role: Annotated[
        RoleOption, typer.Option(help="client: sends requests; verifier: checks answers.")
    ] = RoleOption.CLIENT,
    file: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write the token into this new file (mode 600) instead of printing it."),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.001, max=36500, help="Days until the token expires. Default: never.")
    ] = None,
    per_minute: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum requests per minute.")] = 600,
    concurrent: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum requests in progress.")] = 64,
    tokens_per_day: Annotated[
        int,
        typer.Option(min=0, max=10**15, help="Maximum tokens of prompts and answers per day (UTC); 0: no limit."),
    ] = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token; it is shown once, and Redis has only its hash."""
    if not 1 <= len(name) <= 63 or not name.isprintable():
        raise InvalidInput(f"{name[:63]!r} can't be a token's name", hint="give 1 to 63 printable characters")
    if file is not None and file.exists():
        raise InvalidInput(f"{file} exists already", hint="name a file that does not exist")
    quota = TokenQuota(
        per_minute=per_minute,
        concurrent=concurrent,
        per_day=tokens_per_day,
        life=None if days is None else timedelta(days=days),
    )
    async with opened_database(config) as database:
        store = TokenStore(database)
        token = await store.create(name, GatewayRole(role.value), quota)
        if file is None:
            show_fields({"name": name, "token": token}, as_json=as_json)
            note("the token is not shown again")
            return
        try:
            create_atomically(file, f"{token}\n".encode())
        except OSError as error:
            await store.revoke(name)
            raise InvalidInput(
                f"can't write the token into {file}: {error.strerror}",
                hint="the token was revoked; create one with another name and file",
            ) from error
        show_result(f"the token is in {file}", {"name": name, "file": str(file)}, as_json=as_json)


@app.command(name="list")
@reads("gateway")
@listing(watch=True)
async def list_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List all tokens, with their limits and what they used today."""
    async with opened_database(config) as database:
        rows = await TokenStore(database).list()
    values = []
    for row in rows:
        fields = asdict(row)
        expires = Shown(None, "never") if not row.expires_ms else Ago(row.expires_ms)
        values.append(
            [
                row.name,
                row.role.value,
                Ago(row.created_ms),
                expires,
                *(fields[name] for name in ("per_minute", "concurrent", "per_day", "used_today", "revoked")),
            ]
        )
    show_table(TOKENS, values, as_json=as_json, empty="no tokens yet: `muster gateway token create NAME`")


@app.command()
@reads("gateway")
async def revoke(name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Refuse further requests with a token; those in progress go on."""
    async with opened_database(config) as database:
        await TokenStore(database).revoke(name)
    show_result(f"the token {name} is refused from now on", {"name": name, "revoked": True}, as_json=as_json)
