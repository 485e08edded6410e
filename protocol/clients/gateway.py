"""Client of a gateway: a node opens sessions for its slots, and the node's task answers requests in them."""

from __future__ import annotations

from datetime import timedelta

from protocol.http.client import ServiceClient
from protocol.wire.served import MOST_LIST_BYTES, SignedServedList
from protocol.wire.serving import (
    AnswerParts,
    OpenSession,
    PartsTaken,
    ServingSession,
    TakenRequests,
    TakeRequests,
)

OPEN_TIMEOUT = timedelta(seconds=12)
"""Time limit of opening a session, with all attempts."""
CLOSE_TIMEOUT = timedelta(seconds=20)
_ATTEMPT = timedelta(seconds=5)
_TAKEN_LIMIT = 64 << 20
"""Maximum bytes of an answer with requests. Bodies have at most 1 MiB each, and their JSON needs escapes."""
_LIST_LIMIT = 2 * MOST_LIST_BYTES + 4096


class GatewayClient(ServiceClient):
    """Client of a gateway, with a node's key to open sessions, or with a session's token to answer requests.

    Every call may be repeated: a session that is opened again gets a new token, parts have numbers, and a closed
    session returns the same list.
    """

    async def open_session(self, request: OpenSession) -> ServingSession:
        """Opens a session for a slot; an earlier session of this slot ends.

        Raises:
            Forbidden: The lease is not of this node or not of the gateway's pool.
            Conflict: The gateway does not serve the lease's version, or the lease ends too soon.
            Unauthenticated: The gateway's key did not sign the answer.
            Unavailable: The gateway is down.
        """
        answer = await self.post(
            "/v1/sessions",
            request,
            repeatable=True,
            signed_answer=True,
            call_timeout=OPEN_TIMEOUT,
            attempt_timeout=_ATTEMPT,
        )
        return answer.read(ServingSession)

    async def take(self, session: str, request: TakeRequests) -> TakenRequests:
        """Waits for requests; the gateway considers a session lost if it does not call for 10 s.

        The call is not repeated here: the caller knows how much room its engine has by then.

        Raises:
            Unauthenticated: The token is not valid any more.
            Conflict: The session is closed.
        """
        limit = timedelta(milliseconds=request.wait_ms) + _ATTEMPT
        answer = await self.post(
            f"/v1/sessions/{session}/requests",
            request,
            call_timeout=limit,
            attempt_timeout=limit,
            answer_limit=_TAKEN_LIMIT,
        )
        return answer.read(TakenRequests)

    async def send(self, session: str, parts: AnswerParts, *, call_timeout: timedelta) -> PartsTaken:
        """Sends parts of answers; the gateway ignores parts that it has already.

        Raises:
            Unauthenticated: The token is not valid any more.
            Conflict: The session is closed.
        """
        answer = await self.post(
            f"/v1/sessions/{session}/answers",
            parts,
            repeatable=True,
            call_timeout=call_timeout,
            attempt_timeout=_ATTEMPT,
        )
        return answer.read(PartsTaken)

    async def close_session(self, session: str, *, call_timeout: timedelta = CLOSE_TIMEOUT) -> SignedServedList:
        """Ends the session and returns the list of the requests that it answered.

        A repeated call, also in a session that was opened again for the same lease, returns the same list.

        Raises:
            Unauthenticated: The token is not valid any more.
        """
        answer = await self.post(
            f"/v1/sessions/{session}/close",
            repeatable=True,
            call_timeout=call_timeout,
            attempt_timeout=_ATTEMPT,
            answer_limit=_LIST_LIMIT,
        )
        return answer.read(SignedServedList)
