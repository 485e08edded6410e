"""Reads the evidence of a verdict from its audit file, bounded for a page."""

from __future__ import annotations

import asyncio
from hashlib import sha256

from cachetools import LRUCache

from orchestrator.storage import ObjectStore
from orchestrator.store.run_rows import SlotRow
from protocol.errors import NotFound, TooLarge, Unavailable
from protocol.identifiers import Address, Digest, digest
from protocol.runtime.threads import run_in_thread
from protocol.verdicts import ReasonCode
from protocol.wire.audits import AuditFile
from protocol.wire.me import MOST_FINDINGS, EvidenceCheck, EvidenceFinding, EvidenceRow, WorkEvidence
from protocol.wire.uploads import ObjectKey

LARGEST_SHOWN = 2 * 1024 * 1024
"""Largest audit file that is read for a page, in bytes. Parsing one holds up other requests by some 0.1 s."""
CACHED = 64
"""Number of cached evidences; an audit file never changes, because its hash names it."""
AT_ONCE = 1
"""Maximum number of audit files that are read at the same time."""
WAITING = 32
"""Maximum number of audit files that are read or queued; requests for further ones are refused."""


def explanation_of(reason: int) -> str:
    """Returns the meaning of a reason code in one sentence."""
    return ReasonCode(reason).words if reason in set(ReasonCode) else f"reason {reason} of a newer release"


class EvidenceReader:
    """Reads evidence from the object store, and caches it. Requests for the same audit file share one read.

    Args:
        objects: Object store of the pool.
        pool_id: Number of the pool.
    """

    def __init__(self, objects: ObjectStore, *, pool_id: int) -> None:
        self._objects = objects
        self._pool_id = pool_id
        self._cached: LRUCache[Digest, WorkEvidence] = LRUCache(CACHED)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._reading: dict[Digest, asyncio.Task[WorkEvidence]] = {}

    async def read(self, row: SlotRow) -> WorkEvidence:
        """Returns the evidence of the present verdict on a work item.

        Raises:
            NotFound: The work has no verdict, or the store does not have an audit file about it.
            TooLarge: The audit file is too large for a page.
            InvalidInput: The file is malformed, so its validator is at fault.
            Unavailable: The store is down, or too many requests wait.
        """
        if row.judge is None or not row.audit_hash:
            raise NotFound(f"the work {row.key} has no verdict yet", hint="validators judge within the judge period")
        found = self._cached.get(row.audit_hash) or await self._shared(row.judge, row.audit_hash)
        if found.key != row.key:
            raise NotFound(f"this verdict's audit file is about other work, {found.key}", hint="tell the pool's owner")
        return found

    async def _shared(self, judge: Address, audit_hash: Digest) -> WorkEvidence:
        key = ObjectKey(pool_id=self._pool_id, owner=judge, sha256=audit_hash, audit=True)
        if (task := self._reading.get(audit_hash)) is None:
            if len(self._reading) >= WAITING:
                raise Unavailable("too many audit files are queued", hint="try again in some seconds")
            task = asyncio.create_task(self._read(key))
            self._reading[audit_hash] = task
            task.add_done_callback(lambda done: self._settle(audit_hash, done))
        return await asyncio.shield(task)

    async def _read(self, key: ObjectKey) -> WorkEvidence:
        async with self._turns:
            return await run_in_thread(_parse, await self._bytes(key), key.sha256)

    def _settle(self, audit_hash: Digest, done: asyncio.Task[WorkEvidence]) -> None:
        del self._reading[audit_hash]
        if not done.cancelled() and done.exception() is None:
            self._cached[audit_hash] = done.result()

    async def _bytes(self, key: ObjectKey) -> bytes:
        facts = await self._objects.head(key)
        if facts is None:
            raise NotFound(
                "the store does not have the audit file of this verdict",
                hint="the validator has not uploaded it yet, or the pool deleted it",
            )
        found = bytearray()
        async with self._objects.open(key) as pieces:
            async for piece in pieces:
                found += piece
                if len(found) > LARGEST_SHOWN:
                    break
        if max(facts.size, len(found)) > LARGEST_SHOWN:
            raise TooLarge(
                f"the audit file is larger than {LARGEST_SHOWN >> 20} MiB, the limit of this page",
                hint="`muster worker verdicts --work KEY` shows files of any size",
            )
        return bytes(found)


def _parse(content: bytes, expected: Digest) -> WorkEvidence:
    if digest(sha256(content).digest()) != expected:
        raise NotFound("the stored audit file does not have the hash on the ledger", hint="tell the pool's owner")
    audit = AuditFile.decode(content)
    findings = [
        EvidenceFinding(
            check=check.name,
            reason=each.reason,
            what=each.what,
            row=each.row,
            sample=each.sample,
            group=each.group,
            position=each.position,
        )
        for check in audit.checks
        for each in check.findings
    ]
    guilty = {each.row for each in findings}
    rows = sorted(
        (each for each in audit.rows if each.row in guilty or each.audited), key=lambda each: each.row not in guilty
    )
    return WorkEvidence(
        key=audit.key,
        validator=audit.validator,
        judged_at_ms=audit.judged_at_ms,
        outcome=audit.outcome,
        reason=audit.reason,
        words=audit.words,
        explanation=explanation_of(audit.reason),
        environment=audit.environment,
        engine=audit.engine,
        verifier_engine=audit.verifier_engine,
        audit_hash=expected,
        share=None if audit.draw is None else audit.draw.share,
        rows_total=len(audit.rows),
        rows_recomputed=sum(each.audited for each in audit.rows),
        checks=tuple(
            EvidenceCheck(name=each.name, state=each.state, found=each.found, note=each.note) for each in audit.checks
        ),
        findings=tuple(findings[:MOST_FINDINGS]),
        rows=tuple(
            EvidenceRow(
                row=each.row,
                group=each.group,
                sample=each.sample,
                tokens=each.tokens,
                reward=each.reward,
                recomputed=each.audited,
                figures=each.figures,
            )
            for each in rows[:MOST_FINDINGS]
        ),
    )
