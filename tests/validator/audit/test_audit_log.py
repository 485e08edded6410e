"""The audit log of real epochs, and of a validator that recomputed other rows than the draw requires."""

from __future__ import annotations

import pytest

from ledger.events.types import SecretRevealed
from protocol.errors import NotFound
from protocol.identifiers import Address, Digest
from protocol.verdicts import Outcome
from protocol.wire.audits import AuditFile
from tests.kit.verdicts import verdict_on
from tests.kit.world import POOL, World
from tests.validator.audit.evidence import audit_of, hash_of
from tests.validator.audit.works import announced, submitted
from validator.audit.draw import RowDraw, draw_rows, row_seed
from validator.audit.epochs import Epochs
from validator.audit.log import AuditLog
from validator.audit.recompute import AuditComparison
from validator.domain.submissions import SubmittedWork

SHARE = 0.5
"""The audit floor of the world's pool."""


class Evidence:
    """A store of audit files."""

    def __init__(self) -> None:
        self._files: dict[tuple[Address, Digest], AuditFile] = {}

    def put(self, audit: AuditFile) -> Digest:
        self._files[audit.validator, hash_of(audit)] = audit
        return hash_of(audit)

    async def read(self, validator: Address, sha256: Digest) -> AuditFile:
        try:
            return self._files[validator, sha256]
        except KeyError:
            raise NotFound("there is no such object") from None


async def test_the_audit_log_of_an_epoch_finds_a_verdict_with_chosen_rows(world: World) -> None:
    await world.member()
    await announced(world)
    ledger, key = await world.as_("validator"), world.keys["validator"]
    epochs, store = Epochs(ledger, key, pool_id=POOL), Evidence()

    async def judged(work: SubmittedWork, *, honest: bool = True, stored: bool = True) -> None:
        secret = await epochs.secret_before(work.block)
        assert secret is not None
        await world.controls.mine()
        seed = row_seed(secret.secret, work.key, await ledger.block_hash(work.block + 1))
        rows = draw_rows(RowDraw(seed=seed, share=SHARE), 10)
        if not honest:  # the validator recomputes the required rows
            rows = tuple(row for row in range(10) if row not in rows)
        audit = audit_of(work, key.address, audited=rows, share=SHARE, epoch=secret.epoch, block=work.block + 1)
        sha256 = store.put(audit) if stored else hash_of(audit)
        assert await ledger.work.judge([await verdict_on(ledger, work.key, Outcome.ACCEPTED, audit_hash=sha256)]) == []

    await epochs.commit_next()
    works = [await submitted(world, index=index) for index in range(3)]
    await judged(works[0])
    await judged(works[1], honest=False)
    await epochs.commit_next()  # work of the first epoch that is judged in the second
    await judged(works[2], stored=False)
    of_the_second = await submitted(world, index=3)
    await judged(of_the_second)

    log = AuditLog(ledger, pool_id=POOL, read=store.read)
    await log.load()
    assert (log.validators(), log.past_epochs(key.address)) == ([key.address], [1])
    first = await log.of(key.address, 1)
    assert first.secret is None
    assert [line.comparison.finding for line in first.lines] == [AuditComparison.UNKNOWN] * 3
    with pytest.raises(NotFound, match="no past epoch 2"):
        await log.of(key.address, 2)

    await epochs.reveal(1)
    await epochs.commit_next()
    await epochs.reveal(2)
    await epochs.commit_next()  # an epoch without verdicts
    await log.load()
    assert log.newest_with_verdicts(key.address) == 2
    first, second = await log.of(key.address, 1), await log.of(key.address, 2)
    (revealed, _) = await ledger.history(SecretRevealed, pool_id=POOL)
    assert first.secret is not None
    assert "0x" + first.secret.hex() == revealed.secret
    findings = {line.verdict.work.index: line.comparison.finding for line in first.lines}
    assert findings == {0: AuditComparison.AGREES, 1: AuditComparison.DIFFERS, 2: AuditComparison.UNKNOWN}
    assert first.differs
    assert [(line.verdict.work.index, line.comparison.finding) for line in second.lines] == [
        (3, AuditComparison.AGREES)
    ]
    assert not second.differs
