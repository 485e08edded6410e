"""`muster pool invite`, `cancel-invite` and `evict`: membership of a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.connection import ManagerKey, OrchestratorKey, PoolOption, chosen_pool, open_ledger
from cli.documents import write_document
from cli.keys import open_key, resolve_address
from cli.output import say, warn
from protocol.invites import Invite
from protocol.runtime.randomness import randbits
from protocol.wire.invites import SignedInvite

NodeName = Annotated[str, typer.Argument(help="Address or key name of the node.")]
Reason = Annotated[str, typer.Option(help="Reason; it is public on the ledger.")]


async def invite(
    context: typer.Context,
    node: NodeName,
    url: Annotated[str, typer.Option(help="URL at which nodes reach the orchestrator.")],
    valid_for: Annotated[int, typer.Option(min=1, help="Seconds until the invite expires.")] = 3600,
    out: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    pool: PoolOption = None,
    key: OrchestratorKey = "orchestrator",
) -> None:
    """Sign an invite for one node. The invite can be used once, by this node only, until it expires."""
    signer, pool_id = open_key(context.obj, key), chosen_pool(context.obj, pool)
    async with open_ledger(context.obj) as ledger:
        entry = await ledger.pools.get(pool_id)
        terms = Invite(
            pool_id=pool_id,
            domain_id=entry.domain_id,
            node=resolve_address(context.obj, node),
            nonce=randbits(128),
            expiry=int((await ledger.now()).timestamp()) + valid_for,
            url=url,
        )
        domain = ledger.pools.domain
        signed = SignedInvite.of(terms, domain=domain, signature=terms.sign(signer, domain))
        if not await ledger.pools.is_orchestrator(pool_id, signer.address):
            warn(f"{signer.address} is not the orchestrator of pool {pool_id}: this invite can't be redeemed")
    write_document(out, signed)


async def cancel_invite(
    context: typer.Context,
    nonce: Annotated[int, typer.Argument(min=0, help="Nonce of the invite.")],
    pool: PoolOption = None,
    key: ManagerKey = "manager",
) -> None:
    """Cancel an unused invite."""
    async with open_ledger(context.obj, key) as ledger:
        await ledger.pools.cancel_invite(chosen_pool(context.obj, pool), nonce)
    say("the invite is cancelled")


async def evict(
    context: typer.Context,
    node: NodeName,
    reason: Reason,
    pool: PoolOption = None,
    key: ManagerKey = "manager",
) -> None:
    """Evict a node from the pool; the pool may invite the node again."""
    which = resolve_address(context.obj, node)
    async with open_ledger(context.obj, key) as ledger:
        await ledger.pools.evict(chosen_pool(context.obj, pool), which, reason)
    say(f"{which} is evicted")
