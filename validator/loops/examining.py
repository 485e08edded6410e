"""Examines the file of a submission: downloads it, gathers its facts, runs the checks, and stores the audit file."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from ledger.client.work import WorkRecord
from protocol.errors import MusterError
from protocol.identifiers import Digest
from protocol.runtime.tracing import Tracer, WorkSpans
from protocol.runtime.waiting import cancel_all
from protocol.wire.audits import AuditFile
from protocol.wire.listings import RolloutItem
from protocol.wire.runs import CheckpointRef
from validator.chain.checkpoints import CheckpointLookup
from validator.chain.connection import PoolChain
from validator.domain.items import Item, ItemKind
from validator.domain.submissions import WorkFacts
from validator.examination.interface import Conclusion, Examination, Examiner, NotJudged
from validator.files import WorkFiles
from validator.metrics import ValidatorMetrics
from validator.store.copies import SeenOutputs
from validator.store.near_ties import NearTieBudgets
from validator.verdicts.audit_file import DrawnRows
from validator.verdicts.row_sampling import RowSampling

_tracer = Tracer(__name__)


class CannotJudge(MusterError):
    """The examiner could not judge the work on this machine. This never counts against the node."""

    code = "not-judged"
    status = 503


class FileExamination:
    """Examines the files of submissions, for the judging loops of one process.

    Args:
        chain: Chain client of the validator's pool.
        files: File transfers with the object store.
        versions: Finds the policy version of a submission.
        drawing: Draws the rows to recompute.
        examiner: Runs the checks.
        seen: Fingerprints of the outputs of earlier submissions.
        near_ties: Near-tie budgets, which count the near-ties in each node's newest files.
        metrics: Metrics of this process.
    """

    def __init__(
        self,
        *,
        chain: PoolChain,
        files: WorkFiles,
        versions: CheckpointLookup,
        drawing: RowSampling,
        examiner: Examiner,
        seen: SeenOutputs,
        near_ties: NearTieBudgets,
        metrics: ValidatorMetrics,
    ) -> None:
        self._chain = chain
        self._files = files
        self._versions = versions
        self._drawing = drawing
        self._examiner = examiner
        self._seen = seen
        self._near_ties = near_ties
        self._metrics = metrics

    async def look_up(self, item: Item) -> WorkRecord | None:
        """Returns the state of the item's work on the ledger; None if the ledger does not have the work.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        return await (await self._chain.ledger()).work.get(item.work.key)

    async def listed(self, item: Item) -> RolloutItem | None:
        """Returns the orchestrator's entry of the file; None if the orchestrator does not list the file.

        Raises:
            Unavailable: The orchestrator is down.
        """
        with self._metrics.stage("listed"):
            return await self._files.listed(item.work)

    async def examine(self, item: Item, listed: RolloutItem | None) -> tuple[Conclusion, DrawnRows]:
        """Downloads and examines the item's file; returns the conclusion and the recomputed rows.

        Args:
            item: The leased item.
            listed: The orchestrator's entry of the file, from `listed`.

        Raises:
            CannotJudge: The examiner could not judge the file on this machine.
            MusterError: The chain, the orchestrator or the object store is down, or the file is absent.
        """
        gathering = asyncio.ensure_future(self._gathered(item))  # runs during the download of the file
        try:
            async with AsyncExitStack() as stack:
                with self._metrics.stage("fetch"), _tracer.span("fetch", item.work.key):
                    file = await stack.enter_async_context(self._files.fetched(item, listed))
                facts, checkpoint, drawn = await gathering
                drawn = await self._drawing.confirmed(drawn)

                async def is_copy(fingerprint: Digest) -> bool:
                    return await self._seen.is_copy(fingerprint, of=item.work.key)

                examination = Examination(facts=facts, file=file, checkpoint=checkpoint, draw=drawn.draw)
                with self._metrics.stage("examine"), _tracer.span("checks", item.work.key) as span:
                    found = await self._examiner.examine(examination, is_copy=is_copy)
                    _describe(span, found)
        finally:
            await cancel_all([gathering])
        if isinstance(found, NotJudged):
            raise CannotJudge(found.why, hint=found.hint, code=found.code, retryable=found.retryable)
        if item.kind is ItemKind.FIRST:
            found = await self._near_ties.applied(item.work, found)
        self._metrics.examined(found)
        return found, drawn

    async def store(self, audit: AuditFile) -> Digest:
        """Uploads an audit file; returns its SHA-256.

        Raises:
            Unavailable: The orchestrator or the object store is down.
        """
        with self._metrics.stage("evidence"):
            return await self._files.store(audit)

    async def _gathered(self, item: Item) -> tuple[WorkFacts, CheckpointRef, DrawnRows]:
        """Returns the work's facts from the ledger, its policy version, and the rows to recompute."""
        connected = await self._chain.connected()
        with self._metrics.stage("facts"):
            return await asyncio.gather(
                connected.facts.facts(item.work), self._versions.of(item.work), self._drawing.draw(item)
            )


def _describe(span: WorkSpans, found: Conclusion | NotJudged) -> None:
    """Adds an event for each check, and the seconds of each stage, to the span of the checks."""
    if isinstance(found, NotJudged):
        span.note(not_judged=found.code)
        return
    for check in found.checks:
        span.event("check", check=check.name, state=check.state.value)
    if found.timings is not None:
        span.note(rows=found.timings.rows, prefilled_tokens=found.timings.prefilled_tokens)
        span.note(**{f"{stage}_s": seconds for stage, seconds in found.timings.seconds.items()})
