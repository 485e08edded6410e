"""Health of this validator: it takes no work after a failed self-test, until a later one passes.

A trouble with a piece of work may be the work's or this validator's. The self-test says which. Where it passes, and one
piece after another fails all the same, the validator stands aside too: if somebody else is there to judge, or if what
fails is the way out from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from protocol.errors import MusterError, Unavailable
from protocol.runtime.clock import Clock
from validator.domain.items import ItemId
from validator.store.members import Condition, Members, MemberState

SelfTest = Callable[[], Awaitable[None]]
"""Returns if this machine, and what it reaches, can judge; raises what is wrong."""

FIRST_REST, LONGEST_REST = timedelta(seconds=1), timedelta(seconds=15)
"""Between two self-tests that fail: what was repaired is noticed within the longest."""

LONGEST_PENANCE = timedelta(minutes=1)
"""Between two pieces of work of a validator that passes its self-tests and fails at every piece."""

TRUSTED_FOR = timedelta(seconds=5)
"""A self-test that passed answers for further troubles: files that are made to cause them must not keep us testing."""

IN_A_ROW = 3
"""Different pieces of work, without a single one that went well between them."""

FAILS = "fails-again-and-again"

_log = structlog.get_logger(__name__)


class NotWell(Unavailable):
    """This validator takes no work now; a readiness check says why."""

    code = "not-well"


class Health:
    """The health of one validator process.

    Args:
        test: Its self-test.
        members: Who else judges on this Redis; they learn how we are.
        clock: Whose time counts.
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
        """The last that failed, and whether that was on the way out from here."""
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
        """For how long it has been well, or unwell for whatever reasons."""
        return timedelta(seconds=self._clock.monotonic() - self._since)

    def may_take(self, *, in_hand: int) -> bool:
        """Returns whether it may take one more piece of work; a repeatedly failing one only if it holds no other."""
        return self.well and (in_hand == 0 or len(self._failed) < IN_A_ROW - 1)

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
        """Tries itself if that is due, and tells the others how it is.

        Raises:
            StoreUnavailable: They can't be told.
        """
        async with self._testing:
            if not self.well and self._clock.monotonic() >= self._due:
                await self._members.say(self._condition, since=self.since)  # a test may take its time
                await self._try()
        await self._members.say(self._condition, since=self.since)

    async def doubt(self) -> bool:
        """Tries itself after a trouble that may be its own; whether it is well."""
        async with self._testing:
            now = self._clock.monotonic()
            vouched = self._vouched is not None and now - self._vouched < TRUSTED_FOR.total_seconds()
            if self.well and not vouched:
                self._vouched = self._clock.monotonic() if await self._try() else None
        return self.well

    async def failed(self, item: ItemId, error: MusterError, *, outside: bool = False) -> None:
        """One more piece of work could not be judged, though the self-test passes.

        Args:
            item: Which.
            error: Why.
            outside: Whether a service did not answer us. Then nothing is gained by going on, whoever else is there.

        Raises:
            StoreUnavailable: Nobody can say whether others are there.
        """
        self._in_a_row += item not in self._failed
        self._failed[item] = outside
        while len(self._failed) > IN_A_ROW:
            self._forget_oldest()
        if not self.well or len(self._failed) < IN_A_ROW:
            return
        cut_off = all(self._failed.values())
        if cut_off or await self._members.others_may_judge():
            why = f"{self._in_a_row} pieces of work in a row could not be judged here, at last: {error.detail}"
            hint = f"one piece at a time is tried, and others judge meanwhile; {error.hint or 'the log says more'}"
            found = Condition(state=MemberState.UNWELL, code=FAILS, why=why, hint=hint)
            self._become(found, most=LONGEST_REST if cut_off else LONGEST_PENANCE)
            await self._members.say(self._condition, since=self.since)

    def went_well(self) -> None:
        """A piece of work was judged."""
        self._failed.clear()
        self._in_a_row = self._rests = 0

    async def _try(self) -> bool:
        found = await self._found()
        if found is None:
            while len(self._failed) >= IN_A_ROW:  # one more is enough to send it away again
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
        rest: timedelta = min(most, FIRST_REST * 2 ** min(self._rests, 20))
        self._rests += 1
        self._due = self._clock.monotonic() + rest.total_seconds()
        tests = before.tests + 1 if same else 1
        self._condition = Condition(state=found.state, code=found.code, why=found.why, hint=found.hint, tests=tests)
