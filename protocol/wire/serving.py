"""Wire models between a gateway, the tasks that answer its requests, and verifiers of the answers.

A node opens a session for a leased slot with a signed request (`POST /v1/sessions`). Its task then calls the gateway
itself, with the session's token: it takes requests by long polling, sends answers in parts, and closes the session for
the signed list of what it answered. The task opens no port.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from protocol.identifiers import WireAddress, WireDigest
from protocol.wire.answers import AnswerRecord
from protocol.wire.base import Identifier, LongText, Milliseconds, Name, WireModel
from protocol.wire.leases import SignedLease
from protocol.wire.runs import ArithmeticName
from protocol.wire.served import MOST_BODY_BYTES, MOST_SERVED, RequestKind

MOST_FREE = 1024
"""Maximum number of choices that a task may ask for at once."""
MOST_PARTS = 256
"""Maximum number of parts in one request."""
MOST_TOKENS_PER_PART = 4096
LONGEST_POLL = timedelta(seconds=20)
MOST_VERSIONS = 16
"""Maximum number of versions that a verifier may name."""
MOST_ANSWER_BYTES = 64 << 20
"""Maximum size of an answer with its record."""

Token = Annotated[int, Field(ge=0, lt=1 << 31)]


class OpenSession(WireModel):
    """Body of `POST /v1/sessions`, signed by the node: a slot for which the node's task answers requests."""

    lease: SignedLease
    arithmetic: ArithmeticName
    """Engine and data type, or numerics class, of the task."""


class ServingSession(WireModel):
    """Answer of `POST /v1/sessions`. A repeated request for a lease returns a new token; the former one ends."""

    id: Identifier
    url: Annotated[str, Field(max_length=512)]
    """Base URL for the task's requests: the gateway's."""
    token: Annotated[str, Field(min_length=32, max_length=128)]
    gateway: WireAddress
    """Address of the key that signs the list of requests; the recipe of the version must name it."""
    ends_at_ms: Milliseconds
    """Time at which the gateway closes the session, before the lease ends."""


class TakeRequests(WireModel):
    """Body of `POST /v1/sessions/{id}/requests`: a long poll, which also shows that the task lives."""

    free: Annotated[int, Field(ge=0, le=MOST_FREE)]
    """Number of choices for which the engine has room; 0 asks only for cancellations."""
    wait_ms: Annotated[int, Field(ge=0, le=int(LONGEST_POLL.total_seconds() * 1000))]


class AssignedRequest(WireModel):
    """A client's request that the session shall answer."""

    id: Identifier
    attempt: Annotated[int, Field(ge=0, lt=1 << 16)]
    """Number of earlier attempts by other sessions. Parts of another attempt are ignored."""
    kind: RequestKind
    body: Annotated[str, Field(max_length=MOST_BODY_BYTES)]
    """JSON body that the client sent."""
    seed: WireDigest
    choices: Annotated[int, Field(ge=1, le=MOST_SERVED)]
    with_pieces: bool
    """Whether parts need the text of each token, because the client wants log-probabilities."""


class TakenRequests(WireModel):
    """Answer of `POST /v1/sessions/{id}/requests`."""

    requests: Annotated[tuple[AssignedRequest, ...], Field(max_length=MOST_FREE)]
    cancelled: Annotated[tuple[Identifier, ...], Field(max_length=MOST_SERVED)]
    """Requests whose clients are gone. The task stops them and sends nothing more; they are not part of the list."""
    closing: bool
    """The session gets no further requests: the task ends those in progress and closes the session."""


class AnswerTokens(WireModel):
    """Further tokens of one choice."""

    choice: Annotated[int, Field(ge=0, lt=MOST_SERVED)]
    tokens: Annotated[tuple[Token, ...], Field(max_length=MOST_TOKENS_PER_PART, fail_fast=True)]
    logprobs: Annotated[tuple[float, ...], Field(max_length=MOST_TOKENS_PER_PART, fail_fast=True)]
    """float32 log-probability of each token."""
    text: Annotated[str, Field(max_length=1 << 20)]
    """Text that the tokens add. Characters of several tokens come with the last one, so this may be empty."""
    pieces: Annotated[
        tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=MOST_TOKENS_PER_PART, fail_fast=True)
    ] = ()
    """Text of each token alone, if `with_pieces`."""


class AnswerFailure(WireModel):
    """Reason why a task can't answer a request."""

    code: Name
    detail: LongText
    param: Annotated[str, Field(max_length=200)] = ""
    """Field of the body at fault; empty if the fault is not the request's."""
    hint: LongText = ""


class AnswerPart(WireModel):
    """The next part of an answer: tokens, and at the end the record or a failure."""

    id: Identifier
    attempt: Annotated[int, Field(ge=0, lt=1 << 16)]
    number: Annotated[int, Field(ge=0, lt=1 << 32)]
    """Number of the part, counted from 0. Parts that the gateway has already are ignored, so the task may retry."""
    tokens: Annotated[tuple[AnswerTokens, ...], Field(max_length=MOST_SERVED, fail_fast=True)] = ()
    record: AnswerRecord | None = None
    """The whole answer, which must equal the parts; with the last part."""
    failure: AnswerFailure | None = None


class AnswerParts(WireModel):
    """Body of `POST /v1/sessions/{id}/answers`."""

    parts: Annotated[tuple[AnswerPart, ...], Field(min_length=1, max_length=MOST_PARTS, fail_fast=True)]


class PartsTaken(WireModel):
    """Answer of `POST /v1/sessions/{id}/answers`."""

    cancelled: Annotated[tuple[Identifier, ...], Field(max_length=MOST_SERVED)]
    """Requests of this body that the session no longer answers: cancelled, or given to another session."""


class TakeVerification(WireModel):
    """Body of `POST /v1/verifications/take`: a verifier asks for an answer to verify, by long polling."""

    versions: Annotated[tuple[WireDigest, ...], Field(min_length=1, max_length=MOST_VERSIONS)]
    """Versions whose folders the verifier has."""
    wait_ms: Annotated[int, Field(ge=0, le=int(LONGEST_POLL.total_seconds() * 1000))]


class Verification(WireModel):
    """An answer that a verifier shall verify."""

    id: Identifier
    version: WireDigest
    kind: RequestKind
    body: Annotated[str, Field(max_length=MOST_BODY_BYTES)]
    """JSON body that the client sent."""
    answer: Annotated[str, Field(max_length=MOST_ANSWER_BYTES)]
    """JSON of the answer that the client gets, in the form that is not streamed."""
    seed: WireDigest
    """Seed of the answer; the record must have it."""
    most_new_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    """Maximum number of new tokens of a choice, by the slot's lease; for requests that name no number."""
    ends_at_ms: Milliseconds
    """Time until which the gateway waits for the result."""


class TakenVerification(WireModel):
    """Answer of `POST /v1/verifications/take`."""

    verification: Verification | None
    """None if no answer waited."""


class VerificationResult(WireModel):
    """Body of `POST /v1/verifications/{id}`."""

    valid: bool | None
    """None if the verifier could not decide; another verifier may take the answer then."""
    reasons: Annotated[tuple[LongText, ...], Field(max_length=16)] = ()
    """Differences that the verifier found."""


class VerificationTaken(WireModel):
    """Answer of `POST /v1/verifications/{id}`."""

    accepted: bool
    """False if the result came too late, or another verifier's came first."""
