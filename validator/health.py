"""Health of this validator: after a failed self-test, the validator takes no work until a self-test passes.

If an item can't be judged, the cause is either the item or this validator; the self-test distinguishes the two cases.
If the self-test passes and three different items in a row still fail, the validator also pauses, provided that another
validator can take over or that all three failures were network errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from protocol.errors import MusterError, Unavailable
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from validator.domain.items import ItemId
from validator.store.members import Condition, Members, MemberState

SelfTest = Callable[[], Awaitable[None]]
"""Self-test: raises the first error of this machine or of a service that it needs; returns None if all of them work."""

FIRST_TEST_PAUSE, LONGEST_TEST_PAUSE = timedelta(seconds=1), timedelta(seconds=15)
"""First and longest pause after failed self-tests; the validator notices a repair within the longest pause."""

LONGEST_PAUSE = timedelta(minutes=1)
"""Longest pause between two items of a validator that passes its self-tests but fails at every item."""

TRUSTED_FOR = timedelta(seconds=5)
"""Time for which a passed self-test is not repeated; otherwise each file crafted to fail would cause a self-test."""

IN_A_ROW = 3
"""Number of different failed items, without a success between them, after which the validator pauses."""

FAILS = "fails-again-and-again"
"""Error code of a validator that pauses after repeated failures although its self-test passes."""

_log = get_logger(__name__)


class ValidatorUnhealthy(Unavailable):
    """This validator takes no work at present; the text gives the reason."""

    code = "not-well"


class Health:
    """The health of one validator process.

    Args:
        test: The self-test.
        members: Validator processes on this Redis, to which the condition is announced.
        clock: Clock of pauses.
    """

    def __init__(self, test: SelfTest, *, members: Members, clock: Clock) -> None:
        self._test = test
        self._members = members
        self._clock = clock
        self._condition = Condition(state=MemberState.STARTING)
        self._since = clock.monotonic()
        self._due = self._since
        self._test_passed_at: float | None = None
        self._failed: dict[ItemId, bool] = {}
        """The last failed items, oldest first, each with True if a network error was the cause."""
        self._in_a_row = 0
        """Number of items that failed since the last success, for the error text."""
        self._pauses = 0
        """Number of pauses in a row, which determines the length of the next one."""
        self._testing = asyncio.Lock()

    @property
    def condition(self) -> Condition:
        """The present condition, with its reason."""
        return self._condition

    @property
    def well(self) -> bool:
        """True if this validator takes work."""
        return self._condition.state is MemberState.WELL

    @property
    def since(self) -> timedelta:
        """Time since this validator last became well or unwell."""
        return timedelta(seconds=self._clock.monotonic() - self._since)

    def may_take(self, *, held: int) -> bool:
        """Returns True if this process may lease an item. After two failed items it may hold only one item at a time.

        Args:
            held: Number of items that this process has leased now.
        """
        return self.well and (held == 0 or len(self._failed) < IN_A_ROW - 1)

    async def check(self) -> None:
        """Raises if this validator takes no work; used as a readiness check.

        Raises:
            ValidatorUnhealthy: The first self-test has not ended, or the validator is unwell.
        """
        if self._condition.state is MemberState.STARTING:
            raise ValidatorUnhealthy("the first self-test has not ended yet", code=MemberState.STARTING.value)
        if not self.well:
            raise ValidatorUnhealthy(f"{self._condition.why} ({self._condition.code})", hint=self._condition.hint)

    async def round(self) -> None:
        """Runs the self-test if it is due, and announces the condition to the other processes.

        Raises:
            StoreUnavailable: Redis is down.
        """
        async with self._testing:
            if not self.well and self._clock.monotonic() >= self._due:
                # Announce before the self-test, too: an announcement expires, and the test may take longer.
                await self._members.announce(self._condition, since=self.since)
                await self._run_test()
        await self._members.announce(self._condition, since=self.since)

    async def recheck(self) -> bool:
        """Runs the self-test after a failure that this validator may have caused.

        A self-test that passed within `TRUSTED_FOR` is not repeated.

        Returns:
            True if the validator is well.
        """
        async with self._testing:
            now = self._clock.monotonic()
            trusted = self._test_passed_at is not None and now - self._test_passed_at < TRUSTED_FOR.total_seconds()
            if self.well and not trusted:
                self._test_passed_at = self._clock.monotonic() if await self._run_test() else None
        return self.well

    async def failed(self, item: ItemId, error: MusterError, *, outside: bool = False) -> None:
        """Counts an item that could not be judged although the self-test passes; may pause this validator.

        Args:
            item: The item.
            error: The error.
            outside: True if the cause was a service that did not answer. If all counted failures had such a cause, the
                validator pauses even if no other validator can take over.

        Raises:
            StoreUnavailable: Redis is down, so the other processes can't be read.
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
            hint = f"this validator now tries one item at a time; {error.hint or 'see its log'}"
            found = Condition(state=MemberState.UNWELL, code=FAILS, why=why, hint=hint)
            self._set_condition(found, most=LONGEST_TEST_PAUSE if cut_off else LONGEST_PAUSE)
            await self._members.announce(self._condition, since=self.since)

    def went_well(self) -> None:
        """Resets the counts of failures and pauses, after an item was judged."""
        self._failed.clear()
        self._in_a_row = self._pauses = 0

    async def _run_test(self) -> bool:
        found = await self._test_result()
        if found is None:
            # Keeps `IN_A_ROW - 1` failures, so that one more failure is enough to pause again.
            while len(self._failed) >= IN_A_ROW:
                self._forget_oldest()
            self._set_condition(Condition(state=MemberState.WELL), most=LONGEST_TEST_PAUSE)
        else:
            self._set_condition(found, most=LONGEST_TEST_PAUSE)
        return found is None

    def _forget_oldest(self) -> None:
        del self._failed[next(iter(self._failed))]

    async def _test_result(self) -> Condition | None:
        try:
            await self._test()
        except MusterError as error:
            return Condition(state=MemberState.UNWELL, code=error.code, why=error.detail, hint=error.hint)
        except Exception as error:  # noqa: BLE001 - a crash of the self-test counts as a failed self-test
            _log.exception("self-test-crashed")
            hint = "this is a bug in Muster: please report it with the traceback from the log"
            return Condition(state=MemberState.UNWELL, code="self-test-crashed", why=type(error).__name__, hint=hint)
        return None

    def _set_condition(self, found: Condition, *, most: timedelta) -> None:
        before, spent = self._condition, self.since
        if found.state is MemberState.WELL:
            if before.state is not MemberState.WELL:
                self._since = self._clock.monotonic()
                _log.info("well", was=before.code or before.state.value, for_s=round(spent.total_seconds(), 1))
            if before.code != FAILS:
                self._pauses = 0
            self._condition = found
            return
        same = (before.state, before.code) == (found.state, found.code)
        if before.state is not found.state:
            self._since = self._clock.monotonic()
        if not same:
            _log.warning("unwell", code=found.code, why=found.why, hint=found.hint)
        self._pauses += 1
        pause = backoff(FIRST_TEST_PAUSE, most, self._pauses)
        self._due = self._clock.monotonic() + pause.total_seconds()
        tests = before.tests + 1 if same else 1
        self._condition = Condition(state=found.state, code=found.code, why=found.why, hint=found.hint, tests=tests)
