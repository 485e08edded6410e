"""`python -m tests.trainer.run.process FILE SECONDS`: a trainer in a separate process, or several under torchrun.

FILE contains its settings as JSON; its clock is ahead by SECONDS, as the chain's is.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from muster_network import avoid_needless_imports

avoid_needless_imports()

# ruff: noqa: E402 - these imports take five CPU seconds, and a fifth less like this
from protocol.errors import MusterError
from protocol.runtime.clock import SystemClock
from tests.kit.world import QUICK
from trainer.distributed.ranks import own_place
from trainer.run.app import run_trainer
from trainer.run.connections import Outside
from trainer.run.learner.follower import follow_trainer
from trainer.run.settings import TrainerSettings
from trainer.run.signals import stop_on_signals


class _Ahead(SystemClock):
    def now(self) -> datetime:
        return super().now() + timedelta(seconds=float(sys.argv[2]))


async def _train(settings: TrainerSettings) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        await run_trainer(
            settings, stop=stop, outside=Outside(clock=_Ahead(), policy=QUICK), place=own_place(os.environ)
        )


def main() -> None:
    """Trains or follows; prints the reason for the end in one line."""
    gc.freeze()
    gc.enable()
    values: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    settings, place = TrainerSettings(**values), own_place(os.environ)
    try:
        if place is None or place.leads:
            asyncio.run(_train(settings))
        else:
            follow_trainer(settings, place)
    except MusterError as error:
        sys.exit(f"{error.code}: {error.detail}")


if __name__ == "__main__":
    main()
