"""The heartbeat: says how it goes at the orchestrator's pace, believes signed answers only, does what they say.

An orchestrator that is down stops nothing here: what runs goes on, and the heart tries again after bounded pauses.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from enum import StrEnum

import structlog

from protocol import __version__
from protocol.errors import MusterError, RateLimited, Unauthenticated
from protocol.identifiers import Address
from protocol.runtime.clock import Clock
from protocol.wire.heartbeat import MAX_COMMANDS, Command, CommandKind, Heartbeat, HeartbeatAnswer, NodeState
from worker.backoff import GrowingPause, sleep_or
from worker.chain.ledger_chain import NodeStatus, WorkerChain, why
from worker.logs.push import LogPusher
from worker.session.orchestrator_client import OrchestratorSession
from worker.situation import Phase, Situation
from worker.tasks.reconciler import Reconciler

SOONEST = timedelta(seconds=1)
"""News of the task goes out early, but never sooner than this after the last heartbeat."""
SKEW_WORTH_SAYING = timedelta(seconds=10)
LEAST_INTERVAL = timedelta(milliseconds=100)
"""No orchestrator makes a worker speak more often than this."""
BANNED_INTERVAL = timedelta(minutes=1)
SILENT_AFTER = 3
"""Heartbeats in a row without an answer; from then on each one without an answer is followed by a look elsewhere."""
READINGS_TO_LEAVE = 2
"""Readings of the ledger in a row without this node before the membership counts as over. An RPC endpoint that is some
blocks behind does not know a node that has just joined, and must not stop its work."""
MOST_REMEMBERED = 16 * MAX_COMMANDS
"""Commands that are known to be done. One comes again until it was acknowledged, and few wait at a time."""

_MEMBER_STATES = {NodeState.HEALTHY, NodeState.UNHEALTHY, NodeState.DRAINING}
_log = structlog.get_logger(__name__)


class HeartbeatStop(StrEnum):
    """Why heartbeats ended."""

    NOT_A_MEMBER = "not-a-member"
    """The pool does not have this node any more: wait for another invite."""
    KEY_CHANGED = "key-changed"
    """The orchestrator signs with another key now."""
    MOVED = "moved"
    """The orchestrator is silent at its URL, and a newer invite names another."""
    STOPPED = "stopped"


class HeartbeatLoop:
    """Beats for one membership.

    Args:
        orchestrator: Whom to speak to.
        known_key: Whose signature it checks.
        pool_id: The pool.
        chain: To look at when the orchestrator does not know us, or signs with another key.
        converger: What runs.
        pusher: For `send-logs`.
        gauges: Says how busy machine and task are.
        situation: Where it shows what it hears.
        clock: Whose time is waited.
        stopping: Ends the beating.
        longest_pause: Between attempts while the orchestrator is down.
        has_moved: Returns whether the orchestrator has left word of another URL.
    """

    def __init__(
        self,
        *,
        orchestrator: OrchestratorSession,
        known_key: Address,
        pool_id: int,
        chain: WorkerChain,
        converger: Reconciler,
        pusher: LogPusher,
        gauges: Callable[[], Mapping[str, float]],
        situation: Situation,
        clock: Clock,
        stopping: asyncio.Event,
        longest_pause: timedelta,
        has_moved: Callable[[], Awaitable[bool]],
    ) -> None:
        self._orchestrator = orchestrator
        self._known_key = known_key
        self._pool_id = pool_id
        self._chain = chain
        self._converger = converger
        self._pusher = pusher
        self._gauges = gauges
        self._situation = situation
        self._clock = clock
        self._stopping = stopping
        self._pause = GrowingPause(first=timedelta(seconds=1), longest=longest_pause)
        self._has_moved = has_moved
        self._unanswered = 0
        self._absent = 0
        """Readings of the ledger in a row that did not have this node as a member."""
        self._acknowledged: list[str] = []
        self._done: dict[str, None] = {}
        self._reported: tuple[object, ...] = ()
        self.news = asyncio.Event()
        """Set it to have the next heartbeat sent early."""

    async def beat_until_end(self) -> HeartbeatStop:
        """Beats until the membership ends, the key changes, or the worker stops."""
        while not self._stopping.is_set():
            try:
                answer = await self.beat()
            except Unauthenticated as error:
                if await self._key_changed():
                    return HeartbeatStop.KEY_CHANGED
                await self._rest(error)
                if (ending := await self._look_elsewhere()) is not None:
                    return ending
                continue
            except MusterError as error:
                await self._rest(error)
                if (ending := await self._look_elsewhere()) is not None:
                    return ending
                continue
            if answer.state in _MEMBER_STATES:
                self._absent = 0
            elif await self._is_over(answer):
                return HeartbeatStop.NOT_A_MEMBER
            await self._wait(answer)
        return HeartbeatStop.STOPPED

    async def beat(self) -> HeartbeatAnswer:
        """Sends one heartbeat and does what the answer says.

        Raises:
            MusterError: There was no answer, or none that may be believed.
        """
        report = self._converger.report()
        acknowledged = tuple(self._acknowledged[:MAX_COMMANDS])
        beat = Heartbeat(
            pool_id=self._pool_id,
            worker_version=__version__,
            assignment=report,
            metrics=dict(await asyncio.to_thread(self._gauges)),
            acknowledged=acknowledged,
            draining=self._situation.draining,
        )
        answer = await self._orchestrator.heartbeat(beat)
        self._acknowledged = self._acknowledged[len(acknowledged) :]
        self._reported = () if report is None else (report.id, report.state, report.restarts)
        self._hear(answer)
        return answer

    def _hear(self, answer: HeartbeatAnswer) -> None:
        situation = self._situation
        if situation.silent_because:
            _log.info("orchestrator-is-back")
        self._pause.succeeded()
        self._unanswered = 0
        skew = self._orchestrator.time.heard(answer.server_time_ms)
        if abs(skew) >= SKEW_WORTH_SAYING and abs(situation.clock_skew_s) < SKEW_WORTH_SAYING.total_seconds():
            _log.warning("clock-skew", seconds=round(skew.total_seconds(), 1), hint="set this machine's clock")
        situation.clock_skew_s = round(skew.total_seconds(), 3)
        situation.silent_because = ""
        situation.last_answer_ms = answer.server_time_ms
        situation.interval_s = answer.next_interval_seconds
        if situation.node_state != answer.state:
            _log.info("state", state=answer.state, reason=answer.reason)
        situation.node_state = answer.state
        self._adopt(answer)
        for command in answer.commands:
            if command.id not in self._done:
                self._carry_out(command)
            self._done[command.id] = self._done.pop(command.id, None)  # now the newest
            if len(self._done) > MOST_REMEMBERED:
                del self._done[next(iter(self._done))]
            if command.id not in self._acknowledged:
                self._acknowledged.append(command.id)

    def _adopt(self, answer: HeartbeatAnswer) -> None:
        situation = self._situation
        if answer.state in _MEMBER_STATES:
            situation.phase = Phase.DRAINING if situation.draining else Phase.MEMBER
            if refused := self._converger.offer(answer.assignment):
                _log.warning("assignment-refused", why=refused)
                situation.detail = refused
            else:
                situation.detail = "" if answer.assignment is not None else answer.reason or "no task for now"
            return
        self._converger.offer(None)
        situation.phase = Phase.BANNED if answer.state is NodeState.BANNED else Phase.WAITING
        situation.detail = answer.reason

    def _carry_out(self, command: Command) -> None:
        match command.kind:
            case CommandKind.SEND_LOGS:
                progress = self._converger.progress
                assignment = command.text or (progress.assignment_id if progress is not None else "")
                if assignment:
                    self._pusher.want(assignment, since=command.since, until_ms=command.until_ms)
            case CommandKind.SHOW_NOTICE:
                _log.warning("notice-from-the-pool", text=command.text)
                self._situation.notices.append(command.text)
            case CommandKind.DRAIN:
                self._situation.notices.append(f"the pool drains this node: {command.text or 'no reason given'}")
            case CommandKind.RESUME:
                self._situation.notices.append("the pool gives this node work again")

    async def _is_over(self, answer: HeartbeatAnswer) -> bool:
        """Whether to go back and wait for an invite: not if the ledger has us and the orchestrator just lags behind."""
        try:
            standing = await self._chain.standing()
        except MusterError:
            return False
        return self._is_absent(standing) and not (answer.state is NodeState.BANNED and standing.banned)

    def _is_absent(self, standing: NodeStatus) -> bool:
        """Counts a reading of the ledger; returns whether enough in a row say that the node is no member."""
        self._absent = 0 if standing.member else self._absent + 1
        return self._absent >= READINGS_TO_LEAVE

    async def _look_elsewhere(self) -> HeartbeatStop | None:
        """After some silence: whether the ledger has us no more, or the orchestrator is somewhere else.

        What runs goes on meanwhile, unless the node is no member any more.
        """
        self._unanswered += 1
        if self._unanswered < SILENT_AFTER or self._stopping.is_set():
            return None
        try:
            standing = await self._chain.standing()
        except MusterError:
            return None  # the invite could not be checked either
        if self._is_absent(standing):
            self._converger.offer(None)
            return HeartbeatStop.NOT_A_MEMBER
        return HeartbeatStop.MOVED if await self._has_moved() else None

    async def _key_changed(self) -> bool:
        try:
            return await self._chain.orchestrator() != self._known_key
        except MusterError:
            return False

    async def _rest(self, error: MusterError) -> None:
        words = why(error)
        if words != self._situation.silent_because:
            _log.warning("no-heartbeat", detail=error.detail, hint=error.hint, code=error.code)
        self._situation.silent_because = words
        pause = self._pause.failed()
        if isinstance(error, RateLimited):
            pause = max(pause, error.retry_after)
        await sleep_or(self._clock, pause, self._stopping)

    async def _wait(self, answer: HeartbeatAnswer) -> None:
        """The interval with a little jitter, cut short by news of the task."""
        interval = max(LEAST_INTERVAL, timedelta(seconds=answer.next_interval_seconds))
        if answer.state is NodeState.BANNED:
            interval = max(interval, BANNED_INTERVAL)
        interval *= random.uniform(0.95, 1.0)  # noqa: S311 - jitter, not a secret; never later than asked
        waited = timedelta()
        step = min(SOONEST, interval)
        while waited < interval:
            self.news.clear()
            pause = min(step, interval - waited)
            if await sleep_or(self._clock, pause, self._stopping):
                return
            waited += pause
            if waited >= SOONEST and (self.news.is_set() or self._has_news()):
                return

    def _has_news(self) -> bool:
        report = self._converger.report()
        return self._acknowledged != [] or (
            report is not None and (report.id, report.state, report.restarts) != self._reported
        )
