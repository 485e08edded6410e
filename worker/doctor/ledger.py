"""Checks on the ledger: chain, wallet, registration, stake and the pool's requirements."""

from __future__ import annotations

from ledger.deployment import Deployment
from protocol.errors import MusterError
from protocol.identity.keys import Key
from protocol.runtime.findings import DoctorFinding, failure, ok, warning
from worker.chain.ledger_chain import NodeStatus, open_chain
from worker.chain.pool_record import PoolRecord
from worker.settings import WorkerSettings


async def check_ledger(settings: WorkerSettings, key: Key) -> list[DoctorFinding]:
    """Checks everything on the ledger that joining the pool requires."""
    try:
        deployment = Deployment.load(settings.deployment)
    except MusterError as error:
        return [failure("deployment", error.detail, error.hint)]
    try:
        async with open_chain(
            rpc=settings.chain_url.get_secret_value(), deployment=deployment, key=key, pool_id=settings.pool_id
        ) as chain:
            status, record = await chain.node_status(), await chain.pool_record()
    except MusterError as error:
        return [failure("chain", error.detail, error.hint)]
    found = ok("chain", f"chain {deployment.chain_id} with Muster's contracts")
    return [found, _wallet(key, status), *_registration(settings, status), check_record(record)]


def check_record(record: PoolRecord) -> DoctorFinding:
    """Checks whether the pool's newest work was judged and paid."""
    if record.is_bad:
        return warning(
            "pool record", record.summary, "ask the pool's owner, or choose another pool: `muster pool list`"
        )
    return ok("pool record", record.summary)


def _wallet(key: Key, status: NodeStatus) -> DoctorFinding:
    found = f"node {key.address}, {status.gas / 1e18:.4f} of the chain's coin for gas"
    if status.gas == 0 and not status.member:
        return warning(
            "wallet", found, "send some of the chain's coin to the node, unless the pool's relayer pays for joining"
        )
    return ok("wallet", found)


def _registration(settings: WorkerSettings, status: NodeStatus) -> list[DoctorFinding]:
    if status.provider is None:
        return [failure("registration", *(status.obstacle() or ("", "")))]
    findings = [ok("registration", f"registered by {status.provider} with capacity {status.capacity}")]
    stake = f"{status.free_stake / 1e18:.4f} MUST are free, joining locks {status.needed_stake / 1e18:.4f}"
    if status.member:
        return [*findings, ok("stake", stake), ok("pool", f"a member of pool {settings.pool_id}")]
    if status.free_stake < status.needed_stake:
        findings.append(failure("stake", stake, "add stake with `muster stake add`"))
    else:
        findings.append(ok("stake", stake))
    obstacle = status.obstacle()
    if obstacle is not None and status.free_stake >= status.needed_stake:
        return [*findings, failure("pool", *obstacle)]
    return [
        *findings,
        ok("pool", f"pool {settings.pool_id} accepts nodes with a capacity of at least {status.min_capacity}"),
    ]
