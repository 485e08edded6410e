"""`python -m tests.validator.service.victim`: validators that end themselves by SIGKILL at a stage named by a test.

Standard input has one order per line; for each a process is forked from this one, which has imported everything. The
result goes to standard output: minus the signal, or the exit code.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ledger.deployment import Deployment
from ledger.transactions.pending import SendPolicy
from protocol.clients import NodeClient, OrchestratorClient
from protocol.http.object_transfer import ObjectTransfer
from protocol.identity.keys import Key
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import ManualClock, SystemClock
from tests.kit.scripted_examiner import ScriptedExaminer
from validator.app import build_validator
from validator.background import look_after
from validator.chain.connection import PoolChain
from validator.dependencies import Dependencies, Remote
from validator.settings import ValidatorSettings


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order for a victim.

    Args:
        stage: The stage at which it dies; one of `STAGES`.
        orchestrator: The orchestrator's URL for a separate process.
        redis: The URL of the Redis shared with the other validator.
        chain: The JSON-RPC endpoint.
        deployment: The file with the contracts' addresses.
        directory: The victim's folder.
        pool_id: The pool.
        secret: The victim's key, hex.
        now_s: The orchestrator's time, in seconds.
    """

    stage: str
    orchestrator: str
    redis: str
    chain: str
    deployment: str
    directory: str
    pool_id: int
    secret: str
    now_s: float

    def line(self) -> bytes:
        """Returns the line for a victim's input."""
        return json.dumps(asdict(self)).encode() + b"\n"


Place = Callable[[Dependencies], Awaitable[object]]


async def _queue(parts: Dependencies) -> object:
    return parts.queue


async def _book(parts: Dependencies) -> object:
    return (await parts.chain.ledger()).work


async def _wallet(parts: Dependencies) -> object:
    ledger: Any = await parts.chain.ledger()
    return ledger._sender._wallet


STAGES: dict[str, tuple[Place, str, bool]] = {
    "before what was read is in the queue": (_queue, "put", False),
    "before it is written down how far was read": (lambda parts: _itself(parts.intake._following), "commit", False),
    "when it has taken the work": (_queue, "take", True),
    "when it has the file": (lambda parts: _itself(parts.files), "_fetch", True),
    "in the examination": (lambda parts: _itself(parts.examiner), "examine", False),
    "before the evidence is in the store": (lambda parts: _itself(parts.files), "store", False),
    "before the verdict is written down": (_queue, "stage", False),
    "when the verdict is written down": (_queue, "stage", True),
    "before its transaction leaves": (_wallet, "submit", False),
    "when its transaction is in a block": (_wallet, "submit", True),
    "before the work leaves the queue": (_queue, "done", False),
    "when the work has left the queue": (_queue, "done", True),
    "before it finalises": (_book, "finalize", False),
    "when it has finalised": (_book, "finalize", True),
}
"""For each stage the class and method at which it dies, and whether after the call."""

READ_ONLY = tuple(STAGES)[1]
"""The stage at which work is queued and none is taken."""

SAID = tuple(STAGES)[9:12]
"""The stages at which the ledger already has the verdict."""

FINALISING = tuple(STAGES)[12:]


async def _itself(place: object) -> object:
    return place


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _arm(parts: Dependencies, stage: str) -> None:
    place, name, after = STAGES[stage]
    owner: Any = await place(parts)
    real = getattr(owner, name)

    async def last(*args: Any, **named: Any) -> Any:
        found = await real(*args, **named) if after else None
        if not after or found is not None or name != "take":
            _die()
        return found

    setattr(owner, name, last)


async def live(order: Order) -> None:
    """Runs one round of every loop, until it dies."""
    key, clock = Key.from_hex(order.secret), ManualClock(start=datetime.fromtimestamp(order.now_s, UTC))
    settings = ValidatorSettings(
        pool_id=order.pool_id,
        orchestrator=order.orchestrator,
        deployment=Path(order.deployment),
        directory=Path(order.directory),
        workers=1,
        reserve_bytes=0,
        takeover_s=0,
    )
    app = build_validator(
        settings,
        redis=connect_redis(order.redis, retries=0),
        chain=PoolChain(
            order.chain,
            Deployment.load(Path(order.deployment)),
            key=key,
            pool_id=order.pool_id,
            confirmations=0,
            clock=SystemClock(),
            policy=SendPolicy(poll=timedelta(milliseconds=20)),
        ),
        remote=Remote(
            reader=OrchestratorClient(order.orchestrator, key=key, clock=clock, allow_plain_http=True),
            writer=NodeClient(order.orchestrator, key=key, clock=clock, allow_plain_http=True),
            transfer=ObjectTransfer(order.orchestrator, clock=clock, allow_plain_http=True),
        ),
        examiner=ScriptedExaminer(),
        key=key,
        clock=clock,
        with_loops=False,
    )
    parts: Dependencies = app.state.dependencies
    parts.files.clear()
    await _arm(parts, order.stage)
    await look_after(parts)
    await parts.intake.round()
    await parts.judging.round()
    await parts.send_queues[0].round()
    await parts.finalising.round()


def main() -> None:
    """Obeys orders until its input ends."""
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            try:
                os.dup2(2, 1)  # its log must not mix with the results
                asyncio.run(live(Order(**json.loads(line))))
            except BaseException:  # noqa: BLE001 - the test sees that it was no signal, and reads why
                traceback.print_exc()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
