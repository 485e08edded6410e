"""The path from a submission to a verdict on the ledger, with failures at every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.client import Ledger
from ledger.client.work import Verdict, WorkStatus
from ledger.errors import ChainUnavailable, TransactionNotMined
from ledger.events.types import VerdictGiven, WorkDisputed, WorkSubmitted
from orchestrator.storage.interface import ObjectFacts
from orchestrator.storage.local import LocalStore
from protocol.http.object_transfer import TransferError
from protocol.identifiers import ZERO_DIGEST, Digest
from protocol.leases import Lease
from protocol.leases import WorkClaim as WorkWords
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import CheckState
from protocol.wire.leases import SignedLease, SignedWorkClaim
from protocol.wire.uploads import ObjectKey
from tests.kit.run_on_chain import publish
from tests.kit.scripted_examiner import concluded
from tests.kit.submissions import work
from tests.kit.validators import PoolWithValidators, ValidatorUnderTest
from tests.kit.world import POOL, TERMS, World
from validator.chain.connection import NotPoolValidator
from validator.examination.interface import Examination, HashedFile, IsCopy, NotJudged
from validator.files import AuditFileWrong, FileAbsent, OrchestratorRefuses
from validator.store.records import Judged

LEASE = timedelta(seconds=31)
FORGED = concluded(Outcome.FORGED, ReasonCode.COMPUTATION_OTHER_MODEL, words="another model")


async def verdicts(pool: PoolWithValidators) -> list[VerdictGiven]:
    return await (await pool.ledger()).history(VerdictGiven, pool_id=POOL)


async def queued(validator: ValidatorUnderTest) -> tuple[int, int]:
    """Returns the number of items that still have to be judged, and the number of parked items."""
    found = await validator.dependencies.queue.lengths()
    return found.waiting + found.ready + found.in_hand, found.parked


async def test_a_submission_becomes_a_verdict_with_readable_evidence(pool: PoolWithValidators) -> None:
    validator = pool.validator()
    key = await pool.submit(b"rollouts")
    assert await validator.judge() == 1
    work = await pool.work(key)
    assert (work.status, work.outcome, work.judge) == (WorkStatus.PROVISIONAL, Outcome.ACCEPTED, validator.key.address)
    assert validator.examiner.contents == [b"rollouts"]
    audit = await pool.audit(validator, key)
    assert (audit.key, audit.node, audit.sha256, audit.reason) == (key, pool.node.address, work.sha256, 0)
    assert audit.draw is not None
    assert (audit.draw.share, audit.draw.why) == (1.0, "a new node: 0 of 8 clean verdicts")
    assert await queued(validator) == (0, 0)
    assert not list((pool.directory / "validator-0" / "work").iterdir()), "the file is deleted"
    shown = await validator.status()
    assert shown["verdicts"] == [{"outcome": "accepted", "reason": "passed", "count": 1}]
    assert shown["latency"]["of"] == 1
    database = pool.run.pool.dependencies.database
    still_open = await database.ask("ZCARD", database.key("uploads", validator.key.address))
    assert still_open == 0, "the store was asked for the evidence, which closes the upload ticket"


async def test_forged_work_costs_stake_when_final_and_unjudged_work_costs_nothing(
    pool: PoolWithValidators,
) -> None:
    validator = pool.validator()
    forged, unjudged = await pool.submit(), await pool.submit()
    validator.examiner.answers[forged] = FORGED
    # A numerics class that no validator of the pool can reproduce: the file is parked until the ledger's deadline.
    validator.examiner.answers[unjudged] = NotJudged(code="class-not-reproduced", why="sm_90", retryable=False)
    await validator.judge()
    ledger, provider = await pool.ledger(), (await pool.work(forged)).provider
    before = await ledger.stake.of(provider)
    assert await validator.loops.finalising.round() == 0, "its windows are open"
    (parked,) = (await validator.status())["parked"]
    deadline = (await pool.work(unjudged)).deadline
    assert deadline is not None
    assert parked["deadline_ms"] <= deadline.timestamp() * 1000, "an operator sees how much time is left"

    await pool.world.warp(timedelta(hours=1, seconds=2))
    assert await validator.loops.finalising.round() == 1
    assert (await pool.work(unjudged)).status is WorkStatus.EXPIRED
    await pool.world.warp(timedelta(hours=1, seconds=2))
    assert await validator.loops.finalising.round() == 1
    after = await ledger.stake.of(provider)
    assert before.active - after.active == (await pool.work(forged)).penalty
    assert await ledger.pools.membership(POOL, pool.node.address) is None, "the node is no longer a member"
    await validator.read()
    assert await queued(validator) == (0, 0), "expired work is no longer parked"
    assert await validator.dependencies.deadlines.count() == 0


class Killed(BaseException):
    """Simulates `kill -9`: no later code runs."""


async def _die(*_: object, **__: object) -> None:
    raise Killed


def _during_examination(dying: ValidatorUnderTest, patch: pytest.MonkeyPatch) -> None:
    dying.examiner.otherwise = Killed()


def _before_the_evidence(dying: ValidatorUnderTest, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(dying.dependencies.files), "store", _die)


def _before_it_is_staged(dying: ValidatorUnderTest, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(dying.dependencies.queue), "stage", _die)


def _before_it_is_sent(dying: ValidatorUnderTest, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(dying.loops.verdict_senders[0]), "_send", _die)


def _after_it_was_sent(dying: ValidatorUnderTest, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(dying.loops.verdict_senders[0]), "_settle", _die)


STAGES: tuple[tuple[Callable[[ValidatorUnderTest, pytest.MonkeyPatch], None], bool], ...] = (
    (_during_examination, True),
    (_before_the_evidence, True),
    (_before_it_is_staged, True),
    (_before_it_is_sent, False),
    (_after_it_was_sent, False),
)
"""Functions that kill the validator at a stage, each with True if the next holder must examine the work again."""


async def test_a_validator_killed_at_any_stage_loses_no_work_and_judges_none_twice(
    pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (kill, examined_again) in enumerate(STAGES):
        dying = pool.validator()
        key = await pool.submit()
        with monkeypatch.context() as patch:
            kill(dying, patch)
            with pytest.raises(Killed):
                await dying.judge()
        heir = pool.validator()
        await heir.judge()
        assert heir.examiner.asked == [], "the dead validator's lease is still valid"
        await pool.turn(LEASE)
        await heir.judge()
        assert (await pool.work(key)).outcome is Outcome.ACCEPTED
        assert len(await verdicts(pool)) == number + 1
        assert len(heir.examiner.asked) == int(examined_again), kill.__name__
        assert await queued(heir) == (0, 0)
        for each in (dying, heir):  # so that the next one need not wait for the end of their leases in Redis' own time
            await each.loops.intake.aclose()


async def test_validators_on_one_redis_share_the_work_and_only_the_author_sends_a_staged_verdict(
    pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pool.validator("validator"), pool.validator("second")
    keys = [await pool.submit() for _ in range(3)]
    with monkeypatch.context() as patch:
        _before_it_is_sent(first, patch)
        with pytest.raises(Killed):
            await first.judge()
    await pool.turn(LEASE)
    assert await second.judge() == 3
    judges = {given.key: given.validator for given in await verdicts(pool)}
    assert judges == dict.fromkeys(keys, second.key.address)
    for key in keys:
        assert (await pool.audit(second, key)).validator == second.key.address, "each audit file is the sender's own"


async def test_independent_validators_take_turns_and_replace_a_dead_one(pool: PoolWithValidators) -> None:
    turns: dict[str, Any] = {"takeover_s": 50, "awake_s": 3600}
    pair = [pool.validator("validator", redis=1, **turns), pool.validator("second", redis=2, **turns)]
    for each in pair:
        await each.loops.audit.epochs()  # its commitment shows on the ledger that the validator is live
        await each.read()
    keys = [await pool.submit() for _ in range(3)]
    for each in pair:
        await each.judge()
    at_once = {given.key for given in await verdicts(pool)}
    assert at_once == set(keys), "each began with its own items, and none waits"
    asked = [{examination.facts.work.key for examination in each.examiner.asked} for each in pair]
    assert not asked[0] & asked[1], "no item was examined twice"

    more = [await pool.submit() for _ in range(3)]
    alive, dead = pair
    await alive.judge()
    left = len(more) - (len(await verdicts(pool)) - len(at_once))
    await pool.turn(timedelta(seconds=51))
    assert await alive.judge() == left
    assert len(await verdicts(pool)) == 6
    await dead.judge()
    assert len(dead.examiner.asked) + len(alive.examiner.asked) == 6, "the late validator finds them judged"


async def test_a_chain_outage_only_delays_verdicts(pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch) -> None:
    validator = pool.validator()
    key = await pool.submit()
    await validator.read()

    async def down(*_: object) -> None:
        raise ChainUnavailable("the chain is down")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "newest", down)
        for _ in range(12):
            await validator.loops.judging.round()
            await pool.turn(timedelta(minutes=1))
    assert await queued(validator) == (1, 0), "an outage of any length is no reason to park it"
    await validator.judge()
    assert (await pool.work(key)).outcome is Outcome.ACCEPTED


async def test_a_verdict_with_an_unknown_outcome_is_looked_up_before_it_is_sent_again(
    pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch
) -> None:
    validator = pool.validator()
    ledger = await validator.dependencies.chain.ledger()
    judge = ledger.work.judge
    for number, mined in enumerate((True, False), 1):
        key = await pool.submit()

        async def lost(items: list[Verdict], *, mined: bool = mined) -> None:
            if mined:
                await judge(items)
            raise TransactionNotMined("no receipt came")

        with monkeypatch.context() as patch:
            patch.setattr(ledger.work, "judge", lost)
            with pytest.raises(TransactionNotMined):
                await validator.judge()
        assert await validator.loops.verdict_senders[0].round() == (0 if mined else 1)
        assert (await pool.work(key)).outcome is Outcome.ACCEPTED
        assert len(await verdicts(pool)) == number
        assert await queued(validator) == (0, 0)
        assert (await validator.status())["verdicts"][0]["count"] == number


@pytest.mark.parametrize("waited", [timedelta(seconds=3), timedelta()], ids=["waited", "being-sent"])
async def test_a_late_first_verdict_never_decides_a_dispute(pool: PoolWithValidators, waited: timedelta) -> None:
    """The validator reads the work's record before it sends a verdict that has waited.

    The contract refuses a first verdict whose transaction is mined only after the dispute was opened.
    """
    late, other = pool.validator("validator", redis=1), pool.validator("second", redis=2)
    key = await pool.submit()
    late.examiner.answers[key] = FORGED
    await late.read()
    await late.loops.judging.round()  # stages the verdict; no transaction is sent for a while
    await pool.turn(waited)
    other.examiner.answers[key] = FORGED
    assert await other.judge() == 1
    await (await pool.world.as_("provider")).work.dispute(key, ZERO_DIGEST)
    assert await late.loops.verdict_senders[0].round() == 0
    assert (await pool.work(key)).status is WorkStatus.DISPUTED, "only an examination of the dispute decides it"
    assert await queued(late) == (0, 0)
    late.examiner.answers[key] = concluded()
    await late.loops.audit.verdicts()
    await its_turn(pool, late, key)
    assert await late.judge() == 1
    work = await pool.work(key)
    assert (work.status, work.outcome) == (WorkStatus.FINAL, Outcome.ACCEPTED)
    assert len(late.examiner.asked) == 2


async def its_turn(pool: PoolWithValidators, validator: ValidatorUnderTest, key: Digest) -> None:
    """Lets blocks and time pass until a validator may decide a dispute."""
    await pool.world.controls.mine(2)
    ledger = await pool.ledger()
    opens_at = await ledger.work.turn_of(key, validator.key.address)
    assert opens_at is not None
    await pool.world.warp(max(timedelta(), opens_at - await ledger.now()) + timedelta(seconds=1))


async def in_order(
    pool: PoolWithValidators, key: Digest, validators: list[ValidatorUnderTest]
) -> list[ValidatorUnderTest]:
    """Returns the validators that may decide a dispute, in the ledger's order."""
    await pool.world.controls.mine(2)
    ledger = await pool.ledger()
    turns = [await ledger.work.turn_of(key, each.key.address) for each in validators]
    ranked = sorted(zip(turns, range(len(validators)), strict=True), key=lambda each: (str(each[0]), each[1]))
    return [validators[number] for _, number in ranked]


async def test_disputes_are_decided_in_the_ledgers_order_without_early_examinations(
    pool: PoolWithValidators,
) -> None:
    judge, *others = [
        pool.validator(name, redis=number) for number, name in enumerate(("validator", "second", "third"), start=1)
    ]
    key = await pool.submit()
    judge.examiner.answers[key] = FORGED
    await judge.judge()
    await (await pool.world.as_("provider")).work.dispute(key, ZERO_DIGEST)
    first, later = await in_order(pool, key, others)
    for each in (later, first):
        await each.loops.audit.verdicts()
        await each.read()
    assert await later.judge() == 0
    assert (await queued(later), later.examiner.asked) == ((1, 0), [])
    assert await first.judge() == 1
    work = await pool.work(key)
    assert (work.status, work.outcome) == (WorkStatus.FINAL, Outcome.ACCEPTED)
    await pool.turn(timedelta(hours=1))
    assert await later.judge() == 0
    assert (await queued(later), later.examiner.asked) == ((0, 0), [])


async def test_a_verdict_out_of_turn_is_sent_again_at_its_turn_without_another_examination(
    pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, *others = [
        pool.validator(name, redis=number) for number, name in enumerate(("validator", "second", "third"), start=1)
    ]
    key = await pool.submit()
    judge.examiner.answers[key] = FORGED
    await judge.judge()
    await (await pool.world.as_("provider")).work.dispute(key, ZERO_DIGEST)
    _, later = await in_order(pool, key, others)
    await later.loops.audit.verdicts()

    async def at_once(*_: object) -> timedelta:
        return timedelta()

    with monkeypatch.context() as patch:  # as with a clock that is far ahead
        patch.setattr(later.loops.judging, "_until_turn", at_once)
        assert await later.judge() == 0
    assert (await pool.work(key)).status is WorkStatus.DISPUTED
    assert await queued(later) == (1, 0), "it is never parked"
    await its_turn(pool, later, key)
    await pool.turn(timedelta(seconds=10))
    assert await later.judge() == 1
    assert (await pool.work(key)).status is WorkStatus.FINAL
    assert len(later.examiner.asked) == 1


async def test_invented_rewards_are_disputed_with_evidence_that_names_the_rows(
    pool: PoolWithValidators,
) -> None:
    wrong, right = pool.validator(), pool.validator("second", redis=2, looks_at_accepted=1)
    honest = concluded()
    wrong.examiner.otherwise = concluded(
        rows=tuple(each.model_copy(update={"reward": -each.reward}) if each.reward else each for each in honest.rows)
    )
    key = await pool.submit()
    await wrong.judge()
    await right.loops.audit.verdicts()
    await right.judge()
    work = await pool.work(key)
    assert (work.status, work.disputer) == (WorkStatus.DISPUTED, right.key.address)
    (disputed,) = await (await pool.ledger()).history(WorkDisputed, pool_id=POOL)
    audit = await right.dependencies.files.audit(right.key.address, disputed.evidence_hash)
    (check,) = [each for each in audit.checks if each.name == "second-look"]
    assert (check.state, [each.row for each in check.findings]) == (CheckState.FAILED, [0, 1])
    assert not list((pool.directory / "validator-1" / "work").iterdir()), "the other audit file is deleted"


@pytest.mark.parametrize("content", [None, b"other bytes"], ids=["missing", "other"])
async def test_a_wrong_audit_file_is_distinguished_from_a_store_outage(
    pool: PoolWithValidators, content: bytes | None
) -> None:
    validator = pool.validator()
    await pool.submit()
    await validator.judge()
    [given] = await verdicts(pool)
    assert (await validator.dependencies.files.audit(given.validator, given.audit_hash)).key == given.key
    store = pool.run.pool.dependencies.objects
    assert isinstance(store, LocalStore)
    path = store.path(ObjectKey(pool_id=POOL, owner=given.validator, sha256=given.audit_hash, audit=True))
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(AuditFileWrong):
        await validator.dependencies.files.audit(given.validator, given.audit_hash)

    async def down(*_: object, **__: object) -> None:
        raise TransferError("no route to the store")

    path.write_bytes(b"there")
    validator.dependencies.remote.transfer.fetch = down  # type: ignore[assignment,method-assign]
    with pytest.raises(TransferError):
        await validator.dependencies.files.audit(given.validator, given.audit_hash)


async def test_a_paid_second_look_is_confirmed_on_the_ledger_and_counted(
    pool: PoolWithValidators,
) -> None:
    owner = await pool.world.as_("owner")
    await owner.pools.set_terms(POOL, replace(TERMS, look_bps=10_000))
    await pool.world.warp(TERMS.notice_period + timedelta(seconds=1))
    await pool.turn(TERMS.notice_period)
    judge, *others = [
        pool.validator(name, redis=number, looks_at_accepted=0, takeover_s=60)
        for number, name in enumerate(("validator", "second", "third"), start=1)
    ]
    key = await pool.submit()
    await judge.judge()
    await pool.world.controls.mine(2)
    for each in (judge, *others):
        await each.loops.audit.verdicts()
        await each.judge()
    work = await pool.work(key)
    assert work.looker in {each.key.address for each in others}
    assert sorted(len(each.examiner.asked) for each in others) == [0, 1], "the other validator has a later turn"
    await pool.turn(timedelta(minutes=5))
    for each in (judge, *others):
        await each.loops.audit.verdicts()
        await each.judge()
    assert sorted(len(each.examiner.asked) for each in others) == [0, 1], "one second look is paid"
    assert sorted(each.dependencies.progress.looks.confirmed for each in others) == [0, 1]
    assert {"confirmed", "contradicted"} <= set((await judge.status())["looks"])
    assert [await queued(each) for each in others] == [(0, 0), (0, 0)]


async def test_rows_are_drawn_only_while_the_secret_cannot_have_been_revealed(
    pool: PoolWithValidators,
) -> None:
    """A node that uploads after the reveal knows which rows are drawn."""
    validator = pool.validator(trial=1)
    await validator.loops.audit.epochs()
    await pool.submit()
    await validator.judge()
    await validator.loops.audit.verdicts()
    epochs = (await validator.dependencies.chain.connected()).epochs

    async def judged(key: Digest) -> tuple[float, str, int | None]:
        await pool.world.controls.mine(2)
        await pool.turn(timedelta(minutes=2))
        assert await validator.judge() == 1
        audit = await pool.audit(validator, key)
        assert audit.draw is not None
        assert audit.draw.share == validator.examiner.asked[-1].draw.share
        return audit.draw.share, audit.draw.why, audit.draw.epoch

    share, _, epoch = await judged(await pool.submit())
    assert (share, epoch) == (0.5, 1), "the epoch continues"
    late = await pool.submit()
    await epochs.commit_next()  # from now on the secret may be revealed
    share, why, epoch = await judged(late)
    assert (share, why, epoch) == (
        1.0,
        "epoch 1 ended before the file was downloaded, so all rows are recomputed",
        None,
    )
    share, _, epoch = await judged(await pool.submit())
    assert (share, epoch) == (0.5, 2)
    absent = await pool.submit(b"absent at first", uploaded=False)
    assert await validator.judge() == 0
    pool.path_of((await pool.work(absent)).sha256).write_bytes(b"absent at first")
    share, why, epoch = await judged(absent)
    assert (share, why, epoch) == (
        1.0,
        "the file was not in the store at the first attempt, so all rows are recomputed",
        None,
    )


async def test_after_a_siblings_forgery_all_rows_of_a_proven_node_are_recomputed(pool: PoolWithValidators) -> None:
    validator = pool.validator(trial=1)
    await validator.loops.audit.epochs()
    await pool.submit()
    await validator.judge()
    await validator.loops.audit.verdicts()
    provider = pool.world.keys["provider"].address
    now = await (await pool.ledger()).now()
    sibling = Judged(key=ZERO_DIGEST, outcome=Outcome.FORGED, own=False, at=now, place=(1 << 30, 0))
    drawn = []
    for found in ([], [sibling]):
        await validator.dependencies.records.note_provider(provider, found)
        key = await pool.submit()
        await pool.world.controls.mine(2)
        assert await validator.judge() == 1
        audit = await pool.audit(validator, key)
        assert audit.draw is not None
        drawn.append(audit.draw)
    assert [each.share for each in drawn] == [0.5, 1.0]
    assert drawn[-1].why.startswith("another node of its provider forged work on ")


async def test_a_validator_waits_for_a_missing_file_and_its_work_expires_without_blame(
    pool: PoolWithValidators,
) -> None:
    validator = pool.validator()
    key = await pool.submit(b"late", uploaded=False)
    for _ in range(20):
        await validator.judge()
        await pool.turn(timedelta(minutes=1))
    assert await queued(validator) == (1, 0)
    assert validator.examiner.asked == []
    await pool.world.warp(timedelta(hours=1, seconds=2))
    await validator.loops.finalising.round()
    assert (await pool.work(key)).status is WorkStatus.EXPIRED
    await validator.read()
    assert await queued(validator) == (0, 0)


async def test_a_long_store_outage_parks_nothing(pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch) -> None:
    validator = pool.validator(attempts=2)
    key = await pool.submit()

    async def down(*_: object, **__: object) -> None:
        raise TransferError("the store answered 500")

    with monkeypatch.context() as patch:
        patch.setattr(type(validator.dependencies.remote.transfer), "fetch", down)
        for _ in range(5):
            await validator.judge()
            await pool.turn(timedelta(minutes=1))
    assert await queued(validator) == (1, 0)
    assert await validator.judge() == 1
    assert (await pool.work(key)).outcome is Outcome.ACCEPTED


async def test_work_that_kills_every_validator_that_takes_it_is_parked(pool: PoolWithValidators) -> None:
    validator = pool.validator(attempts=2)
    await pool.submit()
    await validator.read()
    for _ in range(2):
        assert await validator.dependencies.queue.take() is not None
        await pool.turn(LEASE)
    await validator.judge()
    [item] = (await validator.get("/v1/parked")).json()["items"]
    assert item["code"] == "lost-again-and-again"
    assert validator.examiner.asked == []


async def test_a_staged_verdict_is_sent_however_often_its_holder_dies(pool: PoolWithValidators) -> None:
    validator = pool.validator(attempts=1)
    key = await pool.submit()
    await validator.read()
    await validator.loops.judging.round()
    assert validator.loops.verdicts.next(most=9), "and dies there"
    await pool.turn(LEASE)
    assert await validator.judge() == 1
    assert (await pool.work(key)).outcome is Outcome.ACCEPTED
    assert len(validator.examiner.asked) == 1


async def test_a_staged_verdict_survives_a_chain_outage_and_its_holders_return(
    pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch
) -> None:
    validator = pool.validator(attempts=1)
    key = await pool.submit()
    await validator.read()
    await validator.loops.judging.round()
    assert validator.loops.verdicts.next(most=9), "and dies there"
    await pool.turn(LEASE)

    async def down(*_: object) -> None:
        raise ChainUnavailable("the chain is down")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "newest", down)
        await validator.loops.judging.round()
        await pool.turn(timedelta(minutes=1))
    assert await queued(validator) == (1, 0)
    assert await validator.judge() == 1
    assert (await pool.work(key)).outcome is Outcome.ACCEPTED
    assert len(validator.examiner.asked) == 1


async def test_a_file_is_kept_for_its_holder_when_an_earlier_holder_in_the_process_finishes(
    pool: PoolWithValidators,
) -> None:
    """A process that was suspended for longer than a lease goes on with its old item, and also takes it again."""
    validator = pool.validator()
    await pool.submit()
    await validator.read()
    item, files = await validator.dependencies.queue.take(), validator.dependencies.files
    assert item is not None
    listed = await files.listed(item.work)
    async with files.fetched(item, listed) as ours:
        async with files.fetched(replace(item, token="earlier"), listed):
            pass
        assert isinstance(ours, Path)
        assert ours.exists()


async def test_a_store_that_returns_other_bytes_is_never_blamed_on_the_node(pool: PoolWithValidators) -> None:
    validator = pool.validator(attempts=3)
    key = await pool.submit(b"honest")
    path = pool.path_of((await pool.work(key)).sha256)
    path.write_bytes(b"forged")
    for _ in range(4):
        await validator.judge()
        await pool.turn(timedelta(minutes=1))
    [item] = (await validator.get("/v1/parked")).json()["items"]
    assert (item["key"], item["code"], item["attempts"]) == (key, "other-bytes", 3)
    assert "object store is broken" in item["hint"]
    assert await verdicts(pool) == []
    path.write_bytes(b"honest")
    assert (await validator.get(f"/v1/parked/{key}/retry", "POST")).json() == {"ids": [f"{key}.first"]}
    assert await validator.judge() == 1


async def test_a_file_above_the_reading_limit_is_hashed_and_not_kept(
    pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validator.files.LARGEST_OBJECT", 5000)
    validator = pool.validator(file_most_bytes=1000)
    validator.examiner.otherwise = FORGED
    kept: list[str] = []

    async def before(*_: object) -> None:
        kept.extend(path.name for path in (pool.directory / "validator-0" / "work").rglob("*") if path.is_file())

    validator.examiner.before = before
    large, larger = await pool.submit(bytes(5000)), await pool.submit(bytes(5001))
    assert await validator.judge() == 1
    sha256 = (await pool.work(large)).sha256
    assert [each.file for each in validator.examiner.asked] == [HashedFile(sha256=sha256, size=5000)]
    assert kept == []
    [item] = (await validator.get("/v1/parked")).json()["items"]
    assert (item["key"], item["code"]) == (larger, "file-too-large"), (
        "no store may hold such a file, so it is not downloaded"
    )
    assert "5001 bytes" in item["why"]
    assert "the limit is 5000" in item["why"]


async def test_other_bytes_of_a_large_file_are_never_blamed_on_the_node(
    pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only bytes with the hash on the ledger prove the size of a submitted file."""
    validator = pool.validator(attempts=1, file_most_bytes=1000)
    for number, served in enumerate((b"x" * 5000, b"x" * 6000, b"x" * 1001, b"honest")):
        key = await pool.submit(bytes(5000) + b"%d" % number)
        pool.path_of((await pool.work(key)).sha256).write_bytes(served)
    await pool.submit(b"small")
    head = LocalStore.head

    async def overstated(store: LocalStore, key: ObjectKey) -> ObjectFacts | None:
        found = await head(store, key)
        return found and ObjectFacts(size=found.size + 5000)

    await validator.judge()
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "head", overstated)
        await pool.submit(b"honest, and larger by the store's word")
        await validator.judge()
    parked = (await validator.get("/v1/parked")).json()["items"]
    assert [each["code"] for each in parked] == ["other-bytes"] * 5
    assert validator.examiner.contents == [b"small"]
    assert [each.outcome for each in await verdicts(pool)] == [Outcome.ACCEPTED]


async def test_no_verdict_is_given_without_its_evidence_in_the_store(
    pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch
) -> None:
    validator = pool.validator(attempts=2)
    validator.examiner.otherwise = FORGED
    key = await pool.submit()

    async def full(*_: object, **__: object) -> None:
        raise FileAbsent("the store is full", code="storage-full")

    with monkeypatch.context() as patch:
        patch.setattr(type(validator.dependencies.remote.transfer), "put", full)
        for _ in range(3):
            await validator.judge()
            await pool.turn(timedelta(minutes=1))
    assert await verdicts(pool) == []
    assert (await queued(validator))[1] == 1
    await validator.get("/v1/parked/retry?code=other", "POST")
    assert (await queued(validator))[1] == 1
    await validator.get("/v1/parked/retry?code=storage-full", "POST")
    assert await validator.judge() == 1
    assert (await pool.work(key)).outcome is Outcome.FORGED


async def test_unjudgeable_work_is_parked_and_a_persons_decision_is_written_to_the_ledger(
    pool: PoolWithValidators,
) -> None:
    validator = pool.validator()
    validator.examiner.otherwise = NotJudged(
        code="no-calibration", why="no limits for it", retryable=False, hint="`muster validator calibrate`"
    )
    key = await pool.submit()
    assert await validator.judge() == 0
    [item] = (await validator.status())["parked"]
    assert (item["code"], item["why"], item["hint"]) == (
        "no-calibration",
        "no limits for it",
        "`muster validator calibrate`",
    )
    path = f"/v1/parked/{key}.first/resolve"
    refused = await validator.get(path, "POST", {"outcome": "forged", "words": "I think so"})
    assert refused.status_code == 422, "a person's decision never slashes"
    answer = await validator.get(path, "POST", {"outcome": "rejected", "words": "the engine is not allowed"})
    assert answer.status_code == 200, answer.text
    assert await validator.judge() == 1
    work, audit = await pool.work(key), await pool.audit(validator, key)
    assert (work.outcome, work.reason) == (Outcome.REJECTED, ReasonCode.RESOLVED_BY_HAND)
    assert audit.words == f"decided by {validator.key.address}: the engine is not allowed"
    again = await validator.get(f"/v1/parked/{key}/retry", "POST")
    assert (again.status_code, again.json()["code"]) == (404, "not-parked")


async def test_an_examiner_that_crashes_or_lacks_a_policy_is_tried_again(pool: PoolWithValidators) -> None:
    validator = pool.validator()
    missing, crashing = await pool.submit(), await pool.submit()
    validator.examiner.answers[missing] = NotJudged(code="no-policy", why="no relay has it", retryable=True)
    validator.examiner.answers[crashing] = ZeroDivisionError("a bug in Muster")
    assert await validator.judge() == 0
    validator.examiner.answers.clear()
    await pool.turn(timedelta(seconds=2))
    assert await validator.judge() == 2
    assert {given.outcome for given in await verdicts(pool)} == {Outcome.ACCEPTED}


async def test_after_a_loss_of_redis_the_state_is_restored_from_the_ledger(pool: PoolWithValidators) -> None:
    validator = pool.validator()
    judged = [await pool.submit(), await pool.submit()]
    assert await validator.judge() == 2
    waiting = await pool.submit()
    await validator.read()
    await validator.dependencies.redis.flushdb()
    reborn = pool.validator()
    assert await reborn.judge() == 1
    assert [examination.facts.work.key for examination in reborn.examiner.asked] == [waiting]
    assert {given.key for given in await verdicts(pool)} == {*judged, waiting}
    assert await reborn.dependencies.deadlines.count() == 3, "and all of them will be released"


async def test_a_verdict_lost_by_the_chain_is_given_again(pool: PoolWithValidators, world: World) -> None:
    validator = pool.validator()
    key = await pool.submit()
    await validator.read()
    before = await world.controls.snapshot()
    await validator.judge()
    await validator.read()
    assert (await pool.work(key)).status is WorkStatus.PROVISIONAL
    await world.controls.revert(before)
    await world.controls.mine(2)
    await validator.judge()
    assert (await pool.work(key)).status is WorkStatus.SUBMITTED, "its transaction may still be mined again"
    await pool.turn(timedelta(seconds=6))
    assert await validator.judge() == 1
    assert (await pool.work(key)).status is WorkStatus.PROVISIONAL


async def again(pool: PoolWithValidators, event: WorkSubmitted) -> SignedWorkClaim:
    """Returns the submission of an event under another lease for the same slot."""
    ledger = await pool.ledger()
    lease = Lease(
        pool_id=event.pool_id,
        run=event.run,
        step=event.step,
        index=event.index,
        node=event.node,
        version=event.version,
        digest=event.checkpoint,
        beacon_block=event.beacon_block,
        salt=event.salt,
        groups=event.groups,
        max_units=event.max_units,
        expiry=int((await ledger.now()).timestamp()) + 600,
    )
    word, domain = WorkWords(lease_hash=lease.hash, sha256=event.sha256, units=event.units), ledger.work.domain
    signature = lease.sign(pool.world.keys["orchestrator"], domain)
    return SignedWorkClaim(
        lease=SignedLease.of(lease, domain=domain, signature=signature),
        sha256=event.sha256,
        units=event.units,
        signature="0x" + word.sign(pool.node, domain).hex(),
    )


async def test_a_verdict_on_a_replaced_submission_is_refused_and_the_new_one_is_judged(
    pool: PoolWithValidators, world: World
) -> None:
    validator, ledger = pool.validator(), await pool.ledger()
    before = await world.controls.snapshot()
    replaced, other = await pool.submit(), await pool.submit()
    events = {each.key: each for each in await ledger.history(WorkSubmitted, pool_id=POOL)}
    await validator.read()
    await validator.loops.judging.round()  # both are examined, and their verdicts are being sent
    await world.controls.revert(before)
    another = await again(pool, replace(events[replaced], units=6))
    assert await ledger.work.submit_batch([another, await again(pool, events[other])]) == []
    assert await validator.loops.verdict_senders[0].round() == 1, "the other verdict of the batch"
    assert (await pool.work(replaced)).status is WorkStatus.SUBMITTED
    assert (await pool.work(other)).status is WorkStatus.PROVISIONAL
    await world.controls.mine(2)
    assert await validator.judge() == 1
    work = await pool.work(replaced)
    assert (work.status, work.units) == (WorkStatus.PROVISIONAL, 6)
    assert await queued(validator) == (0, 0)


async def test_no_work_is_judged_by_a_version_removed_by_a_reorg(pool: PoolWithValidators, world: World) -> None:
    validator, ledger = pool.validator(), await pool.ledger()
    before = await world.controls.snapshot()
    await publish(pool.run, world, 1)
    await pool.run.sync.round()
    key = await pool.submit(step=1)
    [submitted] = await ledger.history(WorkSubmitted, pool_id=POOL)
    assert submitted.version == 1
    assert await validator.judge() == 1, "and the version is cached"
    await world.controls.revert(before)
    await world.controls.mine(3)
    assert await ledger.work.submit_batch([await again(pool, submitted)]) == []
    await pool.turn(timedelta(seconds=6))
    assert await validator.judge() == 0
    assert len(validator.examiner.asked) == 1
    assert (await pool.work(key)).status is WorkStatus.SUBMITTED
    assert await queued(validator) == (1, 0), "it may be announced again"


async def test_outputs_seen_before_are_reported_to_the_examiner_as_a_copy(pool: PoolWithValidators) -> None:
    validator = pool.validator()
    said: list[tuple[Digest, bool]] = []

    async def ask(examination: Examination, is_copy: IsCopy) -> None:
        said.append((examination.facts.work.key, await is_copy(Digest("0x" + "ab" * 32))))

    validator.examiner.before = ask
    first, second = await pool.submit(), await pool.submit()
    await validator.judge()
    assert sorted(copy for _, copy in said) == [False, True]
    assert {key for key, _ in said} == {first, second}


async def test_callers_without_the_key_or_a_token_can_read_and_change_nothing(pool: PoolWithValidators) -> None:
    validator = pool.validator()
    for path, method in (
        ("/v1/status", "GET"),
        ("/v1/parked", "GET"),
        (f"/v1/parked/{'0x' + '11' * 32}/retry", "POST"),
    ):
        assert (await validator.get(path, method, key=pool.node)).status_code == 403
    assert (await validator.get("/v1/parked/nonsense/retry", "POST")).status_code == 400


async def test_a_key_that_is_no_validator_of_the_pool_takes_no_work_and_parks_none(pool: PoolWithValidators) -> None:
    stranger = pool.validator("provider", redis=2)
    await pool.submit()
    await stranger.read()
    with pytest.raises(NotPoolValidator, match="is not a validator of pool"):
        await stranger.loops.judging.round()
    assert await queued(stranger) == (1, 0)
    assert (await stranger.status())["seated"] is False
    with pytest.raises(OrchestratorRefuses):
        await stranger.dependencies.files.listed(work(1))
