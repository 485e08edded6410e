"""`muster node`: register machines under a provider, redeem invites, leave pools."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from cli.connection import CarrierKey, NodeKey, PoolOption, ProviderKey, chosen_pool, location_of, open_ledger
from cli.groups import CommandGroup
from cli.keys import open_key, resolve_address
from cli.ledger.relayed_registration import register_by_relay
from cli.output.documents import read_document
from cli.output.printing import JsonOption, show_fields
from cli.transactions.changes import Change, DryRunOption, YesOption
from ledger.client import Ledger
from ledger.errors import TransactionReverted
from ledger.transactions.receipts import Receipt
from protocol.clients import NodeClient
from protocol.errors import Conflict, InvalidInput, NotFound
from protocol.identifiers import ZERO_DIGEST, Address, Digest, digest
from protocol.identity.keys import Key
from protocol.invites import Join, Leave
from protocol.node_registration import NodeConsent
from protocol.wire.invites import SignedInvite

app = CommandGroup(no_args_is_help=True, help="Register machines, redeem invites, leave pools.")

CONSENT_VALID = timedelta(minutes=10)

NodeName = Annotated[str, typer.Argument(help="Address or key name of the node.")]
Capacity = Annotated[int, typer.Option(min=1, max=2**32 - 1, help="Capacity of the hardware; each unit binds stake.")]
Specs = Annotated[str | None, typer.Option(help="Hash of the hardware's description, 0x and 64 hex digits.")]
InviteFile = Annotated[
    Path, typer.Argument(help="A file that `muster pool invite` wrote.", exists=True, dir_okay=False)
]


@app.command()
async def register(
    context: typer.Context,
    node_key: Annotated[str, typer.Option(help="Name of the node's key, which signs its consent.")] = "node",
    capacity: Capacity = 1,
    specs: Specs = None,
    relay: Annotated[
        bool, typer.Option("--relay", help="Let the relayer of a pool pay the gas; the stake must cover the node.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option("--orchestrator", help="URL of that pool's orchestrator; default: the configured one."),
    ] = None,
    key: ProviderKey = "provider",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Register a node under your provider key.

    The command signs with the provider's key and with the node's key. With --relay, a pool that the node is to join
    sends the registration and pays for it.
    """
    if where is not None and not relay:
        raise InvalidInput("--orchestrator names the pool for --relay", hint="give --relay, or leave it out")
    node, provider = open_key(context.obj, node_key), open_key(context.obj, key)
    change, specs_hash = Change(as_json=as_json, dry_run=dry_run), digest(specs) if specs else ZERO_DIGEST
    async with open_ledger(context.obj, None if relay else key, change) as ledger:
        entry = await ledger.registry.node(node.address)
        if entry is not None and entry.provider == provider.address and not entry.retired:
            raise Conflict(
                f"{node.address} is already registered by you",
                hint="`muster node update` changes its capacity and specs",
            )
        if relay:
            location = location_of(context.obj, where)
            change.plan_request(f"ask {location.url} to register {node.address} as a node of {provider.address}")
            async with NodeClient(location, key=node) as client:
                await register_by_relay(
                    ledger, client, provider=provider, node=node, capacity=capacity, specs_hash=specs_hash
                )
        else:
            await register_node(ledger, node, capacity=capacity, specs_hash=specs_hash)
    text = f"{node.address} is a node of {provider.address}"
    change.show(text, node=node.address, provider=provider.address, capacity=capacity)


@app.command()
async def update(
    context: typer.Context,
    node: NodeName = "node",
    capacity: Capacity = 1,
    specs: Specs = None,
    key: ProviderKey = "provider",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Update a node's hardware description.

    A pool applies the new description when the node joins the pool again.
    """
    which, change = resolve_address(context.obj, node), Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        specs_hash = digest(specs) if specs else ZERO_DIGEST
        await ledger.registry.update(node=which, specs_hash=specs_hash, capacity=capacity)
    change.show(f"{which} has capacity {capacity}", node=which, capacity=capacity, specs_hash=specs_hash)


@app.command()
async def retire(
    context: typer.Context,
    node: NodeName = "node",
    key: ProviderKey = "provider",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Retire a node: it can't join pools or submit work until its provider registers it again."""
    which, change = resolve_address(context.obj, node), Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.registry.retire(which)
    change.show(f"{which} is retired; `muster node register` activates it again", node=which, retired=True)


@app.command()
async def show(
    context: typer.Context, node: NodeName = "node", pool: PoolOption = None, as_json: JsonOption = False
) -> None:
    """Show a node's registration and its membership of the pool."""
    which = resolve_address(context.obj, node)
    async with open_ledger(context.obj) as ledger:
        entry = await ledger.registry.node(which)
        if entry is None:
            raise NotFound(f"{which} is not registered", hint="`muster node register` registers it")
        pool_id = pool or context.obj.pool.id
        fields: dict[str, object] = {
            "node": which,
            "provider": entry.provider,
            "capacity": entry.capacity,
            "registered": entry.registered_at,
            "retired": entry.retired,
            "specs_hash": entry.specs_hash,
        }
        if pool_id is not None:
            fields |= await _place(ledger, pool_id, which, entry.provider)
    show_fields(fields, as_json=as_json)


@app.command()
async def join(
    context: typer.Context,
    invite_file: InviteFile,
    carrier: Annotated[
        str | None, typer.Option(help="Name of the key that pays for gas; default: the node itself.")
    ] = None,
    key: NodeKey = "node",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Join a pool with an invite that the pool's orchestrator signed for this node."""
    invite = read_document(invite_file, SignedInvite, made_by="muster pool invite")
    node, change = open_key(context.obj, key), Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, carrier or key, change) as ledger:
        terms = invite.invite
        consent = b"" if carrier is None else Join(invite_hash=terms.hash).sign(node, ledger.pools.domain)
        await ledger.pools.join(terms, orchestrator_signature=invite.raw_signature, node_signature=consent)
    change.show(
        f"{node.address} joined pool {terms.pool_id}; its orchestrator is {terms.url}",
        node=node.address,
        pool=terms.pool_id,
        orchestrator=terms.url,
    )


@app.command()
async def leave(
    context: typer.Context,
    pool: PoolOption = None,
    carrier: Annotated[
        str | None, typer.Option(help="Name of the key that pays for gas; default: the node itself.")
    ] = None,
    key: NodeKey = "node",
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Leave a pool and release the stake that the membership binds.

    Open work is still judged and paid.
    """
    node, pool_id = open_key(context.obj, key), chosen_pool(context.obj, pool)
    question = f"leave pool {pool_id} with {node.address}? It needs a new invite to join again."
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    async with open_ledger(context.obj, carrier or key, change) as ledger:
        joins = await ledger.pools.joins(pool_id, node.address)
        try:
            if carrier is None:
                await ledger.pools.leave(pool_id, node.address)
            else:
                deadline = datetime.now(UTC) + CONSENT_VALID
                word = Leave(pool_id=pool_id, node=node.address, nonce=joins, deadline=int(deadline.timestamp()))
                signature = word.sign(node, ledger.pools.domain)
                await ledger.pools.leave(pool_id, node.address, deadline=deadline, node_signature=signature)
        except TransactionReverted as error:
            # The orchestrator may have removed the node, because it removes nodes whose worker has ended. Or an
            # earlier attempt to leave was mined late.
            if error.name != "NotMember" or not joins:
                raise
            text = f"{node.address} is no longer a member of pool {pool_id}: it left before, or the pool removed it"
            change.show(text, node=node.address, pool=pool_id, member=False)
            return
    change.show(f"{node.address} left pool {pool_id}", node=node.address, pool=pool_id, member=False)


@app.command(name="revoke-consent")
async def revoke_consent(
    context: typer.Context,
    key: CarrierKey = "node",
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Revoke all unused consents that this node has signed."""
    question = "revoke all consents that this node has signed? They can't be restored."
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.registry.revoke_consent()
        node = ledger.address
    change.show("all consents that the node has signed until now are void", node=node)


async def register_node(ledger: Ledger, node: Key, *, capacity: int = 1, specs_hash: Digest = ZERO_DIGEST) -> Receipt:
    """Registers a node under the client's key, with a consent that the node's key signs."""
    # The newest block's time may be old on a chain that mines on demand, and ahead of this machine's clock on a
    # development chain. The deadline has to be later than both times.
    deadline = max(datetime.now(UTC), await ledger.now()) + CONSENT_VALID
    consent = NodeConsent(
        provider=ledger.address,
        node=node.address,
        nonce=await ledger.registry.consent_nonce(node.address),
        deadline=int(deadline.timestamp()),
    )
    return await ledger.registry.register(
        node=node.address,
        specs_hash=specs_hash,
        capacity=capacity,
        deadline=deadline,
        node_signature=consent.sign(node, ledger.registry.domain),
    )


async def _place(ledger: Ledger, pool_id: int, node: Address, provider: Address) -> dict[str, object]:
    membership = await ledger.pools.membership(pool_id, node)
    return {
        "pool": pool_id,
        "member": membership is not None,
        "joined": membership.joined_at if membership else None,
        "banned": await ledger.pools.is_banned(pool_id, node, provider),
    }
