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
    """The row changed since it was read, or its state does not allow the write."""
    YES = 1


# Nodes


class HeartbeatReply(NamedTuple):
    """Outcome of a heartbeat."""

    state: str
    """Empty for an unknown node."""
    admission: str = "admitted"
    """Decision of the replay guard; unless it is `admitted`, nothing was recorded."""
    wait_us: int = 0
    served: bool = False
    """False if a state transition must come first; then only `state` is set."""
    assignment_id: str = ""
    head: str = ""
    """Fields of the answer that belong to the assignment, as JSON without braces."""
    reference: str = ""
    """`task:generation`; identifies the task's fields of the answer."""
    reason: str = ""
    failure: str = ""
    """Name of the last task that failed on this node, and the reason; empty after a new assignment."""
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
        stretch: Random factor of the interval, so that nodes don't send at the same time.
        version: Version of the worker.
        metrics: Metrics as JSON.
        ip: Source address of the request.
        reported_assignment: Assignment that the node reports on; empty for none.
        reported_generation: Generation of that assignment.
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
    """Writes a node's state transition; False if the node's row changed since it was read.

    Args:
        address: The node.
        revision: Revision as read; empty for an unknown node.
        now_ms: Current time.
        before: State before.
        after: State after.
        event: Event that causes the transition.
        cause: Reason that is stored in the node's history.
        actor: Initiator of the change.
        reason: Reason of the state, shown to the node.
        deadline: Time by which the next heartbeat is due: Unix milliseconds, `clear` or `keep`.
        removal: Time at which the removal from the ledger is due: Unix milliseconds, `clear` or `keep`.
        only_if_due_by_ms: Latest deadline of the node for which the transition is written; None: any deadline.
        quiet: Whether to write no history entry.
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
    """Writes facts about a known node without touching its state; True if something changed."""

    address: Address
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindOverdue(ScriptCall[tuple[Address, ...]]):
    """Returns addresses of nodes whose deadline has passed; none after a lost lease or during an amnesty.

    Args:
        lease: Value of the liveness loop's leader lease.
        now_ms: Current time.
        gap_ms: Time between two calls after which the loop counts as paused.
        amnesty_ms: Time after a pause in which no node is overdue.
        furthest_ms: Maximum time until a deadline; later ones are brought forward.
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
    """Writes a task; False if it changed since it was read.

    Args:
        task: Id of the task.
        revision: Revision as read; empty for a new task.
        now_ms: Current time.
        is_open: Whether the scheduler has to plan the task.
        kind: Kind of the pool event.
        actor: Initiator of the change.
        created_ms: Time of creation.
        fields: Fields to write.
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
    """Writes the state that the scheduler determined for a task.

    Args:
        lease: Value of the scheduler's leader lease.
        task: Id of the task.
        generation: Generation of the task that was planned.
        state: New state.
        reason: Reason of the state.
        now_ms: Current time.
        over: Whether the state is final.
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
        lease: Value of the scheduler's leader lease.
        address: The node.
        assignment: Id of the new assignment.
        head: Fields of heartbeat answers that belong to the assignment, as JSON without braces.
        reference: `task:generation`.
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
class RenewAssignment(ScriptCall[Written]):
    """Gives a node a new generation of its assignment.

    Args:
        lease: Value of the scheduler's leader lease; empty for an API request.
        address: The node.
        assignment: Id of the assignment.
        generation: Generation as read.
        head: Fields of heartbeat answers that belong to the new generation, as JSON without braces.
        reference: `task:generation`.
        now_ms: Current time.
        why: Reason as text.
        actor: Initiator of the change.
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
    """Ends a node's assignment.

    Args:
        lease: Value of the scheduler's leader lease.
        address: The node.
        assignment: Id of the assignment.
        state: Final state.
        why: Reason as text.
        now_ms: Current time.
        kept_ms: Time for which the assignment is still kept.
        outcome: Outcome that counts for the task, as JSON; None if it does not count.
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
    """Stores the new lines of an assignment's log.

    Args:
        address: The node.
        assignment: Id of the assignment.
        most_lines: Maximum number of stored lines.
        most_bytes: Maximum number of stored bytes.
        kept_ms: Time for which the log is kept.
        has_more: Whether the node has further lines.
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
    """Result of the quota check of an upload."""

    exceeded: str
    """`open`, `files` or `bytes`; empty if the upload was counted."""
    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountUpload(ScriptCall[UploadCount]):
    """Counts an upload ticket against its owner's quota.

    Args:
        owner: The node.
        object: Key of the object.
        size: Size in bytes.
        now_ms: Current time.
        open_until_ms: Time at which the ticket expires.
        most_open: Maximum number of open tickets.
        window: Number of the quota's window.
        window_ends_ms: End of the window.
        most_files: Maximum number of files in a window.
        most_bytes: Maximum number of bytes in a window.
        account: `other` if the bytes count against a second limit, too; else `bytes`.
        most_account_bytes: Maximum number of bytes of that account in a window.
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
    """Whether the body that was queued under this name is the given one."""
    fields: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTransaction(ScriptCall[Queued]):
    """Queues a transaction for the ledger, unless it was queued before.

    Args:
        kind: `work`, `join` or `dispute`.
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
    """Queues a relayed transaction again after a reorg; False if it was not relayed."""

    kind: str
    name: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleTransaction(ScriptCall[Written]):
    """Writes the state of a queued transaction.

    Args:
        lease: Value of the relayer's leader lease.
        kind: `work`, `join` or `dispute`.
        name: Unique name within the kind.
        state: New state.
        reason: Reason of a refusal.
        passing: Whether the refusal is temporary, so that the node may submit it again.
        due_ms: Time of the next attempt; None if the transaction is settled.
        refused: Whether to count a refusal by the ledger.
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
    """`ok`, `again` (this request got the slot before), or the code of the refusal."""
    slot: str
    """Id of the slot. For `not-active`: the node's state; for `earlier`: the step that needs rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSlot(ScriptCall[SlotLeased]):
    """Leases the next slot of a node.

    Args:
        node: Node that asks for a slot.
        provider: Provider of the node.
        step: Requested step.
        groups: Maximum number of groups that the node takes.
        request: Id of the request; a repeated request gets the same slot.
        now_ms: Current time.
        waits_until_ms: Time until which the step waits for the slot; `now_ms` if it does not wait.
        expiry_s: End of the lease.
        remembered_ms: Time for which the request id is stored.
        version: Version that the caller read; the script leases no slots for another version.
        digest: Digest of that version.
        async_level: Number of steps by which generation may be ahead of the version.
        default_demand: Groups of a step until the trainer states a demand.
        groups_per_slot: Maximum groups of a slot.
        most_units: Maximum work units of a lease.
        most_live: Maximum number of slots that the node may hold at the same time.
        beacon: Hash of the beacon block.
        beacon_block: Number of the block whose hash is part of the seed.
        asking_ms: Time after its last request for which a provider counts as asking for slots.
        holders: While other providers ask, a provider holds at most 1/`holders` of a step.
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
        loop: Name of the leader lease to check.
        lease: Value of that leader lease; empty for an API request.
        slot: Id of the slot.
        revision: Revision as read; empty for a new slot.
        counted: Counter of the step to which the slot's groups belong now.
        due_ms: Time of the next check by a loop; None for no check.
        accused: Whether the slot's work was judged forged.
        fields: Fields to write.
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
        loop: Name of the leader lease to check.
        lease: Value of that leader lease; empty for an API request.
        revision: Revision as read.
        now_ms: Current time.
        step: Step of the demand; None for no step.
        demand: Demand in groups.
        rounds: Number of times that the trainer raised the demand.
        kind: Kind of the pool event; empty for none.
        detail: Detail of the event.
        actor: Actor of the event.
        fields: Fields to write; an empty value deletes its field.
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
    """Acquires or renews the trainer's lease; replies with its value; empty while another trainer holds it.

    Args:
        holder: Name of the trainer.
        lease: Value of the lease that the trainer holds; empty when it starts.
        lifetime_ms: Time until the lease expires unless renewed.
        start: Id of this start of the trainer's process; empty for none.
    """

    holder: str
    lease: str
    lifetime_ms: int
    start: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSlots(ScriptCall[int]):
    """Deletes some slots of an old step; replies with the number of slots left; 0 if the lease was lost."""

    loop: str
    lease: str
    step: int
    limit: int
