"""`muster ledger`: deploys, shows and governs the contracts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, TypedDict

import typer

from cli.connection import GovernorKey, PoolOption, PublisherKey, chosen_pool, open_chain, open_ledger
from cli.groups import CommandGroup
from cli.keys import open_key, resolve_address
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, show_fields, show_table
from cli.output.tables import Column, Columns
from cli.output.values import Ether, Must
from cli.transactions.changes import Change, DryRunOption, YesOption
from cli.transactions.sender import CommandSender
from ledger.amounts import parse_amount
from ledger.artifacts import Contract
from ledger.deployment import MOST_UNBONDING, plan_deployment
from ledger.deployment import deploy as deploy_contracts
from protocol.errors import Conflict, InvalidInput, NotFound
from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST, Address, digest, run_id

app = CommandGroup(no_args_is_help=True, help="Deploy, show and govern the contracts.")
domains = CommandGroup(no_args_is_help=True, help="Domains: the fields of work that pools belong to.")
app.add_typer(domains, name="domain")

DOMAINS = Columns.of(
    "id", Column("name", least=16), "active", Column("penalties", drop=1), Column("uri", drop=2, least=16)
)

_DEPLOYMENT_BYTES = 4096
"""Maximum size of a deployment file, in bytes."""


class _Choices(TypedDict):
    """Arguments of the constructors."""

    governor: Address
    unbonding_period: timedelta


Receiver = Annotated[str, typer.Argument(help="Address or key name of the account.")]
MustAmount = Annotated[str, typer.Argument(help="Amount in MUST.")]


@app.command()
async def deploy(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="File to write with the addresses of the contracts.")] = Path(
        "deployment.json"
    ),
    governor: Annotated[
        str | None, typer.Option(help="Account that mints and creates domains; default: the deployer.")
    ] = None,
    unbonding_period: Annotated[
        int,
        typer.Option(
            min=1,
            max=int(MOST_UNBONDING.total_seconds()),
            help="Seconds for which unbonding stake is slashable.",
        ),
    ] = 1_209_600,
    key: GovernorKey = "governor",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deploy all contracts to the configured chain.

    --dry-run simulates the creation of every contract, and shows the addresses and the cost.
    """
    if out.exists():
        raise Conflict(f"{out} exists", hint="choose another --out: this command never overwrites a deployment")
    _require_room_for(out)
    deployer, chain = open_key(context.obj, key), context.obj.chain
    rules = deployer.address if governor is None else resolve_address(context.obj, governor)
    if chain.chain_id is None:
        raise InvalidInput("no chain id is configured", hint="set chain_id under [chain] in muster.toml")
    change = Change(as_json=as_json, dry_run=dry_run)
    async with (
        open_chain(chain.rpc.get_secret_value(), chain.chain_id) as web3,
        CommandSender(web3, deployer.account(), chain_id=chain.chain_id, change=change) as sender,
    ):
        choices: _Choices = {"governor": rules, "unbonding_period": timedelta(seconds=unbonding_period)}
        if dry_run:
            plan = await plan_deployment(web3, sender, **choices)
            cost, owned = Ether(plan.gas * await sender.most_fee()), await web3.eth.get_balance(deployer.address)
            text = f"would deploy {len(plan.contracts)} contracts from {deployer.address}: at most {plan.gas:,} gas, "
            fields = {
                "chain_id": chain.chain_id,
                "from": deployer.address,
                "governor": rules,
                "contracts": _named(plan.contracts),
                "most_gas": plan.gas,
                "most_cost": cost,
                "owned": Ether(owned),
            }
            change.end_dry_run(f"{_listed(plan.contracts)}\n{text}{cost.text}, of {Ether(owned).text}", fields)
        deployment = await deploy_contracts(web3, sender, **choices)
    change.show(
        _listed(deployment.contracts),
        chain_id=deployment.chain_id,
        block=deployment.block,
        contracts=_named(deployment.contracts),
        file=out,
    )
    deployment.save(out)  # saved last: if writing fails, the terminal already shows the addresses
    note(f"wrote {out}; set deployment under [chain] in muster.toml to this file")


def _named(contracts: Mapping[Contract, Address]) -> dict[str, Address]:
    return {name.value: place for name, place in contracts.items()}


def _listed(contracts: Mapping[Contract, Address]) -> str:
    return "\n".join(f"{name:<16} {place}" for name, place in _named(contracts).items())


def _require_room_for(out: Path) -> None:
    """Checks, before any gas is paid, that the deployment file can be written."""
    try:
        with NamedTemporaryFile(dir=out.parent) as file:
            file.write(bytes(_DEPLOYMENT_BYTES))
    except OSError as error:
        raise InvalidInput(
            f"can't write to {out.parent}: {error.strerror}", hint="nothing was deployed; choose another --out"
        ) from error


@app.command()
async def status(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show the chain and the contracts."""
    async with open_ledger(context.obj) as ledger:
        supply = await ledger.token.total_supply()
        show_fields(
            {
                "chain": context.obj.chain.endpoint,
                "chain_id": ledger.deployment.chain_id,
                "block": await ledger.block(),
                "time": await ledger.now(),
                "supply": Must(supply),
                "governor": await ledger.token.governor(),
                "unbonding_period": await ledger.stake.unbonding_period(),
                "domains": await ledger.domains.count(),
                "pools": await ledger.pools.count(),
                **{name.value: place for name, place in ledger.deployment.contracts.items()},
            },
            as_json=as_json,
        )


@app.command()
async def balance(context: typer.Context, who: Receiver, as_json: JsonOption = False) -> None:
    """Show the balance of an account: MUST, and the chain's coin for gas."""
    account = resolve_address(context.obj, who)
    async with open_ledger(context.obj) as ledger:
        tokens, gas = await ledger.token.balance_of(account), await ledger.balance(account)
    show_fields({"account": account, "must": Must(tokens), "coin_for_gas": Ether(gas)}, as_json=as_json)


@app.command()
async def mint(
    context: typer.Context,
    to: Receiver,
    amount: MustAmount,
    key: GovernorKey = "governor",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Mint MUST. Only the governor may mint."""
    receiver = resolve_address(context.obj, to)
    change, wei = Change(as_json=as_json, dry_run=dry_run), parse_amount(amount)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.token.mint(receiver, wei)
    change.show(f"minted {amount} MUST to {receiver}", receiver=receiver, amount=Must(wei))


@app.command()
async def transfer(
    context: typer.Context,
    to: Receiver,
    amount: MustAmount,
    key: Annotated[str, typer.Option("--key", help="Name of the sender's key.")] = "provider",
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Transfer MUST to an account."""
    receiver = resolve_address(context.obj, to)
    wei = parse_amount(amount)
    question = f"transfer {amount} MUST to {receiver}? This can't be undone."
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.token.transfer(receiver, wei)
    change.show(f"transferred {amount} MUST to {receiver}", receiver=receiver, amount=Must(wei))


@app.command()
async def announce(
    context: typer.Context,
    version: Annotated[int, typer.Argument(min=0)],
    checkpoint: Annotated[str, typer.Argument(help="The version digest, 0x and 64 hex digits.")],
    attempt: Annotated[int, typer.Option(min=0)] = 0,
    run_name: Annotated[str, typer.Option("--run", help="Name of the run, or its id.")] = "main",
    pool: PoolOption = None,
    key: PublisherKey = "publisher",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Announce a checkpoint. Only the pool's publisher may announce.

    The version must be higher than the newest announced one, or equal to it with a higher attempt.
    """
    change, pool_id = Change(as_json=as_json, dry_run=dry_run), chosen_pool(context.obj, pool)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.checkpoints.announce(
            pool_id=pool_id,
            run=run_id(run_name),
            version=version,
            attempt=attempt,
            digest=digest(checkpoint),
        )
    change.show(
        f"version {version} is announced", pool=pool_id, version=version, attempt=attempt, digest=digest(checkpoint)
    )


@app.command()
async def checkpoint(
    context: typer.Context,
    run_name: Annotated[str, typer.Option("--run", help="Name of the run, or its id.")] = "main",
    pool: PoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run's newest checkpoint."""
    async with open_ledger(context.obj) as ledger:
        found = await ledger.checkpoints.latest(chosen_pool(context.obj, pool), run_id(run_name))
    if found is None:
        raise NotFound(f"no checkpoint of {run_name} was announced", hint="`muster ledger announce` announces one")
    show_fields(
        {
            "version": found.version,
            "attempt": found.attempt,
            "digest": found.digest,
            "block": found.block,
            "announced": found.announced_at,
        },
        as_json=as_json,
    )


@domains.command(name="create")
async def create_domain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the domain.")],
    uri: Annotated[str, typer.Option(help="URI of the description of the domain.")] = "",
    validation_hash: Annotated[str, typer.Option(help="Hash of the domain's validation parameters.")] = ZERO_DIGEST,
    reserve: Annotated[
        str | None, typer.Option(help="Account that receives penalties; default: penalties are burned.")
    ] = None,
    key: GovernorKey = "governor",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create a domain. Only the governor may create one."""
    receiver = ZERO_ADDRESS if reserve is None else resolve_address(context.obj, reserve)
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        domain = await ledger.domains.create(
            name=name, uri=uri, validation_hash=digest(validation_hash), reserve=receiver
        )
    change.show(f"domain {domain}: {name}", domain=domain, name=name)


@domains.command(name="list")
@listing()
async def list_domains(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the domains."""
    async with open_ledger(context.obj) as ledger:
        found = [(i, await ledger.domains.get(i)) for i in range(1, await ledger.domains.count() + 1)]
    rows = [
        (i, each.name, each.active, "burned" if each.reserve == ZERO_ADDRESS else each.reserve, each.uri or None)
        for i, each in found
    ]
    show_table(
        DOMAINS, rows, as_json=as_json, empty="there are no domains yet; `muster ledger domain create` creates one"
    )


@domains.command()
async def close(
    context: typer.Context,
    domain: Annotated[int, typer.Argument(min=1)],
    key: GovernorKey = "governor",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Close a domain, so that it accepts no new pools and its pools no new members."""
    await _set_active(context, domain, key, Change(as_json=as_json, dry_run=dry_run), active=False)


@domains.command(name="open")
async def open_(
    context: typer.Context,
    domain: Annotated[int, typer.Argument(min=1)],
    key: GovernorKey = "governor",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Open a closed domain again."""
    await _set_active(context, domain, key, Change(as_json=as_json, dry_run=dry_run), active=True)


async def _set_active(context: typer.Context, domain: int, key: str, change: Change, *, active: bool) -> None:
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.domains.set_active(domain, active=active)
    change.show(f"domain {domain} is {'open' if active else 'closed'}", domain=domain, active=active)
