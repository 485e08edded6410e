"""`python -m tests.trainer.run.process FILE SECONDS`: a trainer in a process of its own, to be killed.

FILE holds its settings as JSON; its clock is ahead by so many seconds, as the chain's is.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from protocol.clock import SystemClock
from tests.ledger.client.conftest import QUICK
from trainer.run.app import Outside, run_trainer
from trainer.run.settings import TrainerSettings


class _Ahead(SystemClock):
    def now(self) -> datetime:
        return super().now() + timedelta(seconds=float(sys.argv[2]))


async def _train() -> None:
    values: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    await run_trainer(TrainerSettings(**values), stop=asyncio.Event(), outside=Outside(clock=_Ahead(), policy=QUICK))


if __name__ == "__main__":
    asyncio.run(_train())
