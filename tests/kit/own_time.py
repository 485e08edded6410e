"""How long a process takes by itself on a machine that others use too: what passes, less its waits for a processor.

Linux writes down for each thread how long it was ready to run and another ran (`schedstat`, in nanoseconds). So a
promise such as "ends within a second" can be tested as it stands; where the system keeps no such record, nothing is
taken off.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path


class OwnTime:
    """Counts from when it is made.

    Args:
        process: Its id; a child whose parent has not yet asked how it ended counts as ended.
    """

    def __init__(self, process: int) -> None:
        self._tasks = Path(f"/proc/{process}/task")
        self._began = self._looked = time.monotonic()
        self._waited: dict[str, int] = {}
        self._before = 0
        self._before = self._look()

    def seconds(self) -> float:
        """How much of the time until now is its own; of a process that ended, until it was last seen."""
        if self._running():
            waited = self._look()
            self._looked = time.monotonic()
        else:
            waited = sum(self._waited.values())
        return self._looked - self._began - (waited - self._before) / 1e9

    async def until_ended(self) -> float:
        """How much of the time until its end was its own, in seconds; looks often, for the record ends with it."""
        while self._running():
            self.seconds()
            await asyncio.sleep(0.005)
        return self.seconds()

    def _running(self) -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            return (self._tasks.parent / "stat").read_text().rsplit(")", 1)[1].split()[0] not in {"Z", "X"}
        return False

    def _look(self) -> int:
        """All its threads' waits so far, in ns; threads that ended keep what was last read."""
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in self._tasks.iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):
                    self._waited[thread.name] = int((thread / "schedstat").read_text().split()[1])
        return sum(self._waited.values())
