"""Gives answers to verifiers, and takes their results."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from gateway.errors import NO_ANSWER, UNVERIFIED
from gateway.metrics import GatewayMetrics
from gateway.settings import GatewaySettings
from gateway.store.database import Database
from gateway.store.doorbell import Doorbell
from gateway.store.scripts import JudgeAnswer, TakeVerification
from protocol.identifiers import digest
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.wire.served import RequestKind
from protocol.wire.serving import (
    TakenVerification,
    Verification,
    VerificationResult,
    VerificationTaken,
)
from protocol.wire.serving import TakeVerification as TakeRequest

_log = get_logger(__name__)


class Verifications:
    """Serves verifiers.

    Args:
        settings: Settings of the gateway.
        database: State in Redis.
        doorbell: Wakes waiting verifiers.
        metrics: Counters.
        clock: Clock of polls.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        database: Database,
        doorbell: Doorbell,
        metrics: GatewayMetrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._database = database
        self._doorbell = doorbell
        self._metrics = metrics
        self._clock = clock

    async def take(self, request: TakeRequest, *, stopping: asyncio.Event) -> TakenVerification:
        """Returns the answer that waits longest for a verifier of these versions; waits for one."""

        async def read(_: timedelta) -> tuple[Verification | None, bool]:
            found = await self._database.scripts.run(TakeVerification(versions=request.versions))
            if not found.id:
                return None, False
            verification = Verification(
                id=found.id,
                version=digest(bytes.fromhex(found.version[2:])),
                kind=RequestKind(found.kind),
                body=found.body.decode(),
                answer=found.answer.decode(),
                seed=digest(bytes.fromhex(found.seed[2:])),
                most_new_tokens=found.cap,
                ends_at_ms=found.ends_ms,
            )
            return verification, True

        wait = timedelta(milliseconds=request.wait_ms)
        taken = await self._doorbell.poll("v", read, wait=wait, stopping=stopping, clock=self._clock)
        return TakenVerification(verification=taken)

    async def judge(self, identifier: str, result: VerificationResult) -> VerificationTaken:
        """Records a verifier's result."""
        verdict = {True: "valid", False: "invalid", None: "unknown"}[result.valid]
        judged = await self._database.scripts.run(
            JudgeAnswer(
                id=identifier,
                verdict=verdict,
                now_ms=self._database.now_ms(),
                distrust_ms=max(1, round(self._settings.distrust_time_s * 1000)),
                last=NO_ANSWER,
                unverified=UNVERIFIED,
            )
        )
        accepted = judged.outcome == "ok"
        if accepted:
            self._metrics.verdicts.labels(verdict).inc()
            if verdict != "valid":
                _log.warning("answer-judged", request=identifier, node=judged.node, verdict=verdict)
        return VerificationTaken(accepted=accepted)
