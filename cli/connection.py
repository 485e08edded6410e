"""Opens the ledger for a command, with the command's key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cli.configuration.sections import Configuration
from cli.keys import open_key
from cli.transactions.changes import Change
from ledger.errors import InsufficientFunds
from protocol.errors import InvalidInput
from protocol.http.location import ServiceLocation

if TYPE_CHECKING:
    from web3 import AsyncWeb3

    from ledger.client import Ledger
    from ledger.rpc.connection import ChainConnection

PoolOption = Annotated[
    int | None,
    typer.Option(
        "--pool", min=1, max=2**32 - 1, help="The pool's number on the ledger; default from the configuration."
    ),
]
ProviderKey = Annotated[str, typer.Option("--key", help="Name of the provider's key.")]
NodeKey = Annotated[str, typer.Option("--key", help="Name of the node's key.")]
OwnerKey = Annotated[str, typer.Option("--key", help="Name of the pool owner's key.")]
ManagerKey = Annotated[str, typer.Option("--key", help="Name of the pool manager's key.")]
OrchestratorKey = Annotated[str, typer.Option("--key", help="Name of the pool orchestrator's key.")]
ValidatorKey = Annotated[str, typer.Option("--key", help="Name of the validator's key.")]
PublisherKey = Annotated[str, typer.Option("--key", help="Name of the pool publisher's key.")]
GovernorKey = Annotated[str, typer.Option("--key", help="Name of the governor's key.")]
CarrierKey = Annotated[str, typer.Option("--key", help="Name of the key that pays for gas; any account may pay.")]


@asynccontextmanager
async def open_chain(rpc: str, chain_id: int) -> AsyncIterator[AsyncWeb3[ChainConnection]]:
    """Connects to a chain that may have no contracts yet.

    Raises:
        ChainUnavailable: The chain does not answer.
        WrongChain: The id of the chain is not `chain_id`.
    """
    from ledger.rpc.connection import connect  # noqa: PLC0415 - loads web3, which takes a second

    web3 = await connect(rpc, expected_chain_id=chain_id)
    try:
        yield web3
    finally:
        await web3.provider.disconnect()


@asynccontextmanager
async def open_ledger(
    configuration: Configuration, key: str | None = None, change: Change | None = None
) -> AsyncIterator[Ledger]:
    """Connects to the configured chain and contracts.

    If `key` names a key, the client can also send transactions, which it signs with that key. `change` confirms,
    simulates and reports them.

    Raises:
        WrongUsage: The change needs a confirmation, and nobody can give it.
        InvalidInput: The configuration names no deployment, or a deployment on a chain other than the configured
            `chain_id`.
    """
    from cli.transactions.sender import CommandSender  # noqa: PLC0415 - loads web3, which takes a second
    from ledger.client import Ledger  # noqa: PLC0415
    from ledger.deployment import Deployment  # noqa: PLC0415

    change = change or Change()
    change.require_answer()
    if configuration.chain.deployment is None:
        raise InvalidInput(
            "no deployment is configured",
            hint="set deployment under [chain] in muster.toml, or run this command in the folder of a running devnet",
        )
    deployment = Deployment.load(configuration.chain.deployment)
    if configuration.chain.chain_id not in {None, deployment.chain_id}:
        raise InvalidInput(
            f"{configuration.path} says chain {configuration.chain.chain_id}, "
            f"and {configuration.chain.deployment} is a deployment on chain {deployment.chain_id}",
            hint="correct chain_id or deployment under [chain]: they belong to different networks",
        )
    opened = None if key is None else open_key(configuration, key)
    async with Ledger.connect(
        configuration.chain.rpc.get_secret_value(),
        deployment,
        key=opened,
        open_sender=partial(CommandSender, change=change),
    ) as ledger:
        try:
            yield ledger
        except InsufficientFunds as error:
            payer = f"key {key}" if opened is None else f"key {key} ({opened.address})"
            raise InsufficientFunds(f"{payer}: {error.detail}", hint=error.hint) from error


def chosen_pool(configuration: Configuration, pool: int | None) -> int:
    """Returns the pool that the option names, else the configured pool.

    Raises:
        InvalidInput: Neither the option nor the configuration names a pool.
    """
    found = pool or configuration.pool.id
    if found is None:
        raise InvalidInput("no pool is given", hint="give --pool N, or set id under [pool] in muster.toml")
    return found


def location_of(configuration: Configuration, where: str | None) -> ServiceLocation:
    """Returns the orchestrator's location: `where` or, if that is None, the configured one.

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
