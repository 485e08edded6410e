"""Commands of a contributor and an auditor, against a real chain, a real orchestrator over HTTP, and its store."""

from __future__ import annotations

import asyncio

from ledger.client.work import WorkStatus
from protocol.identifiers import Digest
from protocol.identity.keystores import write_keystore
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditCheck, AuditFinding, CheckState
from tests.kit.scripted_examiner import concluded
from tests.kit.terminal import Terminal
from tests.kit.validators import PoolWithValidators
from tests.kit.verdicts import verdict_on
from tests.kit.world import TERMS

FORGED = {
    "words": "2 rows were not drawn by the slot's noise",
    "checks": (
        AuditCheck(
            name="sampling",
            state=CheckState.FAILED,
            fails="statistical",
            found=1,
            findings=(AuditFinding(reason=900, what="the largest gap is 11.7, the limit is 0.4", row=1),),
        ),
    ),
}


async def judged(pool: PoolWithValidators) -> tuple[Digest, Digest]:
    """Returns two works, one accepted and one forged, in a finished epoch whose secret was revealed."""
    validator = pool.validator(trial=1)
    await validator.loops.audit.epochs()
    good, bad = await pool.submit(), await pool.submit()
    validator.examiner.answers[bad] = concluded(Outcome.FORGED, ReasonCode.SAMPLING_REPLAY, **FORGED)
    assert await validator.judge() == 2
    await pool.run.sync.round()
    connected = await validator.dependencies.chain.connected()
    await connected.epochs.commit_next()
    await connected.epochs.reveal(1)
    return good, bad


async def test_an_auditor_recomputes_a_verdict_and_a_contributor_disputes_it_without_gas(terminal: Terminal) -> None:
    pool = terminal.pool
    good, bad = await judged(pool)

    shown = await terminal.muster("worker", "verdicts")
    for words in (
        good,
        bad,
        "pays 0.07 MUST when final",
        "costs 1 MUST and the place in the pool when final",
        "sampling-replay",
        "The tokens differ from those that the seeded noise selects.",
        "2 rows were not drawn by the slot's noise",
        "sampling: row 1: the largest gap is 11.7, the limit is 0.4",
        f"muster worker dispute {bad}",
    ):
        assert words in shown, shown
    one, other = await terminal.asks("worker", "verdicts", "--node", pool.node.address)
    assert (one["verdict"], one["reason"], one["audit"]["rows"][1]["reward"]) == ("accepted", "passed", 1.0)
    assert (other["verdict"], other["reason_code"], other["pays"]) == ("forged", 900, "70000000000000000")
    assert other["audit"]["checks"][0]["findings"][0]["row"] == 1

    log = await terminal.muster("validator", "audit-log")
    for words in (good, bad, "epoch 1", "every row was computed again", "2 as drawn"):
        assert words in log, log
    (raw,) = await terminal.asks("validator", "audit-log", "--validator", "validator", "--epoch", "1")
    assert {each["work"]: each["finding"] for each in raw["verdicts"]} == {good: "agrees", bad: "agrees"}

    node, ledger = pool.node.address, await pool.ledger()
    spent = await ledger.balance(node)
    # As on a devnet: no key is called `node`, and the work's node is found among the other keys.
    terminal.monkeypatch.delenv("MUSTER_NODE_KEY")
    terminal.config.write_text(terminal.config.read_text() + '[keys]\ndirectory = "keys"\npassword_file = "password"\n')
    unknown = await terminal.muster("worker", "dispute", bad, expect=1)
    assert f"the work is of node {node}, and {node} has no key here" in unknown
    write_keystore(pool.directory / "keys" / "worker-1.json", pool.node, "secret", scrypt_n=2**12)
    (pool.directory / "password").write_text("secret\n")
    ended = asyncio.Event()

    async def relaying() -> None:
        while not ended.is_set():
            await pool.run.relayer.round()
            await asyncio.sleep(0.05)

    task = asyncio.create_task(relaying())
    try:
        said = await terminal.muster("worker", "dispute", bad, "--because", "my noise is right")
    finally:
        ended.set()
        await task
    assert "is disputed; another validator may decide until" in said
    work = await pool.work(bad)
    assert (work.status, work.disputer) == (WorkStatus.DISPUTED, node)
    assert await ledger.balance(node) == spent
    kept = [each for each in (pool.directory / "objects").rglob("*") if each.is_file()]
    assert any(b"my noise is right" in each.read_bytes() for each in kept)

    assert "no verdict on it can be disputed now" in await terminal.muster("worker", "dispute", bad, expect=1)
    assert "the work was accepted" in await terminal.muster("worker", "dispute", good, expect=1)
    assert "NotDisputant" in await terminal.muster("worker", "dispute", good, "--key", "provider", expect=1)


async def test_a_contributor_sees_the_cost_of_disputing_a_rejection_before_and_after(terminal: Terminal) -> None:
    pool = terminal.pool
    validator = pool.validator()
    key = await pool.submit()
    validator.examiner.answers[key] = concluded(Outcome.REJECTED, ReasonCode.BOUNDS_ENVIRONMENT)
    assert await validator.judge() == 1
    shown = await terminal.muster("worker", "verdicts")
    assert "A dispute costs 0.1 MUST if the rejection is upheld." in shown
    said = await terminal.muster("worker", "dispute", key, "--key", "provider")
    assert "if the rejection is upheld, the dispute costs 0.1 MUST of stake" in said
    second = await pool.world.as_("second")
    await pool.world.warp(TERMS.dispute_period / 2)
    assert await second.work.judge([await verdict_on(second, key, Outcome.REJECTED, decisive=True)]) == []
    (told,) = await terminal.asks("worker", "verdicts", "--node", pool.node.address)
    assert (told["verdict"], told["lost_by_dispute"]) == ("rejected", str(10**17))
    assert "unpaid, and 0.1 MUST for a lost dispute" in await terminal.muster("worker", "verdicts")


async def test_a_validator_that_left_out_rows_is_named_and_the_command_fails(terminal: Terminal) -> None:
    pool = terminal.pool
    validator = pool.validator()
    await validator.loops.audit.epochs()
    key = await pool.submit()
    validator.examiner.otherwise = concluded(audited=(0,))  # one of the two rows of a new node is left out
    rows = tuple(row.model_copy(update={"audited": row.row == 0}) for row in concluded().rows)
    validator.examiner.otherwise = concluded(audited=(0,), rows=rows)
    await validator.judge()
    epochs = (await validator.dependencies.chain.connected()).epochs
    await epochs.commit_next()
    said = await terminal.muster("validator", "audit-log", expect=1)
    assert key in said
    assert "all rows had to be computed again, but only 1 of 2 were" in said
    assert "1 NOT as drawn" in said
