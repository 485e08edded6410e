"""Service that handles heartbeats: one signature check, one Redis script, one signed answer.

For a healthy or draining node, which is the usual case, one run of the script is enough. If the node was silent, begins
or ends a drain, or is not known as a member, the service changes the node's state in Redis and then runs the script
again.
"""

from __future__ import annotations

from cachetools import LRUCache
from pydantic import ValidationError
from pydantic_core import to_json

from orchestrator.domain.heartbeat_interval import HeartbeatInterval
from orchestrator.domain.node_states import NodeEvent
from orchestrator.nodes.membership import NodeStatusCache
from orchestrator.nodes.transitions import NodeTransitions
from orchestrator.store.database import Database
from orchestrator.store.nodes import NodeStore
from orchestrator.store.scripts import HeartbeatReply, RecordHeartbeat
from orchestrator.store.tasks import TaskStore
from protocol.errors import Forbidden, Unavailable
from protocol.http.replay_guard import ReplayGuard
from protocol.http.verification import SignedRequest, unprocessable
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import unit
from protocol.wire.heartbeat import AssignmentReport, Heartbeat
from protocol.wire.nodes import NodeState

MOST_FRAGMENTS = 256
"""Maximum number of cached fragments. A fragment is the part of an answer that describes one generation of a task. It
is at most as large as the request that posted the task."""

_log = get_logger(__name__)


class HeartbeatService:
    """Serves heartbeats of one pool.

    Args:
        pool_id: Number of the pool; heartbeats for another pool are refused.
        database: The pool's database.
        nodes: Store of nodes.
        tasks: Store of tasks.
        transitions: Writes state transitions.
        status_cache: Looks up whether a node is a member.
        admission: Replay guard, whose limits the Redis script applies.
        heartbeat_interval: Heartbeat interval, from which deadlines follow.
        clock: Clock of the time in answers.
    """

    def __init__(
        self,
        *,
        pool_id: int,
        database: Database,
        nodes: NodeStore,
        tasks: TaskStore,
        transitions: NodeTransitions,
        status_cache: NodeStatusCache,
        admission: ReplayGuard,
        heartbeat_interval: HeartbeatInterval,
        clock: Clock,
    ) -> None:
        self._pool_id = pool_id
        self._database = database
        self._nodes = nodes
        self._tasks = tasks
        self._transitions = transitions
        self._status_cache = status_cache
        self._admission = admission
        self._heartbeat_interval = heartbeat_interval
        self._clock = clock
        self._fragments: LRUCache[str, bytes] = LRUCache(MOST_FRAGMENTS)
        database.set_constants(
            RecordHeartbeat,
            nonce_kept_ms=admission.limits.nonce_kept_ms,
            interval_us=admission.limits.interval_us,
            tolerance_us=admission.limits.tolerance_us,
            shortest_ms=int(heartbeat_interval.shortest.total_seconds() * 1000),
            target_rate=heartbeat_interval.target_rate,
            unhealthy_after=heartbeat_interval.unhealthy_after,
            dead_after=heartbeat_interval.dead_after,
        )

    async def answer(self, signed: SignedRequest, ip: str) -> bytes:
        """Checks the nonce and rate of a heartbeat, records it, and returns the body of the answer.

        Args:
            signed: The request, with a verified signature.
            ip: Source address of the request, stored for members only.

        Raises:
            Unprocessable: The body is not a heartbeat.
            Forbidden: The heartbeat is for another pool.
            Conflict: The request is a replay.
            RateLimited: The node sends too often; or it is unknown, and too many look-ups of unknown nodes are running.
            Unavailable: Redis is down; or the node is unknown and the chain is down; or other requests changed the
                node's task or state at the same time.
        """
        try:
            heartbeat = Heartbeat.model_validate_json(signed.body)
        except ValidationError as error:
            raise unprocessable(error) from None
        if heartbeat.pool_id != self._pool_id:
            raise Forbidden(
                f"this is the orchestrator of pool {self._pool_id}, not of pool {heartbeat.pool_id}",
                hint="check the pool's number in the worker's settings",
                code="wrong-pool",
            )
        reply = await self._record(signed, heartbeat, ip, admitted=False)
        for _ in range(3):
            if reply.served:
                return await self._compose(reply)
            state = NodeState(reply.state) if reply.state else None
            if not await self._decide(signed.address, state, heartbeat):
                return await self._refuse(signed.address)
            reply = await self._record(signed, heartbeat, ip, admitted=True)
        raise Unavailable("other requests changed the node's state during all three attempts", hint="try again")

    async def _record(self, signed: SignedRequest, heartbeat: Heartbeat, ip: str, *, admitted: bool) -> HeartbeatReply:
        report = heartbeat.assignment
        reply = await self._database.run(
            RecordHeartbeat(
                address=signed.address,
                nonce=signed.nonce,
                now_us=self._admission.now_us(),
                admitted=admitted,
                draining=heartbeat.draining,
                stretch=1 + self._heartbeat_interval.stagger * unit(),
                version=heartbeat.worker_version,
                metrics=to_json(heartbeat.metrics),
                ip=ip,
                reported_assignment="" if report is None else report.id,
                reported_generation=None if report is None else report.generation,
                report=b"" if report is None else _report_json(report),
                acknowledged=heartbeat.acknowledged,
            )
        )
        self._admission.check(reply.admission, reply.wait_us)
        return reply

    async def _decide(self, address: Address, state: NodeState | None, heartbeat: Heartbeat) -> bool:
        """Changes the node's state as its heartbeat requires; returns False for a non-member."""
        row = await self._nodes.get(address)
        if state is NodeState.HEALTHY and heartbeat.draining:
            await self._transitions.apply(
                address,
                NodeEvent.DRAIN,
                cause="the worker takes no new task: its contributor drains or stops it",
                actor=address,
                fields={"drain": "node"},
            )
            return True
        if state is NodeState.DRAINING:
            await self._transitions.apply(
                address, NodeEvent.RESUME, cause="the worker accepts tasks again", actor=address, fields={"drain": ""}
            )
            return True
        if not (await self._status_cache.membership(row)).member:
            return False
        if row.state not in {NodeState.HEALTHY, NodeState.UNHEALTHY, NodeState.DRAINING, NodeState.DEAD}:
            await self._transitions.apply(
                address,
                NodeEvent.JOINED,
                cause="it is a member on the ledger",
                actor="ledger",
                fields={"member": "1", **self._provider(address)},
            )
        await self._transitions.apply(address, NodeEvent.HEARTBEAT, cause="it sent a heartbeat", actor=address)
        if row.drain == "owner":
            await self._transitions.apply(
                address, NodeEvent.DRAIN, cause="the owner's earlier drain still applies", actor="owner"
            )
        return True

    def _provider(self, address: Address) -> dict[str, str]:
        known = self._status_cache.known(address)
        return {"provider": known.provider} if known is not None and known.provider else {}

    async def _refuse(self, address: Address) -> bytes:
        """Returns the body of the answer for a node that is not a member: its state and the reason."""
        row = await self._nodes.get(address)
        reason = row.reason or "the pool has not seen this node in discovery yet"
        if row.state is NodeState.BANNED:
            reason = f"banned: {row.reason}"
        elif row.state in {NodeState.DISCOVERED, NodeState.INVITED, NodeState.EVICTED}:
            reason = f"not a member of the pool: {reason}"
        interval = self._heartbeat_interval.interval(await self._nodes.expected(), draw=unit())
        return await self._compose(
            HeartbeatReply(state=row.state, reason=reason, interval_ms=int(interval.total_seconds() * 1000))
        )

    async def _compose(self, reply: HeartbeatReply) -> bytes:
        """Returns a `HeartbeatAnswer` as JSON.

        The method joins the answer from parts, because assignment, task and commands are stored as JSON already.
        """
        assignment, reason = b"null", reply.reason
        if reply.assignment_id and reply.state in {NodeState.HEALTHY, NodeState.DRAINING}:
            fragment = await self._fragment(reply.reference)
            if fragment is None:
                reason = "its task was deleted"
            else:
                assignment, reason = b"{" + reply.head.encode() + b"," + fragment + b"}", ""
        elif reply.state == NodeState.HEALTHY:
            reason = f"no task needs this node now; {reply.failure}" if reply.failure else "no task needs this node now"
        return (
            b'{"state":"%b","assignment":%b,"reason":%b,"commands":[%b],"next_interval_seconds":%b,"server_time_ms":%d}'
            % (
                reply.state.encode(),
                assignment,
                to_json(reason[:4000]),
                b",".join(reply.commands),
                f"{reply.interval_ms / 1000:.3f}".encode(),
                unix_ms(self._clock.now()),
            )
        )

    async def _fragment(self, reference: str) -> bytes | None:
        """Returns the task's part of an answer, cached by `reference`; None if the task was deleted."""
        known = self._fragments.get(reference)
        if known is not None:
            return known
        fragment = await self._tasks.fragment(reference)
        if fragment is not None:
            self._fragments[reference] = fragment
        return fragment


def _report_json(report: AssignmentReport) -> bytes:
    """Returns a node's report as one JSON string.

    The script compares it with the stored string, and parses it only if the two differ.
    """
    exit_code = "" if report.exit_code is None else str(report.exit_code)
    started = "" if report.started_at_ms is None else str(report.started_at_ms)
    return to_json([report.state, str(report.restarts), exit_code, started, report.detail])
