"""`muster validator`: runs the service, and shows, retries and decides its parked work."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.groups import CommandGroup
from cli.output.listing import listing
from cli.output.printing import JsonOption, show_json, show_result
from cli.transactions.changes import Change, DryRunOption, YesOption
from cli.validator.audit import audit_log
from cli.validator.calibrate import calibrate
from cli.validator.doctor import doctor
from cli.validator.numerics import numerics
from cli.validator.status import show_parked, show_status
from protocol.clients import ServiceLocation
from protocol.errors import InvalidInput, NotFound
from protocol.http.client import ServiceClient
from protocol.identity.keystores import find_key
from protocol.runtime.configuration_file import ConfigOption, reads
from validator.api.views import ParkedList, Resolve, StatusView, Unparked
from validator.cli import run
from validator.settings import ValidatorSettings

app = CommandGroup(name="validator", no_args_is_help=True, help="Run and operate a pool's validator.")
app.command()(run)
app.command(name="audit-log")(audit_log)
app.command()(calibrate)
app.command()(numerics)
app.command()(doctor)

TOKEN_VARIABLE = "MUSTER_VALIDATOR_TOKEN"  # noqa: S105 - the variable's name

SHORTEST_NAME = 8
"""Minimum number of characters of a work key's prefix on the command line."""

WhereOption = Annotated[
    str | None, typer.Option("--at", help="URL of the validator; default: from the validator's settings.")
]


class OperatorDecision(StrEnum):
    """Decision of an operator on parked work.

    There is no member for `forged`, because an operator may not slash.
    """

    ACCEPTED = "accepted"
    REJECTED = "rejected"


@app.command()
@reads("validator")
@listing(watch=True)
async def status(config: ConfigOption = None, where: WhereOption = None, as_json: JsonOption = False) -> None:
    """Show the queue, verdicts and their latency, other validators, and parked work."""
    async with _opened(config, where) as client:
        found = (await client.call("GET", "/v1/status")).read(StatusView)
    if as_json:
        show_json(found)
    else:
        show_status(found)


@app.command()
@reads("validator")
@listing(watch=True)
async def parked(config: ConfigOption = None, where: WhereOption = None, as_json: JsonOption = False) -> None:
    """List work that no validator could judge, with reason and remedy.

    If the operator does nothing, the work expires unpaid.
    """
    async with _opened(config, where) as client:
        found = (await client.call("GET", "/v1/parked")).read(ParkedList)
    if as_json:
        show_json(found.items)
    else:
        show_parked(found.items)


@app.command()
@reads("validator")
async def retry(
    item: Annotated[str | None, typer.Argument(help="Key of the work, or a prefix of it; omit it with --all.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Retry all parked work.")] = False,
    code: Annotated[str | None, typer.Option(help="With --all: only work with this error code.")] = None,
    config: ConfigOption = None,
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retry parked work."""
    if (item is None) != every or (code is not None and not every):
        raise InvalidInput(
            "retry needs either one work key or --all, and --code needs --all",
            hint="`muster validator parked` lists the keys",
        )
    async with _opened(config, where) as client:
        path = "/v1/parked/retry" if item is None else f"/v1/parked/{await _named(client, item)}/retry"
        query = {} if code is None else {"code": code}
        found = (await client.call("POST", path, query=query)).read(Unparked)
    text = f"{len(found.ids) if every else found.ids[0]} will be examined again"
    show_result(text, {"retried": found.ids}, as_json=as_json)


@app.command()
@reads("validator")
async def resolve(
    item: Annotated[str, typer.Argument(help="Key of the work, or a prefix of it.")],
    decision: Annotated[
        OperatorDecision, typer.Argument(help="accepted: the work is paid; rejected: unpaid. Neither costs stake.")
    ],
    because: Annotated[str, typer.Option("--because", help="Reason in one line, which the contributor can read.")],
    config: ConfigOption = None,
    where: WhereOption = None,
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Decide parked work by hand. The verdict and its audit file record that a person decided."""
    body = Resolve(outcome=decision.value, words=because)
    question = (
        f"decide that the work {item} is {decision.value}? The verdict goes on the ledger and can't be withdrawn."
    )
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    change.require_answer()
    async with _opened(config, where) as client:
        named = await _named(client, item)
        change.plan_request(f"decide that the work {named} is {decision.value}")
        path = f"/v1/parked/{named}/resolve"
        found = (await client.call("POST", path, body=body)).read(Unparked)
    text = f"{found.ids[0]} will be {decision.value}; the verdict is on the ledger within seconds"
    show_result(text, {"work": found.ids[0], "verdict": decision.value}, as_json=as_json)


async def _named(client: ServiceClient, text: str) -> str:
    """Returns the id of the parked item whose id equals `text` or begins with it.

    Raises:
        NotFound: No parked item has such an id.
        InvalidInput: Several ids begin with `text`, or `text` is too short.
    """
    if len(text) < SHORTEST_NAME:
        raise InvalidInput(f"{text!r} is too short", hint=f"give at least {SHORTEST_NAME} characters of the work key")
    items = (await client.call("GET", "/v1/parked")).read(ParkedList).items
    found = [each.id for each in items if each.id.startswith(text)]
    exact = [each for each in found if each in {text, f"{text}.first"}]
    if len(exact) == 1:
        return exact[0]
    if len(found) > 1:
        raise InvalidInput(
            f"the keys of {len(found)} parked items begin with {text}",
            hint="give more characters of the key; `muster validator parked --json` shows whole keys",
        )
    if not found:
        raise NotFound(f"no key of parked work begins with {text}", hint="`muster validator parked` lists parked work")
    return found[0]


@asynccontextmanager
async def _opened(config: Path | None, where: str | None) -> AsyncIterator[ServiceClient]:
    """Yields a client of the validator's API.

    The client sends the token in `MUSTER_VALIDATOR_TOKEN`; without a token, it signs with the validator's key.
    """
    settings = ValidatorSettings.load(file=config)
    url = where or f"http://{settings.host}:{settings.port}"
    if token := os.environ.get(TOKEN_VARIABLE, "").strip():
        client = ServiceClient(url, token=token)
    else:
        key = find_key("validator", keystore=settings.keystore, password_file=settings.password_file)
        client = ServiceClient(ServiceLocation(ServiceLocation.parse(url).url, key.address), key=key)
    async with client:
        yield client


__all__ = ["app"]
