"""Sends heartbeats to the orchestrator and applies its signed answers.

The orchestrator sets the interval.

While the orchestrator is down, the running task continues. The worker keeps sending heartbeats, with a bounded
back-off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from enum import StrEnum

from cachetools import LRUCache

from protocol import __version__
from protocol.errors import MusterError, RateLimited, Unauthenticated
from protocol.identifiers import Address
from protocol.runtime.backoff import GrowingPause
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import jittered
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import sleep_or
from protocol.wire.heartbeat import MAX_COMMANDS, Command, CommandKind, Heartbeat, HeartbeatAnswer
from protocol.wire.nodes import NodeState
from worker.chain.ledger_chain import LedgerChain, NodeStatus, describe_error
from worker.logs.push import LogPusher
from worker.session.orchestrator_client import OrchestratorSession
from worker.situation import Phase, Situation
from worker.tasks.reconciler import Reconciler

REQUEST_TIMEOUT = timedelta(seconds=10)
"""Time limit of one heartbeat."""
MIN_EARLY_PAUSE = timedelta(seconds=1)
"""Minimum time from a heartbeat to the next one, if the worker sends the next one early to report a change of the
task."""
SKEW_TO_REPORT = timedelta(seconds=10)
"""Minimum difference between this machine's clock and the orchestrator's for which the worker logs a warning."""
LEAST_INTERVAL = timedelta(milliseconds=100)
"""Shortest interval between heartbeats that an orchestrator can set."""
BANNED_INTERVAL = timedelta(minutes=1)
"""Shortest interval between heartbeats of a banned node."""
SILENT_AFTER = 3
"""Number of unanswered heartbeats in a row after which the worker checks its membership and the orchestrator's URL.

HTTP answers 429 and 503 count as unanswered: otherwise a stranger who controls an abandoned URL could keep the worker
at that URL.
"""
FIRST_CHECK_PAUSE = timedelta(seconds=15)
LONGEST_CHECK_PAUSE = timedelta(minutes=5)
"""Shortest and longest pause between two checks of membership and URL; the first pause is never longer than the longest
pause between attempts to reach a service (`wait_at_most_s`). The pauses have jitter, because the workers of
an overloaded orchestrator all start to check at about the same time.
"""
READS_TO_LEAVE = 2
"""Number of ledger reads in a row without a membership of this node after which the worker ends the membership.

One read is not enough: an RPC endpoint that is some blocks behind does not show a node that has just joined.
"""
MOST_REMEMBERED = 16 * MAX_COMMANDS
"""Maximum number of ids of executed commands that are remembered.

The ids are needed because the orchestrator repeats a command until the worker acknowledges it.
"""

_MEMBER_STATES = {NodeState.HEALTHY, NodeState.UNHEALTHY, NodeState.DRAINING}
"""States that the orchestrator reports for members of the pool."""
_log = get_logger(__name__)


class HeartbeatStop(StrEnum):
    """Reason why the heartbeat loop ended."""

    NOT_A_MEMBER = "not-a-member"
    """The node is no longer a member of the pool. The worker waits for another invite."""
    KEY_CHANGED = "key-changed"
    """The ledger names another orchestrator key."""
    MOVED = "moved"
    """The orchestrator does not answer at its URL, and a newer invite names another URL."""
    STOPPED = "stopped"


class HeartbeatLoop:
    """Sends heartbeats during one membership.

    Args:
        orchestrator: Session with the orchestrator.
        known_key: Address of the orchestrator key, which must sign the answers.
        pool_id: Number of the pool.
        chain: The ledger, which is read when the orchestrator does not know this node or signs with another key.
        reconciler: Reconciler, which receives assignments and reports the task's state.
        pusher: Log pusher, which executes `send-logs` commands.
        gauges: Function that returns the gauges of machine and task.
        situation: Status of the worker, which is updated with the orchestrator's answers.
        clock: Clock that measures intervals and pauses.
        stopping: Event that ends the loop.
        longest_pause: Maximum pause between attempts while the orchestrator is down, also if it asks for a longer one.
        has_moved: Function that returns whether a newer invite names another URL.
    """

    def __init__(
        self,
        *,
        orchestrator: OrchestratorSession,
        known_key: Address,
        pool_id: int,
        chain: LedgerChain,
        reconciler: Reconciler,
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
        self._reconciler = reconciler
        self._pusher = pusher
        self._gauges = gauges
        self._situation = situation
        self._clock = clock
        self._stopping = stopping
        self._pause = GrowingPause(first=timedelta(seconds=1), longest=longest_pause)
        self._longest_pause = longest_pause
        self._has_moved = has_moved
        self._unanswered = 0
        self._absent = 0
        """Number of ledger reads in a row that showed no membership of this node."""
        self._check_pause = GrowingPause(first=min(FIRST_CHECK_PAUSE, longest_pause), longest=LONGEST_CHECK_PAUSE)
        self._next_check = 0.0
        self._acknowledged: list[str] = []
        self._executed: LRUCache[str, None] = LRUCache(MOST_REMEMBERED)
        self._reported: tuple[object, ...] = ()
        self.send_early = asyncio.Event()
        """Event that makes the loop send the next heartbeat early."""

    async def run(self) -> HeartbeatStop:
        """Sends heartbeats until the membership ends, the URL or key changes, or the worker stops."""
        while not self._stopping.is_set():
            try:
                answer = await self.send()
            except Unauthenticated as error:
                if await self._key_changed():
                    return HeartbeatStop.KEY_CHANGED
                await self._back_off(error)
                if (reason := await self._check_membership()) is not None:
                    return reason
                continue
            except MusterError as error:
                await self._back_off(error)
                if (reason := await self._check_membership()) is not None:
                    return reason
                continue
            if answer.state in _MEMBER_STATES:
                self._absent = 0
            elif await self._membership_ended(answer):
                return HeartbeatStop.NOT_A_MEMBER
            await self._wait(answer)
        return HeartbeatStop.STOPPED

    async def send(self) -> HeartbeatAnswer:
        """Sends one heartbeat and applies the answer.

        Raises:
            MusterError: There was no answer, the orchestrator refused the heartbeat, or the answer's signature is
                wrong.
        """
        report = self._reconciler.report()
        acknowledged = tuple(self._acknowledged[:MAX_COMMANDS])
        heartbeat = Heartbeat(
            pool_id=self._pool_id,
            worker_version=__version__,
            assignment=report,
            metrics=dict(await run_in_thread(self._gauges)),
            acknowledged=acknowledged,
            draining=self._situation.draining,
        )
        answer = await self._orchestrator.heartbeat(heartbeat, call_timeout=REQUEST_TIMEOUT)
        self._acknowledged = self._acknowledged[len(acknowledged) :]
        self._reported = () if report is None else (report.id, report.state, report.restarts)
        self._apply_answer(answer)
        return answer

    def _apply_answer(self, answer: HeartbeatAnswer) -> None:
        situation = self._situation
        if situation.silent_because:
            _log.info("orchestrator-is-back")
        self._pause.succeeded()
        self._unanswered = 0
        if self._clock.monotonic() >= self._next_check:  # one answer between two checks must not reset the pause
            self._check_pause.succeeded()
        skew = self._orchestrator.time.update(answer.server_time_ms)
        if abs(skew) >= SKEW_TO_REPORT and abs(situation.clock_skew_s) < SKEW_TO_REPORT.total_seconds():
            _log.warning("clock-skew", seconds=round(skew.total_seconds(), 1), hint="set this machine's clock")
        situation.clock_skew_s = round(skew.total_seconds(), 3)
        situation.silent_because = situation.search = ""
        situation.last_answer_ms = answer.server_time_ms
        situation.interval_s = answer.next_interval_seconds
        if situation.node_state != answer.state:
            _log.info("state", state=answer.state, reason=answer.reason)
        situation.node_state = answer.state
        self._apply_assignment(answer)
        for command in answer.commands:
            if command.id not in self._executed:
                self._execute(command)
            self._executed[command.id] = None  # the newest one, also if it was executed before
            if command.id not in self._acknowledged:
                self._acknowledged.append(command.id)

    def _apply_assignment(self, answer: HeartbeatAnswer) -> None:
        situation = self._situation
        # If a newer orchestrator answers an unknown state, its signed assignment still counts.
        if answer.state in _MEMBER_STATES or not answer.state.is_known:
            situation.phase = Phase.DRAINING if situation.draining else Phase.MEMBER
            if refused := self._reconciler.offer(answer.assignment):
                _log.warning("assignment-refused", why=refused)
                situation.detail = refused
            else:
                situation.detail = "" if answer.assignment is not None else answer.reason or "no task for now"
            return
        self._reconciler.offer(None)
        situation.phase = Phase.BANNED if answer.state is NodeState.BANNED else Phase.WAITING
        situation.detail = answer.reason

    def _execute(self, command: Command) -> None:
        if not command.kind.is_known:
            _log.warning("unknown-command", kind=command.kind)
            self._situation.notices.append(
                f"this release does not know the pool's command {command.kind!s}: muster worker upgrade"
            )
            return
        match command.kind:
            case CommandKind.SEND_LOGS:
                progress = self._reconciler.progress
                assignment = command.text or (progress.assignment_id if progress is not None else "")
                if assignment:
                    self._pusher.want(assignment, since=command.since, until_ms=command.until_ms)
            case CommandKind.SHOW_NOTICE:
                _log.warning("notice-from-the-pool", text=command.text)
                self._situation.notices.append(command.text)
            case CommandKind.DRAIN:
                self._situation.notices.append(
                    f"the pool's owner drains this node: {command.text or 'no reason given'}"
                )
            case CommandKind.RESUME:
                self._situation.notices.append("the pool's owner has ended the drain: this node gets tasks again")

    async def _membership_ended(self, answer: HeartbeatAnswer) -> bool:
        """Returns whether the ledger confirms that the membership has ended.

        The orchestrator's answer alone is not enough, because the orchestrator may lag behind the ledger.
        """
        try:
            status = await self._chain.node_status()
        except MusterError:
            return False
        return self._is_absent(status) and not (answer.state is NodeState.BANNED and status.banned)

    def _is_absent(self, status: NodeStatus) -> bool:
        """Counts consecutive ledger reads that found no membership.

        Returns True after `READS_TO_LEAVE` reads in a row without a membership.
        """
        self._absent = 0 if status.member else self._absent + 1
        return self._absent >= READS_TO_LEAVE

    async def _check_membership(self) -> HeartbeatStop | None:
        """Counts an unanswered heartbeat; after `SILENT_AFTER` in a row, checks membership and URL.

        Returns the reason to end the loop, or None.

        The running task continues unless the node is no longer a member.
        """
        self._unanswered += 1
        if self._unanswered < SILENT_AFTER or self._clock.monotonic() < self._next_check or self._stopping.is_set():
            return None
        self._next_check = self._clock.monotonic() + self._check_pause.failed().total_seconds()
        try:
            status = await self._chain.node_status()
        except MusterError:
            return None  # `_has_moved` needs the chain, too: it verifies the invite that names a new URL
        if self._is_absent(status):
            self._reconciler.offer(None)
            return HeartbeatStop.NOT_A_MEMBER
        return HeartbeatStop.MOVED if await self._has_moved() else None

    async def _key_changed(self) -> bool:
        try:
            return await self._chain.orchestrator() != self._known_key
        except MusterError:
            return False

    async def _back_off(self, error: MusterError) -> None:
        text = describe_error(error)
        if text != self._situation.silent_because:
            _log.warning("no-heartbeat", detail=error.detail, hint=error.hint, code=error.code)
        self._situation.silent_because = text
        pause = self._pause.failed()
        if isinstance(error, RateLimited):
            # The answer is not signed: a stranger who controls an abandoned URL must not stop the search for a new one.
            pause = max(pause, min(error.retry_after, self._longest_pause))
        await sleep_or(self._clock, pause, self._stopping)

    async def _wait(self, answer: HeartbeatAnswer) -> None:
        """Waits for the interval minus up to 5 % jitter.

        Returns early when there is a change to report.
        """
        interval = max(LEAST_INTERVAL, timedelta(seconds=answer.next_interval_seconds))
        if answer.state is NodeState.BANNED:
            interval = max(interval, BANNED_INTERVAL)
        interval = jittered(interval, least=0.95)  # never later than the interval
        waited = timedelta()
        step = min(MIN_EARLY_PAUSE, interval)
        while waited < interval:
            self.send_early.clear()
            pause = min(step, interval - waited)
            if await sleep_or(self._clock, pause, self._stopping):
                return
            waited += pause
            if waited >= MIN_EARLY_PAUSE and (self.send_early.is_set() or self._has_changes()):
                return

    def _has_changes(self) -> bool:
        report = self._reconciler.report()
        return self._acknowledged != [] or (
            report is not None and (report.id, report.state, report.restarts) != self._reported
        )
