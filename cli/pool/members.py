"""`muster pool invite`, `cancel-invite` and `evict`: membership of a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.connection import ManagerKey, OrchestratorKey, PoolOption, chosen_pool, open_ledger
from cli.keys import open_key, resolve_address
from cli.output.documents import write_document
from cli.output.printing import JsonOption, warn
from cli.transactions.changes import Change, DryRunOption, YesOption
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
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel an unused invite."""
    change, pool_id = Change(as_json=as_json, dry_run=dry_run), chosen_pool(context.obj, pool)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.pools.cancel_invite(pool_id, nonce)
    change.show("the invite is cancelled", pool=pool_id, nonce=str(nonce))


async def evict(
    context: typer.Context,
    node: NodeName,
    reason: Reason,
    pool: PoolOption = None,
    key: ManagerKey = "manager",
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evict a node from the pool; the pool may invite the node again."""
    which = resolve_address(context.obj, node)
    pool_id = chosen_pool(context.obj, pool)
    question = f"evict {which} from pool {pool_id}? Its task ends, and it needs a new invite to join again."
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.pools.evict(pool_id, which, reason)
    change.show(f"{which} is evicted", pool=pool_id, node=which, member=False)
