"""Calls of the gateway's Lua scripts. Times are Unix milliseconds, durations milliseconds.

`last` is the JSON of the error that a client gets if the call ends the last attempt at its request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from protocol.identifiers import Address, Digest
from protocol.redis.script_call import ScriptCall


class Opened(NamedTuple):
    """Outcome of `OpenSession`: `ok`, `closed`, or the name of a limit: `node`, `provider`, `total`."""

    outcome: str
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession(ScriptCall[Opened]):
    """Opens a session for a lease, or replaces the token of its session.

    Args:
        id: Id of a new session.
        token_hash: SHA-256 of the session's token.
        limit: Maximum number of new tokens of one choice.
        ends_ms: Time at which the session gets no further requests.
        expiry_ms: End of the lease.
        alive_ms: Time for which the session counts as alive without a poll.
    """

    id: str
    token_hash: str
    work_key: Digest
    node: Address
    provider: Address
    digest: Digest
    version: int
    arithmetic: str
    groups: int
    limit: int
    ends_ms: int
    expiry_ms: int
    now_ms: int
    alive_ms: int
    most_of_node: int
    most_of_provider: int
    most_sessions: int
    last: str


class Polled(NamedTuple):
    """Outcome of `PollSession`: `ok`, `denied` or `closed`."""

    outcome: str
    closing: bool = False
    cancelled: tuple[str, ...] = ()
    requests: tuple[bytes, ...] = ()
    """Seven values for each request: id, attempt, kind, body, seed, number of choices, whether pieces are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSession(ScriptCall[Polled]):
    """Reports a session's room, and takes the requests that it shall answer.

    Args:
        free: Number of choices for which the task has room.
        wait_ms: Time for which the poll goes on if there is nothing to answer.
        slot_ms: Time after the first answer at which the session closes.
    """

    session: str
    token_hash: str
    free: int
    now_ms: int
    alive_ms: int
    wait_ms: int
    slot_ms: int


class Added(NamedTuple):
    """Outcome of `AddPart`.

    `ok`, `again`, `denied`, `gone`, `gap`, or the reason why the part is refused: `choice`, `tokens`, `bytes`.
    """

    outcome: str
    expected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPart(ScriptCall[Added]):
    """Stores the next part of an answer for its client.

    Args:
        part: Number of the part.
        content: JSON of the part's tokens.
        most_bytes: Maximum size of all parts of a request.
        counts: Number of new tokens by choice.
    """

    session: str
    token_hash: str
    request: str
    attempt: int
    part: int
    now_ms: int
    alive_ms: int
    most_bytes: int
    content: bytes
    counts: Mapping[str, str]


class Finished(NamedTuple):
    """Outcome of `FinishRequest`: `ok`, `again`, `gone` or `denied`."""

    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRequest(ScriptCall[Finished]):
    """Adds an answer to the session's list; ends the request, or lets a verifier judge it first.

    Args:
        answer: Digest of the answer.
        used: Number of tokens that count for the client's quota.
        written: Number of new tokens, for the rate that `muster gateway status` shows.
        sampled: Whether a verifier shall judge the answer after its delivery.
        verify_ms: Time for which the gateway waits for a verifier.
        last: JSON of the last entry for the client.
        shown: JSON of the answer for verifiers; empty if none is needed.
    """

    session: str
    token_hash: str
    request: str
    attempt: int
    now_ms: int
    answer: Digest
    used: int
    written: int
    sampled: bool
    verify_ms: int
    last: bytes
    shown: bytes


class Failed(NamedTuple):
    """Outcome of `FailAttempt`: `ok`, `gone` or `denied`; and whether the request ended."""

    outcome: str
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAttempt(ScriptCall[Failed]):
    """Ends a session's attempt without an answer.

    Args:
        client_fault: Name of the fault if the task says that it is the client's; else empty.
        fault: JSON of the error that the client gets if the fault is believed.
        strike_ms: For answers that contradict their own parts: time for which the node's third one costs it the
            gateway's trust; 0 for other failures.
    """

    session: str
    token_hash: str
    request: str
    attempt: int
    now_ms: int
    alive_ms: int
    client_fault: str
    fault: str
    strike_ms: int
    last: str


class Closed(NamedTuple):
    """Outcome of `CloseSession`: `ok` or `denied`."""

    outcome: str
    work_key: str = ""
    node: str = ""
    served: tuple[bytes, ...] = ()
    """Six values for each answered request: id, kind, body, seed, number of choices, digest of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSession(ScriptCall[Closed]):
    """Closes a session, and returns what its list has."""

    session: str
    token_hash: str
    now_ms: int
    last: str


class Admitted(NamedTuple):
    """Outcome of `AdmitClient`.

    `ok`, or the reason why the request is refused: `revoked`, `expired`, `not-served`, `tokens`, `concurrent`,
    `minute`, `day`, `full`, `size`; with the limit and the pause.
    """

    outcome: str
    limit: int = 0
    wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitClient(ScriptCall[Admitted]):
    """Admits a client's request within the limits of its token, and gives it to a session or lets it wait.

    Args:
        id: Id of the request.
        token: Id of the client's token.
        replica: The replica to which the client is connected.
        new_tokens: Maximum number of new tokens per choice; 0 for all that fit.
        cost: Bytes that the request may take in a session's list.
        verify: `before`, or empty.
        form: JSON from which the answer's envelope is written.
        most_tokens: Maximum number of new tokens of all choices together.
        request_ms: Time limit of the whole request.
    """

    id: str
    token: str
    replica: str
    kind: str
    digest: Digest
    choices: int
    new_tokens: int
    cost: int
    seed: Digest
    verify: str
    with_pieces: bool
    now_ms: int
    most_waiting: int
    most_tokens: int
    request_ms: int
    form: bytes
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest(ScriptCall[str]):
    """Cancels a request; replies the state in which it was, or an empty text if it is forgotten.

    Args:
        only_waiting: Whether a request that a session answers already goes on.
    """

    id: str
    only_waiting: bool


class Swept(NamedTuple):
    """Numbers of objects that `Sweep` handled."""

    lost: int
    """Attempts of sessions that do not poll."""
    stalled: int
    """Attempts without progress."""
    orphaned: int
    """Requests of replicas that died."""
    ended: int
    """Sessions whose leases ended."""
    unverified: int
    """Requests that waited too long for a verifier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(ScriptCall[Swept]):
    """Handles what nobody reports: lost sessions and attempts, dead replicas, leases and verifications that ended.

    Args:
        at_once: Maximum number of objects of each kind.
        unverified: JSON of the error for clients whose answers no verifier judged in time.
    """

    now_ms: int
    at_once: int
    last: str
    unverified: str


class TakenAnswer(NamedTuple):
    """An answer for a verifier; `id` is empty if none waits."""

    id: str = ""
    version: str = ""
    kind: str = ""
    body: bytes = b""
    answer: bytes = b""
    ends_ms: int = 0
    seed: str = ""
    cap: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeVerification(ScriptCall[TakenAnswer]):
    """Takes the answer that waits longest for a verifier with one of these versions."""

    versions: tuple[str, ...]


class Judged(NamedTuple):
    """Outcome of `JudgeAnswer`: `ok` or `late`; and the node that answered."""

    outcome: str
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAnswer(ScriptCall[Judged]):
    """Records a verifier's result: `valid`, `invalid` or `unknown`.

    Args:
        unverified: JSON of the error for a client whose answer no verifier could judge.
    """

    id: str
    verdict: str
    now_ms: int
    distrust_ms: int
    last: str
    unverified: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteToken(ScriptCall[bool]):
    """Stores a token; replies False if its name is taken."""

    id: str
    name: str
    role: str
    hash: str
    now_ms: int
    expires_ms: int
    per_minute: int
    concurrent: int
    per_day: int


EVERY = (
    OpenSession,
    PollSession,
    AddPart,
    FinishRequest,
    FailAttempt,
    CloseSession,
    AdmitClient,
    CancelRequest,
    Sweep,
    TakeVerification,
    JudgeAnswer,
    WriteToken,
)
"""All scripts, which get the gateway's constants."""
