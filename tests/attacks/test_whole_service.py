"""The complete course of an attack: leased, uploaded, submitted, examined, judged, slashed, evicted and reported.

Chain, orchestrator, store, validator, examiner and files are real.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.registry import ATTACKS
from ledger.amounts import UNIT
from ledger.client.work import WorkStatus
from orchestrator.storage.local import LocalStore
from protocol.clients import NodeClient
from protocol.http.object_transfer import ObjectTransfer
from protocol.identifiers import Digest, run_id
from protocol.identity.keys import Key
from protocol.leases import WorkClaim
from protocol.runtime.clock import SystemClock
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.uploads import ObjectKey, UploadKind, UploadRequest
from tests.attacks.conftest import Places, examiner_settings, open_workshop
from tests.kit.attack_harness import AttackHarness, HandedIn
from tests.kit.chain import development_chain, development_process
from tests.kit.memory_run_ledger import RUN
from tests.kit.terminal import Terminal, terminal
from tests.kit.validators import PoolWithValidators, ValidatorUnderTest, signed_work
from tests.kit.world import POOL, TERMS, URL, founded, world
from validator.examination.examiner import LocalExaminer

__all__ = ["development_chain", "development_process", "founded", "terminal", "world"]

CHEATING = {
    "int8": ReasonCode.COMPUTATION_OTHER_MODEL,
    "best-of-n": ReasonCode.SAMPLING_REPLAY,
    "reward-tampered": ReasonCode.REWARD_DIFFERS,
    "not-parquet": ReasonCode.FORMAT_UNREADABLE,
}
TOO_LARGE = "too large for its lease and for the validator"
REASONS = {**CHEATING, TOO_LARGE: ReasonCode.FORMAT_TOO_LARGE}
READ_HERE, BEYOND_THE_LEASE = 1 << 20, 3 << 20
"""Bytes: the validator's reading limit, and more than twice the decoded size of any file of one group."""


async def test_attackers_lose_stake_and_membership_and_honest_nodes_lose_nothing(
    terminal: Terminal, places: Places, tmp_path: Path
) -> None:
    pool, world = terminal.pool, terminal.pool.world
    honest = await another_node(pool)
    settings = examiner_settings(tmp_path / "examiner", places)
    with open_workshop(places) as workshop:
        async with LocalExaminer(settings, clock=SystemClock()) as examiner:
            await announce(pool, workshop.version.digest, units_per_group=workshop.version.recipe.units_per_group)
            validator = pool.validator(file_most_bytes=READ_HERE)
            setattr(validator.examiner, "examine", examiner.examine)  # noqa: B010 - its script is not what is asked
            good = await done(pool, honest, workshop, Trick())
            bad = {name: await done(pool, pool.node, workshop, ATTACKS[name].trick()) for name in CHEATING}
            bad[TOO_LARGE] = await oversized(pool, size=BEYOND_THE_LEASE)
            await judged(pool, validator, [good, *bad.values()])

    ledger = await pool.ledger()
    assert (await pool.work(good)).outcome is Outcome.ACCEPTED
    for name, key in bad.items():
        work = await pool.work(key)
        assert (work.outcome, work.reason) == (Outcome.FORGED, REASONS[name]), name
        assert (await pool.audit(validator, key)).words
    shown = await terminal.asks("worker", "verdicts", "--node", pool.node.address)
    assert {each["reason"] for each in shown} == {reason.name.lower().replace("_", "-") for reason in REASONS.values()}

    cheater, other = world.keys["provider"].address, world.keys["manager"].address
    before = {who: await ledger.stake.of(who) for who in (cheater, other)}
    await world.warp(TERMS.challenge_period + timedelta(hours=1))
    assert await validator.loops.finalising.round() == 1 + len(bad)
    assert (await pool.work(good)).status is WorkStatus.FINAL
    after = {who: await ledger.stake.of(who) for who in (cheater, other)}
    penalties = sum([(await pool.work(key)).penalty for key in bad.values()])
    assert 0 < penalties == before[cheater].active - after[cheater].active
    assert await ledger.pools.membership(POOL, pool.node.address) is None
    assert after[other].active == before[other].active
    assert await ledger.pools.membership(POOL, honest.address) is not None
    assert await ledger.work.accrued(POOL, other) == (await pool.work(good)).reward > 0
    assert await ledger.work.accrued(POOL, cheater) == 0


async def another_node(pool: PoolWithValidators) -> Key:
    """Registers a second member of another provider; the manager pays for it from its otherwise unused tokens."""
    world = pool.world
    governor, provider = await world.as_("governor"), await world.as_("manager")
    await governor.token.mint(provider.address, 100 * UNIT)
    await provider.stake.add(100 * UNIT)
    await world.register("node-2", provider="manager")
    await world.join("node-2", nonce=2)
    await pool.run.sync.round()
    await pool.run.pool.beat(world.keys["node-2"], pool_id=POOL)
    return world.keys["node-2"]


async def announce(pool: PoolWithValidators, digest: Digest, *, units_per_group: int) -> None:
    """Announces the devnet's base as version 1 of the run."""
    publisher = await pool.world.as_("publisher")
    await publisher.checkpoints.announce(pool_id=POOL, run=run_id(RUN), version=1, attempt=0, digest=digest)
    body = {"version": 1, "digest": digest, "units_per_group": units_per_group}
    await pool.run.pool.owner("PUT", "/v1/run/checkpoint", body)
    await pool.run.sync.round()


async def done(pool: PoolWithValidators, node: Key, workshop: AttackHarness, trick: Trick) -> Digest:
    """Leases a slot, makes its file as the node does, uploads it and has the work relayed; returns its key."""
    run = pool.run
    grant = await run.lease(node, step=(await run.step(node)).step, groups=1)
    made = workshop.hand_in(trick, grant)
    assert made is not None
    work = signed(node, made)
    store = run.pool.dependencies.objects
    assert isinstance(store, LocalStore)
    path = store.path(ObjectKey(pool_id=POOL, owner=node.address, sha256=work.sha256))
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made.path, path)
    answer = await run.hand_in(node, work, uploaded=False)
    assert answer.status_code == 200, answer.text
    assert await run.relayer.round() == 1
    await run.sync.round()
    return grant.lease.lease.key.hash


async def oversized(pool: PoolWithValidators, *, size: int) -> Digest:
    """Uploads a file as one that is no work and submits it by the node's own transaction; returns the work's key."""
    run, content = pool.run, bytes(size)
    grant = await run.lease(pool.node, step=(await run.step(pool.node)).step, groups=1)
    work = signed_work(pool.node, grant, content)
    shared: Any = {"clock": run.pool.clock, "transport": httpx.ASGITransport(app=run.pool.app)}
    path = pool.directory / "oversized"
    path.write_bytes(content)
    async with NodeClient(URL, key=pool.node, **shared) as client:
        asked = UploadRequest(kind=UploadKind.FILE, sha256=work.sha256, size=size)
        transfer = ObjectTransfer(URL, allow_plain_http=True, **shared)
        await transfer.put(await client.request_upload(asked), path, size=size)
        await transfer.aclose()
    await (await pool.world.as_("node")).work.submit(work.lease, sha256=work.sha256, units=work.units)
    return grant.lease.lease.key.hash


def signed(node: Key, made: HandedIn) -> SignedWorkClaim:
    """Returns the node's work claim for its file."""
    lease, sha256 = made.grant.lease, made.facts.work.sha256
    words = WorkClaim(lease_hash=lease.lease.hash, sha256=sha256, units=made.units)
    signature = words.sign(node, lease.domain)
    return SignedWorkClaim(lease=lease, sha256=sha256, units=made.units, signature="0x" + signature.hex())


async def judged(pool: PoolWithValidators, validator: ValidatorUnderTest, keys: Sequence[Digest]) -> None:
    """Runs the validator's loops until the ledger has a verdict on each work; the test's time limit ends the wait
    otherwise.

    On a busy machine the examiner starts late, and postponed items are retried after a pause in Redis' time.
    """
    while not all([(await pool.work(key)).outcome for key in keys]):
        await validator.judge()
        await asyncio.sleep(0.05)
