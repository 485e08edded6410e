"""Typed calls of the orchestrator's Lua scripts.

The class `DeleteTask` runs the script `delete_task.lua`, and so on.

Arguments that end in `_ms`, `_us` or `_s` are durations or Unix times in milliseconds, microseconds or seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from protocol.identifiers import Address, Digest
from protocol.redis.script_call import ScriptCall


class WriteResult(IntEnum):
    """Outcome of a script that checks a leader lease or a revision before it writes."""

    LEASE_LOST = -1
    """Another process holds the leader lease."""
    NO = 0
    """The row changed after it was read, or its state does not allow the write."""
    YES = 1


# Nodes


class HeartbeatReply(NamedTuple):
    """Outcome of a heartbeat."""

    state: str
    """State of the node; empty for an unknown node."""
    admission: str = "admitted"
    """Decision of the replay guard. Any other value than `admitted` means that nothing was recorded."""
    wait_us: int = 0
    served: bool = False
    """False if the heartbeat needs a state transition first; then only `state` is set."""
    assignment_id: str = ""
    head: str = ""
    """Part of the answer that identifies the assignment; result of `assignments.head_of`."""
    reference: str = ""
    """Id and generation of the assignment's task, as `id:generation`. They identify the task's part of the answer."""
    reason: str = ""
    failure: str = ""
    """Text about the last task that failed on this node; empty after a new assignment."""
    interval_ms: int = 0
    commands: tuple[bytes, ...] = ()
    """JSON of the commands that wait for the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeartbeat(ScriptCall[HeartbeatReply]):
    """Checks nonce and rate, records a heartbeat, and reads the node's assignment and commands.

    Args:
        address: The node.
        nonce: Nonce of the request.
        now_us: Current time.
        admitted: Whether the request has passed the replay guard already.
        draining: Whether the node refuses new tasks.
        stretch: Random factor of the interval, at least 1, so that nodes don't send at the same time.
        version: Version of the worker.
        metrics: Metrics as JSON.
        ip: Source address of the request.
        reported_assignment: Assignment that the node reports on; empty for none.
        reported_generation: Generation of that assignment; None for no report.
        report: JSON list of state, restarts, exit code, start time and detail; it is stored as one string.
        acknowledged: Ids of the commands that the node has executed.
    """

    address: Address
    nonce: str
    now_us: int
    admitted: bool
    draining: bool
    stretch: float
    version: str
    metrics: bytes
    ip: str
    reported_assignment: str
    reported_generation: int | None
    report: bytes
    acknowledged: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTransition(ScriptCall[bool]):
    """Writes a node's state transition; replies False if the row changed after it was read.

    Args:
        address: The node.
        revision: Revision of the row as read; empty for an unknown node.
        now_ms: Current time.
        before: State before the transition.
        after: State after the transition.
        event: Event that causes the transition.
        cause: Reason that is stored in the node's history.
        actor: Name of the owner's token, or of the component, that caused the event.
        reason: Reason of the state, which the node receives.
        deadline: Time by which the next heartbeat, or the redemption of the invite, is due: Unix milliseconds, `clear`
            or `keep`.
        removal: Time at which the removal from the ledger is due: Unix milliseconds, `clear` or `keep`.
        only_if_due_by_ms: The transition is written only if the node's deadline is at most this time; None: always.
        quiet: True to write no history entry and no event.
        fields: Further fields of the node to write.
    """

    address: Address
    revision: str
    now_ms: int
    before: str
    after: str
    event: str
    cause: str
    actor: str
    reason: str
    deadline: str
    removal: str
    only_if_due_by_ms: int | None
    quiet: bool
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFacts(ScriptCall[bool]):
    """Writes facts about a known node; replies True if a value changed.

    The node's state does not change.
    """

    address: Address
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetNode(ScriptCall[bool]):
    """Deletes a node that is no member; replies False if it changed after it was read, or is still referred to.

    Args:
        address: The node.
        version: Version of the node as read.
    """

    address: Address
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindOverdue(ScriptCall[tuple[Address, ...]]):
    """Returns the addresses of nodes whose deadline has passed.

    It returns none if the leader lease was lost, or during the amnesty after a pause of the loop.

    Args:
        lease: Value of the liveness loop's leader lease.
        now_ms: Current time.
        gap_ms: Minimum time between two calls after which the loop counts as paused.
        amnesty_ms: Time after a pause during which no node counts as overdue.
        furthest_ms: Maximum time until a deadline; after a pause, later deadlines are brought forward.
        limit: Maximum number of addresses.
    """

    lease: str
    now_ms: int
    gap_ms: int
    amnesty_ms: int
    furthest_ms: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveCommand(ScriptCall[str]):
    """Queues a command for a node; replies `left`, `too-many` or `unknown-node`.

    Args:
        address: The node.
        id: Id of the command.
        command: The command as JSON.
        most_waiting: Maximum number of commands that wait for one node.
    """

    address: Address
    id: str
    command: str
    most_waiting: int


# Tasks and assignments


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask(ScriptCall[bool]):
    """Writes a task; replies False if the task changed after it was read.

    Args:
        task: Id of the task.
        revision: Revision of the task as read; empty for a new task.
        now_ms: Current time.
        is_open: Whether the scheduler has to plan the task.
        kind: Kind of the pool event to append.
        actor: Name of the owner's token that caused the change.
        created_ms: Time at which the task was created.
        fields: Fields of the task to write.
    """

    task: str
    revision: str
    now_ms: int
    is_open: bool
    kind: str
    actor: str
    created_ms: int
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTaskState(ScriptCall[WriteResult]):
    """Writes the state that a plan of the scheduler determined for a task.

    Args:
        lease: Value of the scheduler's leader lease.
        task: Id of the task.
        generation: Generation of the task that was planned.
        state: New state.
        reason: Reason of the state.
        now_ms: Current time.
        over: Whether the state is final, so that the task is not planned any more.
    """

    lease: str
    task: str
    generation: int
    state: str
    reason: str
    now_ms: int
    over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTask(ScriptCall[str]):
    """Deletes a task; replies `deleted`, `unknown`, or `changed` if it has another revision.

    Args:
        task: Id of the task.
        revision: Revision of the task as read; None: any.
        now_ms: Current time.
        actor: Name of the owner's token.
    """

    task: str
    revision: str | None
    now_ms: int
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAssignment(ScriptCall[WriteResult]):
    """Gives a healthy, free node an assignment.

    Args:
        lease: Value of the scheduler's leader lease.
        address: The node.
        assignment: Id of the new assignment.
        head: Part of a heartbeat answer that identifies the assignment; result of `assignments.head_of`.
        reference: Id and generation of the task, as `id:generation`.
        task: Id of the task.
        task_name: Name of the task.
        now_ms: Current time.
        group: Place in a group, as JSON; empty for none.
    """

    lease: str
    address: Address
    assignment: str
    head: str
    reference: str
    task: str
    task_name: str
    now_ms: int
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewAssignment(ScriptCall[WriteResult]):
    """Gives a node a new generation of its assignment.

    Args:
        lease: Value of the scheduler's leader lease; empty for an API request.
        address: The node.
        assignment: Id of the assignment.
        generation: Generation of the assignment as read.
        head: Part of a heartbeat answer that identifies the new generation; result of `assignments.head_of`.
        reference: Id and generation of the task, as `id:generation`.
        restart: Id of the owner's restart, which is executed once; empty for another reason.
        now_ms: Current time.
        why: Reason for the pool's events.
        actor: Name of the owner's token, or of the component, that caused the change.
    """

    lease: str
    address: Address
    assignment: str
    generation: int
    head: str
    reference: str
    restart: str
    now_ms: int
    why: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAssignment(ScriptCall[WriteResult]):
    """Ends a node's assignment.

    Args:
        lease: Value of the scheduler's leader lease.
        address: The node.
        assignment: Id of the assignment.
        state: Final state of the assignment.
        why: Reason for the pool's events.
        now_ms: Current time.
        kept_ms: Time for which the ended assignment is kept.
        most_ended: Maximum number of ended assignments that are kept.
        outcome: Outcome to count for the task, as JSON; None to count none.
    """

    lease: str
    address: Address
    assignment: str
    state: str
    why: str
    now_ms: int
    kept_ms: int
    most_ended: int
    outcome: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetAssignments(ScriptCall[int]):
    """Deletes some of the oldest ended assignments with their logs; replies with the number of deleted ones.

    Args:
        now_ms: Current time.
        kept_ms: Time for which an ended assignment is kept.
        most_ended: Maximum number of ended assignments that are kept.
    """

    now_ms: int
    kept_ms: int
    most_ended: int


class LogPosition(NamedTuple):
    """State of an assignment's log after lines were pushed."""

    known: bool
    """False if the node has no such assignment."""
    next_sequence: int
    """Sequence number after the last stored line."""
    wanted_until_ms: int
    """Time until which the node has to push its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLogLines(ScriptCall[LogPosition]):
    """Stores the new lines of an assignment's log.

    Args:
        address: The node.
        assignment: Id of the assignment.
        most_lines: Maximum number of stored lines.
        most_bytes: Maximum number of stored bytes.
        most_total: Maximum number of stored bytes of all logs.
        most_cuts: Maximum number of times that up to 64 of the oldest lines of the largest log are deleted.
        kept_ms: Time for which the log is kept.
        has_more: Whether the node has further lines to push.
        sequences_and_lines: Sequence number and JSON of each line in turn, ascending.
    """

    address: Address
    assignment: str
    most_lines: int
    most_bytes: int
    most_total: int
    most_cuts: int
    kept_ms: int
    has_more: bool
    sequences_and_lines: tuple[int | str, ...]


# Uploads


class UploadCount(NamedTuple):
    """Result of the quota check of an upload."""

    exceeded: str
    """Exceeded limit (`open`, `files` or `bytes`); empty if the upload was counted."""
    wait_ms: int
    """Time until the limit may allow the upload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountUpload(ScriptCall[UploadCount]):
    """Counts an upload ticket against its owner's quota.

    Args:
        owner: The node that uploads.
        object: Key of the object.
        size: Size of the object in bytes.
        now_ms: Current time.
        open_until_ms: Time at which the ticket expires.
        most_open: Maximum number of open tickets.
        window: Number of the present quota window, counted from the Unix epoch.
        window_ends_ms: End of the window.
        most_files: Maximum number of files in a window.
        most_bytes: Maximum number of bytes in a window.
        account: `other` if the file is not the work of a lease, so that a second byte limit applies; else `bytes`.
        most_account_bytes: Maximum number of bytes in a window in files with this `account`.
    """

    owner: Address
    object: str
    size: int
    now_ms: int
    open_until_ms: int
    most_open: int
    window: int
    window_ends_ms: int
    most_files: int
    most_bytes: int
    account: str
    most_account_bytes: int


# Webhooks


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateWebhook(ScriptCall[bool]):
    """Writes the new secret of a webhook; replies False if the secret changed after it was read.

    Args:
        webhook: Id of the webhook.
        before: The encrypted secret as read.
        fields: Fields of the webhook to write.
    """

    webhook: str
    before: str
    fields: Mapping[str, str]


# Requests with an idempotency key


class RequestClaim(NamedTuple):
    """Outcome of a claim of an idempotency key."""

    outcome: str
    """`claimed`, `answered`, `in-progress`, `other-request` or `too-many`."""
    answer: str = ""
    """Stored answer, if the outcome is `answered`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest(ScriptCall[RequestClaim]):
    """Claims an idempotency key for a request.

    Args:
        caller: Hash of the caller's name.
        name: Name of caller, route and key.
        fingerprint: Hash of the request.
        claim: Random value that identifies the claim.
        now_ms: Current time.
        life_ms: Time after which the claim ends without an answer.
        most: Maximum number of the caller's claims and stored answers. A further claim replaces its oldest answer.
    """

    caller: str
    name: str
    fingerprint: str
    claim: str
    now_ms: int
    life_ms: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleRequest(ScriptCall[bool]):
    """Stores the answer of a claimed request, or releases the key; replies False if the claim has ended.

    Args:
        caller: Hash of the caller's name.
        name: Name of caller, route and key.
        claim: Value of the claim.
        answer: The answer; None to release the key.
        now_ms: Current time.
        kept_ms: Time for which the answer is kept.
        most_bytes: Maximum bytes of the caller's stored answers; the oldest ones are dropped first.
    """

    caller: str
    name: str
    claim: str
    answer: str | None
    now_ms: int
    kept_ms: int
    most_bytes: int


# Relayed transactions


class Queued(NamedTuple):
    """A transaction in the relayer's queue."""

    same: bool
    """Whether the transaction's body equals the body of the call."""
    fields: dict[str, str]
    """Fields of the transaction's row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTransaction(ScriptCall[Queued]):
    """Queues a transaction for the ledger, unless it was queued before.

    Args:
        kind: `work`, `join`, `dispute`, `leave` or `consent`.
        name: Unique name within the kind.
        body_hash: SHA-256 of the body.
        body: Request as JSON.
        now_ms: Current time.
    """

    kind: str
    name: str
    body_hash: str
    body: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueTransaction(ScriptCall[bool]):
    """Queues a transaction again after a reorg; replies False if it was not relayed before."""

    kind: str
    name: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleTransaction(ScriptCall[WriteResult]):
    """Writes the state of a queued transaction: relayed, refused, or postponed.

    Args:
        lease: Value of the relayer's leader lease.
        kind: `work`, `join`, `dispute`, `leave` or `consent`.
        name: Unique name within the kind.
        state: New state.
        reason: Reason of a refusal.
        passing: Whether the refusal is temporary, so that the node may submit the request again.
        due_ms: Time of the next attempt; None if the transaction is settled.
        refused: Whether to count a temporary refusal by the ledger.
        kept_ms: Time for which a settled transaction is kept.
    """

    lease: str
    kind: str
    name: str
    state: str
    reason: str
    passing: bool
    due_ms: int | None
    refused: bool
    kept_ms: int


# The run


class SlotLeased(NamedTuple):
    """Outcome of a request for a slot."""

    outcome: str
    """`ok` for a new slot, `again` for the slot that the same request got before, or the code of a refusal."""
    slot: str
    """Id of the slot. For the refusal `not-active` it is the node's state; for `earlier`, the step to serve first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSlot(ScriptCall[SlotLeased]):
    """Leases the next slot of a step to a node.

    Args:
        node: Node that asks for a slot.
        provider: Provider of the node.
        step: Requested step.
        groups: Maximum number of groups that the node wants.
        request: Id of the request; a repeated request gets the same slot.
        now_ms: Current time.
        waits_until_ms: Time until which the step waits for the slot; `now_ms` if it does not wait.
        expiry_s: End of the lease.
        remembered_ms: Time for which the request id is stored.
        version: Version that the caller read; the script refuses if the run has switched to another one.
        digest: Digest of that version.
        async_level: Number of steps by which generation may be ahead of the version.
        default_demand: Groups of a step until the trainer states a demand.
        groups_per_slot: Maximum number of groups in a slot.
        most_units: Maximum number of work units in a lease.
        most_live: Maximum number of slots that the node may hold at the same time.
        beacon: Hash of the beacon block, which is part of the seed.
        beacon_block: Number of the beacon block.
        asking_ms: Time after its last request for which a provider counts as asking for slots.
        holders: While other providers ask for slots, a provider may hold at most 1/`holders` of a step.
        serving: Whether the run is a serving run: the window moves with the floor, and a lease without work is excused.
    """

    node: Address
    provider: Address
    step: int
    groups: int
    request: str
    now_ms: int
    waits_until_ms: int
    expiry_s: int
    remembered_ms: int
    version: int
    digest: Digest
    async_level: int
    default_demand: int
    groups_per_slot: int
    most_units: int
    most_live: int
    beacon: Digest
    beacon_block: int
    asking_ms: int
    holders: int
    serving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSlot(ScriptCall[WriteResult]):
    """Writes the state of a slot.

    Args:
        loop: Name of the leader lease to check.
        lease: Value of that leader lease; empty for an API request.
        slot: Id of the slot.
        revision: Revision of the slot as read; empty for a new slot.
        counted: Counter in which the step counts the slot's groups now.
        due_ms: Time at which the run's loop checks the slot next; None for no check.
        accused: Whether the slot's work is judged forged and the verdict is not final.
        fields: Fields of the slot to write.
    """

    loop: str
    lease: str
    slot: str
    revision: str
    counted: str
    due_ms: int | None
    accused: bool
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameAudit(ScriptCall[bool]):
    """Records an audit file of a slot's work; replies False if the slot is gone or the leader lease was lost.

    Args:
        loop: Name of the leader lease to check.
        lease: Value of that leader lease.
        slot: Id of the slot.
        audit: Owner and SHA-256 of the audit file, as `OWNER:SHA256`.
    """

    loop: str
    lease: str
    slot: str
    audit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRunState(ScriptCall[WriteResult]):
    """Changes the state of the run, and the demand of one step.

    Args:
        loop: Name of the leader lease to check.
        lease: Value of that leader lease; empty for an API request.
        revision: Revision of the state as read.
        now_ms: Current time.
        step: Step whose demand is set; None to set no demand.
        demand: Demand in groups.
        rounds: Number of times that the trainer raised the demand.
        kind: Kind of the pool event to append; empty for no event.
        detail: Text of the event.
        actor: Name of the token or address of the signer that caused the event.
        fields: Fields of the state to write; an empty value deletes its field.
    """

    loop: str
    lease: str
    revision: str
    now_ms: int
    step: int | None
    demand: int
    rounds: int
    kind: str
    detail: str
    actor: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceLedgerEvent(ScriptCall[WriteResult]):
    """Appends an event of the pool for a ledger event, once; replies NO if it was appended before.

    Args:
        loop: Name of the leader lease to check.
        lease: Value of that leader lease.
        identity: Unique name of the ledger event and of the pool's event that it causes.
        reverted: Whether a reorg has removed the ledger event.
        block: Block of the ledger event.
        most_kept: Maximum number of ledger events that are remembered.
        quiet: True to remember the ledger event without appending an event.
        now_ms: Current time.
        kind: Kind of the pool's event.
        detail: Text of the pool's event.
        actor: Account that caused it, or `ledger`.
        node: The node; empty for none.
        counter: Counter of the accounts to raise, or to lower if the ledger event was removed; a kind of event.
        work: Key of the work item; empty for none. The script finds its provider.
        provider: The provider, if the event is about no work item; else empty.
        amount: Money of the event in 10⁻⁹ MUST, as decimal digits, which Redis adds without rounding.
        day: Day of the event, as days since 1970 in UTC.
    """

    loop: str
    lease: str
    identity: str
    reverted: bool
    block: int
    most_kept: int
    quiet: bool
    now_ms: int
    kind: str
    detail: str
    actor: str
    node: str
    counter: str
    work: str
    provider: str
    amount: str
    day: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldTrainerLease(ScriptCall[str]):
    """Acquires or renews the trainer lease; replies with its value.

    The value is empty while another trainer holds the lease.

    Args:
        holder: Name of the trainer.
        lease: Value of the lease that the trainer holds; empty when its process starts.
        lifetime_ms: Time until the lease expires unless it is renewed.
        start: Random id of this start of the trainer's process, so that a repeated request is recognised; empty for
            none.
    """

    holder: str
    lease: str
    lifetime_ms: int
    start: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSlots(ScriptCall[int]):
    """Deletes up to `limit` slots of an old step; replies with the number of slots left.

    If the leader lease was lost, it deletes nothing and replies 0.
    """

    loop: str
    lease: str
    step: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteOpenWork(ScriptCall[bool]):
    """Records objects that work names which is not final; replies False if the leader lease was lost.

    Args:
        loop: Name of the leader lease to check.
        lease: Value of that leader lease.
        work: Key of the work.
        objects: Objects in the form `KIND:OWNER:SHA256`; none are removed.
    """

    loop: str
    lease: str
    work: Digest
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWork(ScriptCall[bool]):
    """Deletes what `NoteOpenWork` recorded for work; replies False if the leader lease was lost."""

    loop: str
    lease: str
    work: Digest


# Validators


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteNumerics(ScriptCall[bool]):
    """Writes a validator's report of numerics classes in place of its earlier one; deletes expired reports.

    Args:
        validator: The validator.
        now_ms: Current time.
        life_ms: Time after which the report expires.
        classes: Names of the classes.
    """

    validator: Address
    now_ms: int
    life_ms: int
    classes: tuple[str, ...]
