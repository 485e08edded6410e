"""Health of this validator: after a failed self-test it takes no work until a later one passes.

An item that can't be judged may be faulty itself, or this validator is; the self-test distinguishes the two. If the
self-test passes and three different items in a row still fail, the validator pauses, too: if another validator can take
over, or if all failures are of its network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from protocol.errors import MusterError, Unavailable
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock
from validator.domain.items import ItemId
from validator.store.members import Condition, Members, MemberState

SelfTest = Callable[[], Awaitable[None]]
"""Returns if this machine and the services that it needs work; raises the error otherwise."""

FIRST_REST, LONGEST_REST = timedelta(seconds=1), timedelta(seconds=15)
"""Pauses between failed self-tests; a repair is noticed within the longest."""

LONGEST_PAUSE = timedelta(minutes=1)
"""Longest pause between two items of a validator that passes its self-tests but fails at every item."""

TRUSTED_FOR = timedelta(seconds=5)
"""Validity of a passed self-test: files that are crafted to fail must not cause a self-test each."""

IN_A_ROW = 3
"""Number of different failed items, without a success between them, after which the validator pauses."""

FAILS = "fails-again-and-again"

_log = structlog.get_logger(__name__)


class NotWell(Unavailable):
    """This validator takes no work now; the text gives the reason."""

    code = "not-well"


class Health:
    """The health of one validator process.

    Args:
        test: The self-test.
        members: Processes that share this Redis; the condition is announced to them.
        clock: Clock of pauses.
    """

    def __init__(self, test: SelfTest, *, members: Members, clock: Clock) -> None:
        self._test = test
        self._members = members
        self._clock = clock
        self._condition = Condition(state=MemberState.STARTING)
        self._since = clock.monotonic()
        self._due = self._since
        self._vouched: float | None = None
        self._failed: dict[ItemId, bool] = {}
        """The last failed items, and whether the network was the cause."""
        self._in_a_row = 0
        self._rests = 0
        self._testing = asyncio.Lock()

    @property
    def condition(self) -> Condition:
        """Returns the present condition."""
        return self._condition

    @property
    def well(self) -> bool:
        """Returns whether it may take work."""
        return self._condition.state is MemberState.WELL

    @property
    def since(self) -> timedelta:
        """Age of the present condition (well or unwell)."""
        return timedelta(seconds=self._clock.monotonic() - self._since)

    def may_take(self, *, held: int) -> bool:
        """Returns whether it may take one more item; after repeated failures only if it holds no other."""
        return self.well and (held == 0 or len(self._failed) < IN_A_ROW - 1)

    async def check(self) -> None:
        """Returns if it is well; a readiness check.

        Raises:
            NotWell: It is not.
        """
        if self._condition.state is MemberState.STARTING:
            raise NotWell("the first self-test has not ended yet", code=MemberState.STARTING.value)
        if not self.well:
            raise NotWell(f"{self._condition.why} ({self._condition.code})", hint=self._condition.hint)

    async def round(self) -> None:
        """Runs the self-test if it is due, and announces the condition to the other processes.

        Raises:
            StoreUnavailable: Redis is down.
        """
        async with self._testing:
            if not self.well and self._clock.monotonic() >= self._due:
                await self._members.say(self._condition, since=self.since)  # the self-test may take a while
                await self._try()
        await self._members.say(self._condition, since=self.since)

    async def doubt(self) -> bool:
        """Runs the self-test after a failure that this validator may have caused; returns whether it is well."""
        async with self._testing:
            now = self._clock.monotonic()
            vouched = self._vouched is not None and now - self._vouched < TRUSTED_FOR.total_seconds()
            if self.well and not vouched:
                self._vouched = self._clock.monotonic() if await self._try() else None
        return self.well

    async def failed(self, item: ItemId, error: MusterError, *, outside: bool = False) -> None:
        """Counts an item that could not be judged although the self-test passes.

        Args:
            item: The item.
            error: The error.
            outside: True if a service did not answer. Then the validator pauses even if it is the only one.

        Raises:
            StoreUnavailable: Redis can't be asked for other processes.
        """
        self._in_a_row += item not in self._failed
        self._failed[item] = outside
        while len(self._failed) > IN_A_ROW:
            self._forget_oldest()
        if not self.well or len(self._failed) < IN_A_ROW:
            return
        cut_off = all(self._failed.values())
        if cut_off or await self._members.others_may_judge():
            why = f"{self._in_a_row} items in a row could not be judged here; the last error: {error.detail}"
            hint = f"it tries one item at a time while others judge; {error.hint or 'see its log'}"
            found = Condition(state=MemberState.UNWELL, code=FAILS, why=why, hint=hint)
            self._become(found, most=LONGEST_REST if cut_off else LONGEST_PAUSE)
            await self._members.say(self._condition, since=self.since)

    def went_well(self) -> None:
        """Resets the count of failures after an item was judged."""
        self._failed.clear()
        self._in_a_row = self._rests = 0

    async def _try(self) -> bool:
        found = await self._found()
        if found is None:
            while len(self._failed) >= IN_A_ROW:  # so that one more failure is enough to pause again
                self._forget_oldest()
            self._become(Condition(state=MemberState.WELL), most=LONGEST_REST)
        else:
            self._become(found, most=LONGEST_REST)
        return found is None

    def _forget_oldest(self) -> None:
        del self._failed[next(iter(self._failed))]

    async def _found(self) -> Condition | None:
        try:
            await self._test()
        except MusterError as error:
            return Condition(state=MemberState.UNWELL, code=error.code, why=error.detail, hint=error.hint)
        except Exception as error:  # noqa: BLE001 - a test that crashes is one that failed
            _log.exception("self-test-crashed")
            hint = "a fault of ours: the log has the traceback; please report it"
            return Condition(state=MemberState.UNWELL, code="self-test-crashed", why=type(error).__name__, hint=hint)
        return None

    def _become(self, found: Condition, *, most: timedelta) -> None:
        before, spent = self._condition, self.since
        if found.state is MemberState.WELL:
            if before.state is not MemberState.WELL:
                self._since = self._clock.monotonic()
                _log.info("well", was=before.code or before.state.value, for_s=round(spent.total_seconds(), 1))
            if before.code != FAILS:
                self._rests = 0
            self._condition = found
            return
        same = (before.state, before.code) == (found.state, found.code)
        if before.state is not found.state:
            self._since = self._clock.monotonic()
        if not same:
            _log.warning("unwell", code=found.code, why=found.why, hint=found.hint)
        self._rests += 1
        pause = backoff(FIRST_REST, most, self._rests)
        self._due = self._clock.monotonic() + pause.total_seconds()
        tests = before.tests + 1 if same else 1
        self._condition = Condition(state=found.state, code=found.code, why=found.why, hint=found.hint, tests=tests)
