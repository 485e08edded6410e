"""Lua scripts of the orchestrator and their typed calls: the class `DeleteTask` runs `delete_task.lua`.

Arguments that end in `_ms`, `_us` or `_s` are durations or Unix times in milliseconds, microseconds or seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from protocol.identifiers import Address, Digest
from protocol.redis.script_call import ScriptCall


class Written(IntEnum):
    """Outcome of a script that compares before it writes."""

    LEASE_LOST = -1
    """Another process holds the leader lease."""
    NO = 0
    """The row changed since it was read, or no longer fits."""
    YES = 1


# Nodes


class HeartbeatReply(NamedTuple):
    """Outcome of a heartbeat."""

    state: str
    """Empty for an unknown node."""
    admission: str = "admitted"
    """The replay guard's decision; if it is another than `admitted`, nothing was recorded."""
    wait_us: int = 0
    served: bool = False
    """False if the node's state must change first; then only `state` is set."""
    assignment_id: str = ""
    head: str = ""
    """The assignment's own part of the answer, as JSON without braces."""
    reference: str = ""
    """`task:generation`, which names the rest of the answer."""
    reason: str = ""
    failure: str = ""
    """Name of the task that failed on this node last, and the reason; empty once another was placed."""
    interval_ms: int = 0
    commands: tuple[bytes, ...] = ()
    """JSON of the commands that wait for the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeartbeat(ScriptCall[HeartbeatReply]):
    """Checks nonce and rate, records a heartbeat and reads what the node is to run.

    Args:
        address: The node.
        nonce: The request's.
        now_us: The time.
        admitted: The request has passed the replay guard already.
        draining: The node takes no new work.
        stretch: Random factor of the interval, so that nodes drift apart.
        version: The worker's.
        metrics: JSON.
        ip: Source address of the request.
        reported_assignment: Assignment that the node reports on; empty for none.
        reported_generation: Its generation.
        report: JSON list of state, restarts, exit code, start and detail, stored and compared as a whole.
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
    """Writes a node's state transition; False if anything happened to the node since it was read.

    Args:
        address: The node.
        revision: As read; empty for a node that was not stored.
        now_ms: The time.
        before: State before.
        after: State after.
        event: What caused it.
        cause: In words.
        actor: Initiator.
        reason: Reason of the state, shown to the node.
        deadline: Of the next heartbeat: milliseconds, `clear` or `keep`.
        removal: Time of the removal from the ledger: milliseconds, `clear` or `keep`.
        only_if_due_by_ms: Writes only if the node's deadline is not later.
        quiet: Writes no line of history.
        fields: Other fields of the node.
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
    """Writes facts about a known node without touching its state; True if something changed."""

    address: Address
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindOverdue(ScriptCall[tuple[Address, ...]]):
    """Returns addresses of nodes whose deadline has passed; none after a lost lease or during an amnesty.

    Args:
        lease: Of the liveness loop.
        now_ms: The time.
        gap_ms: Time since the last call from which on the loop counts as paused.
        amnesty_ms: Time after a pause in which no node is overdue.
        furthest_ms: Latest sensible deadline, from now.
        limit: Most addresses.
    """

    lease: str
    now_ms: int
    gap_ms: int
    amnesty_ms: int
    furthest_ms: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveCommand(ScriptCall[str]):
    """Leaves a command for a node; replies `left`, `too-many` or `unknown-node`.

    Args:
        address: The node.
        id: The command's.
        command: As JSON.
        most_waiting: Commands that may wait for one node.
    """

    address: Address
    id: str
    command: str
    most_waiting: int


# Tasks and assignments


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask(ScriptCall[bool]):
    """Writes a task; False if it changed since it was read.

    Args:
        task: Id of the task.
        revision: As read; empty for a new task.
        now_ms: The time.
        is_open: The scheduler has to look at it.
        kind: Of the event.
        actor: Who changed it.
        created_ms: When it was created.
        fields: To write.
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
class WriteTaskState(ScriptCall[Written]):
    """Writes the state that the scheduler found for a task.

    Args:
        lease: Of the scheduler.
        task: Id of the task.
        generation: Of the task that the scheduler saw.
        state: The state.
        reason: The reason.
        now_ms: The time.
        over: The state is final.
    """

    lease: str
    task: str
    generation: int
    state: str
    reason: str
    now_ms: int
    over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTask(ScriptCall[bool]):
    """Deletes a task; False if there is none."""

    task: str
    now_ms: int
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAssignment(ScriptCall[Written]):
    """Gives a healthy, free node an assignment.

    Args:
        lease: Of the scheduler.
        address: The node.
        assignment: Id of the new assignment.
        head: Its own part of heartbeat answers, as JSON without braces.
        reference: `task:generation`.
        task: Id of the task.
        task_name: Its name.
        now_ms: The time.
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
class RenewAssignment(ScriptCall[Written]):
    """Gives a node a new generation of its assignment.

    Args:
        lease: Of the scheduler; empty for a person's request.
        address: The node.
        assignment: Id of the assignment.
        generation: As read.
        head: Own part of heartbeat answers in the new generation.
        reference: `task:generation`.
        now_ms: The time.
        why: Reason as text.
        actor: Initiator.
    """

    lease: str
    address: Address
    assignment: str
    generation: int
    head: str
    reference: str
    now_ms: int
    why: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAssignment(ScriptCall[Written]):
    """Takes an assignment from its node.

    Args:
        lease: Of the scheduler.
        address: The node.
        assignment: Id of the assignment.
        state: Its final state.
        why: Reason as text.
        now_ms: The time.
        kept_ms: How long the assignment is still kept.
        outcome: JSON that counts for the task; None if the end does not count.
    """

    lease: str
    address: Address
    assignment: str
    state: str
    why: str
    now_ms: int
    kept_ms: int
    outcome: str | None


class LogPosition(NamedTuple):
    """State of an assignment's log after lines were pushed."""

    known: bool
    """False if the node has no such assignment."""
    next_sequence: int
    wanted_until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLogLines(ScriptCall[LogPosition]):
    """Keeps the lines of an assignment's log that are new.

    Args:
        address: The node.
        assignment: Id of the assignment.
        most_lines: Lines that are kept.
        most_bytes: Bytes that are kept.
        kept_ms: How long the log is kept.
        has_more: The node has further lines.
        sequences_and_lines: Sequence number and JSON of each line in turn, ascending.
    """

    address: Address
    assignment: str
    most_lines: int
    most_bytes: int
    kept_ms: int
    has_more: bool
    sequences_and_lines: tuple[int | str, ...]


# Uploads


class UploadCount(NamedTuple):
    """Whether an upload fits the quota."""

    exceeded: str
    """`open`, `files` or `bytes`; empty if the upload was counted."""
    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountUpload(ScriptCall[UploadCount]):
    """Counts an upload ticket against its owner's quota.

    Args:
        owner: The node.
        object: Key of the object.
        size: In bytes.
        now_ms: The time.
        open_until_ms: When the ticket expires.
        most_open: Tickets that may be open.
        window: Number of the quota's window.
        window_ends_ms: When it ends.
        most_files: Files in a window.
        most_bytes: Bytes in a window.
        account: Field that counts the bytes besides: `other` or `bytes`.
        most_account_bytes: Bytes in a window on that field.
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


# Relayed transactions


class Queued(NamedTuple):
    """A transaction in the queue."""

    same: bool
    """The body that was queued under this name is the given one."""
    fields: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTransaction(ScriptCall[Queued]):
    """Queues a transaction for the ledger, unless it was queued before.

    Args:
        kind: Work, join or dispute.
        name: Names it within its kind.
        body_hash: SHA-256 of the body.
        body: JSON.
        now_ms: The time.
    """

    kind: str
    name: str
    body_hash: str
    body: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueTransaction(ScriptCall[bool]):
    """Queues a carried transaction again after a reorg; False if it was not carried."""

    kind: str
    name: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleTransaction(ScriptCall[Written]):
    """Writes the state of a queued transaction.

    Args:
        lease: Of the relayer.
        kind: Work, join or dispute.
        name: Names it within its kind.
        state: The state.
        reason: In words.
        passing: The reason is temporary, and the node may submit it again.
        due_ms: Time of the next try; None if it is settled.
        refused: Counts a refusal by the ledger.
        kept_ms: How long a settled transaction is kept.
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
    """`ok`, `again` (the same request had this slot before), or the reason for the refusal."""
    slot: str
    """Id of the slot; for `not-active` the node's state, for `earlier` the step that needs rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSlot(ScriptCall[SlotLeased]):
    """Leases the next slot of a node.

    Args:
        node: Asks for a slot.
        provider: The node's.
        step: The step that it asks for.
        groups: The most groups that it takes.
        request: Names the request: repeated, it gets the same slot.
        now_ms: The time.
        waits_until_ms: Until when the step waits for the slot; `now_ms` if it does not.
        expiry_s: When the lease ends.
        remembered_ms: How long the request is remembered.
        version: The version that the caller read; the script refuses another one.
        digest: The digest of that version.
        async_level: How many steps generation may be ahead of the version.
        default_demand: Groups of a step for which the trainer has not said.
        groups_per_slot: The most groups of a slot.
        most_units: The most work units of a lease.
        most_live: The most slots that the node may hold at a time.
        beacon: The hash of the beacon block.
        beacon_block: The block whose hash is part of the seed.
        asking_ms: How long a provider counts as asking after it asked.
        holders: While others ask, a provider holds at most this part of a step: 3 is a third.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSlot(ScriptCall[Written]):
    """Writes the state of a slot.

    Args:
        loop: Loop whose lease is checked.
        lease: Its value; empty for a request.
        slot: Id of the slot.
        revision: As read; empty for a new slot.
        counted: Count of the step that the slot's groups belong to now.
        due_ms: When a loop has to look at it; None for never.
        accused: Its work was judged forged.
        fields: To write.
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
class WriteRunState(ScriptCall[Written]):
    """Changes the state of the run, and the demand of one step.

    Args:
        loop: Loop whose lease is checked.
        lease: Its value; empty for a request.
        revision: As read.
        now_ms: The time.
        step: Step of the demand; None for no step.
        demand: Groups wanted.
        rounds: Number of times that the trainer raised the demand.
        kind: Of the event; empty for none.
        detail: Of the event.
        actor: Of the event.
        fields: To write; an empty value deletes its field.
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
class HoldTrainerLease(ScriptCall[str]):
    """Acquires or renews the trainer's lease; replies with its value, empty while another trainer has the run.

    Args:
        holder: The trainer.
        lease: Value that it holds; empty when it starts.
        lifetime_ms: Time until the lease expires unless renewed.
        start: Names the start of the process; empty if it does not say.
    """

    holder: str
    lease: str
    lifetime_ms: int
    start: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSlots(ScriptCall[int]):
    """Deletes some slots of an old step; replies with the number that is left, 0 if the lease was lost."""

    loop: str
    lease: str
    step: int
    limit: int
