"""Keeps the list of numerics classes that this machine can verify: found at the start, and dropped while they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Self

from protocol.errors import MusterError, NotFound
from protocol.runtime.backoff import GrowingPause
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import cancel_all
from rollouts.precision import Arithmetic
from rollouts.recompute.place import VllmPlace, classes_at

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(hours=1)
"""First and longest pause before a failed search or check is repeated; a check takes ten seconds and up to three GB."""

_log = get_logger(__name__)


def _check_class(place: VllmPlace, arithmetic: Arithmetic) -> None:
    from rollouts.recompute.classes import check_class  # noqa: PLC0415 - loads torch (0.3 GB), and failures are rare

    check_class(place, arithmetic)


class VerifiableClasses:
    """The numerics classes of one vLLM installation, while the async context is entered.

    Args:
        place: The vLLM installation.
        clock: Clock of pauses.
        find: Returns the classes of an installation.
        check: Raises `MusterError` if an installation does not reproduce the recording of a class.
    """

    def __init__(
        self,
        place: VllmPlace,
        *,
        clock: Clock,
        find: Callable[[VllmPlace], Sequence[Arithmetic]] = classes_at,
        check: Callable[[VllmPlace, Arithmetic], None] = _check_class,
    ) -> None:
        self._place = place
        self._clock = clock
        self._find = find
        self._check = check
        self._found: tuple[str, ...] = ()
        self._failed: dict[str, asyncio.Task[None]] = {}
        """Checks under way of the classes that failed, by class."""
        self._searching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # Awaited once, because otherwise the first report would list no classes.
        if not await self._search():
            self._searching = asyncio.create_task(self._search_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_all([*self._failed.values(), *([] if self._searching is None else [self._searching])])

    def names(self) -> tuple[str, ...]:
        """Returns the classes of the installation without those that failed and have not passed a check since."""
        return tuple(name for name in self._found if name not in self._failed)

    def failed(self, name: str, *, why: str) -> None:
        """Drops a class until a new process reproduces its recording; no effect for other classes.

        Args:
            name: The class.
            why: The error, for the log.
        """
        if name not in self.names():
            return
        _log.warning("numerics-failed", numerics=name, why=why)
        self._failed[name] = asyncio.create_task(self._check_again(name))

    async def _search(self) -> bool:
        """Asks the installation for its classes; returns False if the search should be repeated."""
        try:
            found = await run_in_thread(self._find, self._place)
        except NotFound as error:
            if self._place.python is None:  # this validator has no vLLM
                return True
            _log.warning("no-numerics", why=error.detail, hint=error.hint)
            return False
        except MusterError as error:
            _log.warning("no-numerics", why=error.detail, hint=error.hint)
            return False
        self._found = tuple(map(str, found))
        _log.info("numerics", classes=self._found)
        return True

    async def _search_again(self) -> None:
        pause = GrowingPause(first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        await self._clock.sleep(pause.failed())
        while not await self._search():
            await self._clock.sleep(pause.failed())

    async def _check_again(self, name: str) -> None:
        pause = GrowingPause(first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        while True:
            await self._clock.sleep(pause.failed())
            try:
                await run_in_thread(self._check, self._place, Arithmetic.parse(name))
            except (MusterError, OSError) as error:
                _log.warning("numerics-failed", numerics=name, why=str(error))
            else:
                _log.info("numerics-passed", numerics=name)
                del self._failed[name]
                return
