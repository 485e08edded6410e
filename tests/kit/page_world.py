"""A run with verdicts, audit files and payments, for tests of the web pages and their API."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from ledger.amounts import UNIT
from ledger.events.types import VerdictGiven, WorkFinal
from orchestrator.storage.local import LocalStore
from protocol.identifiers import Digest, digest, run_id
from protocol.identity.keys import Key
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditCheck, AuditFile, AuditFinding, AuditRow, CheckState
from protocol.wire.uploads import ObjectKey
from tests.kit.memory_ledger import POOL
from tests.kit.memory_run_ledger import RUN, VALIDATOR, RunUnderTest

DAY_S = 86_400
MARKUP = '<img src=x onerror="globalThis.pwned=1"><script>globalThis.pwned=2</script>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """A run with two nodes, accepted, rejected and forged work with audit files, and payments on two days."""

    run: RunUnderTest
    nodes: tuple[Key, Key]
    accepted: Digest
    rejected: Digest
    forged: Digest


async def seeded(run: RunUnderTest) -> Seeded:
    await run.sync.round()
    await run.publish(0)
    nodes = (await run.member(), await run.member())
    works = []
    for number, (key, outcome) in enumerate(
        [
            (nodes[0], Outcome.ACCEPTED),
            (nodes[0], Outcome.REJECTED),
            (nodes[1], Outcome.FORGED),
            (nodes[0], Outcome.ACCEPTED),
        ]
    ):
        grant = await run.lease(key, groups=1)
        claim = run.signed(key, grant, file=number + 1)
        assert (await run.hand_in(key, claim, reward=0.25 * number, length=10)).status_code == 200
        await run.relayer.round()
        works.append(grant.lease.lease.key.hash)
        judge(run, works[-1], key, outcome)
    now = int(run.pool.clock.now().timestamp())
    for days, work, node, outcome, paid, slashed in (
        (2, works[0], nodes[0], Outcome.ACCEPTED, 1_234 * UNIT + UNIT // 2, 0),
        (1, works[0], nodes[0], Outcome.ACCEPTED, UNIT // 4, 0),
        (0, works[2], nodes[1], Outcome.FORGED, 0, 7 * UNIT),
    ):
        run.chain.head += 1
        run.chain.times[run.chain.head] = now - days * DAY_S
        run.chain.emit(WorkFinal, key=work, node=node.address, outcome=outcome, paid=paid, slashed=slashed)
    await run.sync.round()
    await run.pool.dependencies.public.write()
    return Seeded(run=run, nodes=nodes, accepted=works[3], rejected=works[1], forged=works[2])


def judge(run: RunUnderTest, work: Digest, node: Key, outcome: Outcome) -> None:
    """Gives a verdict whose audit file has hostile texts."""
    reason = {Outcome.REJECTED: ReasonCode.SAMPLING_UNCONFIRMED, Outcome.FORGED: ReasonCode.SAMPLING_REPLAY}
    code = reason.get(outcome, ReasonCode.PASSED)
    finding = AuditFinding(reason=code, what=f"token 17 is 42, not 43 {MARKUP}", row=3, sample=3, group=0, position=17)
    rows = [
        AuditRow(
            row=row,
            group=0,
            sample=row,
            prompt_index=5,
            tokens=20,
            task=1.0,
            length_penalty=0.0,
            reward=1.0,
            audited=row % 2 == 1,
            figures={"replay.differing": row},
        )
        for row in range(4)
    ]
    failed = outcome is not Outcome.ACCEPTED
    audit = AuditFile(
        pool_id=POOL,
        key=work,
        validator=VALIDATOR.address,
        judged_at_ms=1_767_225_600_000,
        muster="0.1.0",
        outcome=outcome,
        reason=code,
        words=f"The tokens differ {MARKUP}" if failed else "All checks passed.",
        node=node.address,
        run=run_id(RUN),
        step=0,
        index=0,
        version=0,
        checkpoint=work,
        sha256=work,
        units=7,
        submitted_block=1,
        beacon_block=1,
        environment="letters",
        engine="torch",
        verifier_engine="torch",
        checks=(
            AuditCheck(name="format", state=CheckState.PASSED),
            AuditCheck(
                name="sampling",
                state=CheckState.FAILED if failed else CheckState.PASSED,
                findings=(finding,) if failed else (),
                found=1 if failed else 0,
                note=MARKUP,
            ),
        ),
        rows=tuple(rows),
    )
    content = audit.encode()
    hashed = digest(sha256(content).digest())
    store = run.pool.dependencies.objects
    assert isinstance(store, LocalStore)
    path = store.path(ObjectKey(pool_id=POOL, owner=VALIDATOR.address, sha256=hashed, audit=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    run.chain.head += 1
    run.chain.emit(
        VerdictGiven,
        key=work,
        node=node.address,
        validator=VALIDATOR.address,
        outcome=outcome,
        reason=int(code),
        audit_hash=hashed,
        decisive=False,
    )
