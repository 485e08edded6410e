"""Client of a gateway for a verifier: takes answers, and sends the results."""

from __future__ import annotations

from datetime import timedelta

from protocol.http.client import ServiceClient
from protocol.wire.serving import (
    MOST_ANSWER_BYTES,
    TakenVerification,
    TakeVerification,
    VerificationResult,
    VerificationTaken,
)

_ATTEMPT = timedelta(seconds=10)
_TAKEN_LIMIT = 2 * MOST_ANSWER_BYTES + (8 << 20)
"""Maximum bytes of an answer with its request. Both are JSON in JSON, which escapes quotation marks."""


class VerificationClient(ServiceClient):
    """Client of a gateway with a verifier's token."""

    async def take(self, request: TakeVerification) -> TakenVerification:
        """Waits for an answer to verify. The call is not repeated here, because its answer would be lost.

        Raises:
            Unauthenticated: The token is not valid.
            Forbidden: The token is not a verifier's.
            Unavailable: The gateway is down.
        """
        limit = timedelta(milliseconds=request.wait_ms) + _ATTEMPT
        answer = await self.post(
            "/v1/verifications/take",
            request,
            call_timeout=limit,
            attempt_timeout=limit,
            answer_limit=_TAKEN_LIMIT,
        )
        return answer.read(TakenVerification)

    async def judge(self, identifier: str, result: VerificationResult, *, call_timeout: timedelta) -> VerificationTaken:
        """Sends the result for an answer; the first result counts, so the call may be repeated.

        Raises:
            Unauthenticated: The token is not valid.
            Unavailable: The gateway is down.
        """
        answer = await self.post(
            f"/v1/verifications/{identifier}",
            result,
            repeatable=True,
            call_timeout=call_timeout,
            attempt_timeout=_ATTEMPT,
        )
        return answer.read(VerificationTaken)
