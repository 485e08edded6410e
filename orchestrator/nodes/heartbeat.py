"""Answers heartbeats: one signature checked, one script in Redis, one signature made.

A node that is healthy or draining, as nearly all are nearly always, is served by the script alone. Whatever needs a
decision (a node that was silent, one that wants to drain, a stranger) goes through the table of lives, and then through
the script again.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass

import structlog
from pydantic import ValidationError
from pydantic_core import to_json

from orchestrator.domain.heartbeat_interval import HeartbeatInterval
from orchestrator.domain.node_states import NodeEvent
from orchestrator.nodes.membership import Standings
from orchestrator.nodes.transitions import NodeTransitions
from orchestrator.store.database import Argument, Database
from orchestrator.store.nodes import NodeStore
from orchestrator.store.tasks import TaskStore
from protocol.errors import Forbidden, Unavailable
from protocol.http.replay_guard import ReplayGuard
from protocol.http.verification import SignedRequest, unprocessable
from protocol.identifiers import ZERO_ADDRESS, Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.wire.heartbeat import Heartbeat, NodeState

MOST_FRAGMENTS = 256
"""Tasks whose part of the answer is remembered; each is at most a request's size."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Told:
    """Result of the heartbeat script for a node that it served."""

    state: str
    assignment_id: str
    head: str
    reference: str
    reason: str
    interval_ms: int
    commands: list[bytes]
    failure: str = ""
    """Name of the task that failed on this node last, and the reason; empty once another was placed."""


class HeartbeatService:
    """Serves heartbeats of one pool.

    Args:
        pool_id: Heartbeats for another pool are refused.
        database: The pool's.
        nodes: For decisions.
        tasks: For what nodes are told to run.
        life: For decisions.
        standings: Says who is a member.
        admission: Rate and nonces.
        pace: Intervals and deadlines.
        clock: Whose time counts.
    """

    def __init__(
        self,
        *,
        pool_id: int,
        database: Database,
        nodes: NodeStore,
        tasks: TaskStore,
        life: NodeTransitions,
        standings: Standings,
        admission: ReplayGuard,
        pace: HeartbeatInterval,
        clock: Clock,
    ) -> None:
        self._pool_id = pool_id
        self._database = database
        self._nodes = nodes
        self._tasks = tasks
        self._life = life
        self._standings = standings
        self._admission = admission
        self._pace = pace
        self._clock = clock
        self._fragments: OrderedDict[str, bytes] = OrderedDict()
        _, kept, rate_interval, tolerance = admission.terms(ZERO_ADDRESS, "").arguments
        constants = {
            "KEPT": kept,
            "RATE_INTERVAL": rate_interval,
            "TOLERANCE": tolerance,
            "SHORTEST": int(pace.shortest.total_seconds() * 1000),
            "TARGET_RATE": pace.target_rate,
            "UNHEALTHY_AFTER": pace.unhealthy_after,
            "DEAD_AFTER": pace.dead_after,
        }
        database.fix("heartbeat", constants)

    async def answer(self, signed: SignedRequest, *, ip: str) -> bytes:
        """The body of the answer to a heartbeat that was authenticated and not yet admitted.

        Args:
            signed: The heartbeat.
            ip: Where it came from, as the front door saw it; kept of members only.

        Raises:
            Unprocessable: The body is no heartbeat.
            Forbidden: It is for another pool.
            Conflict: It is a replay.
            RateLimited: The node speaks too often; or it is unknown, and too many unknown nodes are being looked up.
            Unavailable: Redis is down; or the node is unknown and the chain is down; or its task is being changed.
        """
        try:
            beat = Heartbeat.model_validate_json(signed.body)
        except ValidationError as error:
            raise unprocessable(error) from None
        if beat.pool_id != self._pool_id:
            raise Forbidden(
                f"this is the orchestrator of pool {self._pool_id}, not of pool {beat.pool_id}",
                hint="check the pool's number in the worker's settings",
                code="wrong-pool",
            )
        told = await self._tell(signed, beat, ip, admit=True)
        for _ in range(3):
            if isinstance(told, _Told):
                return await self._compose(told)
            if not await self._decide(signed.address, NodeState(told) if told else None, beat):
                return await self._refuse(signed.address)
            told = await self._tell(signed, beat, ip, admit=False)
        raise Unavailable("the node's state changes too fast", hint="try again")

    async def _tell(self, signed: SignedRequest, beat: Heartbeat, ip: str, *, admit: bool) -> _Told | str:
        terms = self._admission.terms(signed.address, signed.nonce)
        report = beat.assignment
        stretch = 1 + self._pace.stagger * random.random()  # noqa: S311 - spreads load, keeps nothing secret
        flags = ("1" if admit else "0") + ("1" if beat.draining else "0")
        arguments: list[Argument] = [terms.arguments[0], flags, signed.address, f"{stretch:.4f}", beat.worker_version]
        arguments.append(to_json(beat.metrics))
        if report is None:
            arguments += ["", "", ""]
        else:
            # What was reported, in one string: compared as a whole, and taken apart only when it is news.
            exit_code = "" if report.exit_code is None else str(report.exit_code)
            started = "" if report.started_at_ms is None else str(report.started_at_ms)
            fingerprint = to_json([report.state, str(report.restarts), exit_code, started, report.detail])
            arguments += [report.id, report.generation, fingerprint]
        answer = await self._database.call("heartbeat", *arguments, ip, *beat.acknowledged, keys=terms.keys)
        if answer[0] != 0:
            self._admission.check(answer[:2])
        if answer[1] == 1:
            return str(answer[2].decode())
        state, identifier, _generation, head, reference, reason = (part.decode() for part in answer[2:8])
        return _Told(state, identifier, head, reference, reason, answer[8], answer[9], answer[10].decode())

    async def _decide(self, address: Address, state: NodeState | None, beat: Heartbeat) -> bool:
        """Changes the node's state as this heartbeat demands; whether the node may then be served."""
        row = await self._nodes.get(address)
        if state is NodeState.HEALTHY and beat.draining:
            await self._life.happened(
                address,
                NodeEvent.DRAIN,
                cause="the worker takes nothing new: its contributor drains or stops it",
                actor=address,
                fields={"drain": "node"},
            )
            return True
        if state is NodeState.DRAINING:
            await self._life.happened(
                address, NodeEvent.RESUME, cause="the contributor stays", actor=address, fields={"drain": ""}
            )
            return True
        if not (await self._standings.membership(row)).member:
            return False
        if row.state not in {NodeState.HEALTHY, NodeState.UNHEALTHY, NodeState.DRAINING, NodeState.DEAD}:
            await self._life.happened(
                address,
                NodeEvent.JOINED,
                cause="the ledger has it as a member",
                actor="ledger",
                fields={"member": "1", **self._provider(address)},
            )
        await self._life.happened(address, NodeEvent.HEARTBEAT, cause="it spoke", actor=address)
        if row.drain == "owner":
            await self._life.happened(address, NodeEvent.DRAIN, cause="the owner drained it before", actor="owner")
        return True

    def _provider(self, address: Address) -> dict[str, str]:
        known = self._standings.known(address)
        return {"provider": known.provider} if known is not None and known.provider else {}

    async def _refuse(self, address: Address) -> bytes:
        """Returns the response for a node that is not a member: its state and the reason."""
        row = await self._nodes.get(address)
        reason = row.reason or "the pool has not seen this node in discovery yet"
        if row.state is NodeState.BANNED:
            reason = f"banned: {row.reason}"
        elif row.state in {NodeState.DISCOVERED, NodeState.INVITED, NodeState.EVICTED}:
            reason = f"not a member of the pool: {reason}"
        interval = self._pace.interval(await self._nodes.expected(), draw=random.random())  # noqa: S311 - spreads load
        told = _Told(row.state, "", "", "", reason, int(interval.total_seconds() * 1000), [])
        return await self._compose(told)

    async def _compose(self, told: _Told) -> bytes:
        assignment, reason = b"null", told.reason
        if told.assignment_id and told.state in {NodeState.HEALTHY, NodeState.DRAINING}:
            fragment = await self._fragment(told.reference)
            if fragment is None:
                reason = "its task was deleted"
            else:
                assignment, reason = b"{" + told.head.encode() + b"," + fragment + b"}", ""
        elif told.state == NodeState.HEALTHY:
            reason = f"no task wants this node now; {told.failure}" if told.failure else "no task wants this node now"
        return (
            b'{"state":"%b","assignment":%b,"reason":%b,"commands":[%b],"next_interval_seconds":%b,"server_time_ms":%d}'
            % (
                told.state.encode(),
                assignment,
                to_json(reason[:4000]),
                b",".join(told.commands),
                f"{told.interval_ms / 1000:.3f}".encode(),
                unix_ms(self._clock.now()),
            )
        )

    async def _fragment(self, reference: str) -> bytes | None:
        known = self._fragments.get(reference)
        if known is not None:
            self._fragments.move_to_end(reference)
            return known
        fragment = await self._tasks.fragment(reference)
        if fragment is not None:
            self._fragments[reference] = fragment
            if len(self._fragments) > MOST_FRAGMENTS:
                self._fragments.popitem(last=False)
        return fragment
