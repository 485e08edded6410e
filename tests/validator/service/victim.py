"""Program that runs validators which kill themselves by SIGKILL at a stage that a test names.

It reads one order per line from standard input. For each order it forks a process, which saves the time for imports.
It writes the result to standard output: minus the signal's number, or the exit status.
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
from validator.chain.connection import PoolChain
from validator.dependencies import Dependencies, Remote
from validator.loops.background import ValidatorLoops, update_health
from validator.settings import ValidatorSettings


@dataclass(frozen=True, kw_only=True)
class Order:
    """Order to run one validator until it kills itself.

    Args:
        stage: Stage at which the validator kills itself; one of `STAGES`.
        orchestrator: URL of the orchestrator, on a TCP port.
        redis: URL of the Redis that it shares with the other validator.
        chain: URL of the JSON-RPC endpoint.
        deployment: Path of the file with the contracts' addresses.
        directory: State directory of the validator.
        pool_id: Id of the pool.
        secret: Private key of the validator, in hexadecimal.
        now_s: The orchestrator's time, in Unix seconds.
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
        """Returns the order as a line for the standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True)
class Parts:
    """The objects of the validator at which it can kill itself."""

    dependencies: Dependencies
    loops: ValidatorLoops


Place = Callable[[Parts], Awaitable[object]]


async def _queue(parts: Parts) -> object:
    return parts.dependencies.queue


async def _book(parts: Parts) -> object:
    return (await parts.dependencies.chain.ledger()).work


async def _wallet(parts: Parts) -> object:
    ledger: Any = await parts.dependencies.chain.ledger()
    return ledger._sender._wallet


STAGES: dict[str, tuple[Place, str, bool]] = {
    "before the events are queued": (_queue, "put", False),
    "before the position in the events is stored": (
        lambda parts: _itself(parts.loops.intake._following),
        "commit",
        False,
    ),
    "after taking the work": (_queue, "take", True),
    "after downloading the file": (lambda parts: _itself(parts.dependencies.files), "_fetch", True),
    "during the examination": (lambda parts: _itself(parts.dependencies.examiner), "examine", False),
    "before uploading the audit file": (lambda parts: _itself(parts.dependencies.files), "store", False),
    "before staging the verdict": (_queue, "stage", False),
    "after staging the verdict": (_queue, "stage", True),
    "before sending the transaction": (_wallet, "submit", False),
    "after the transaction is mined": (_wallet, "submit", True),
    "before deleting the item": (_queue, "done", False),
    "after deleting the item": (_queue, "done", True),
    "before finalising": (_book, "finalize", False),
    "after finalising": (_book, "finalize", True),
}
"""For each stage the object and its method at which the validator kills itself; True if after the call."""

READ_ONLY = tuple(STAGES)[1]
"""Stage at which work is queued, but none is taken."""

SAID = tuple(STAGES)[9:12]
"""Stages at which the ledger has the verdict."""

FINALISING = tuple(STAGES)[12:]
"""Stages of the loop that finalises work."""


async def _itself(place: object) -> object:
    return place


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _arm(parts: Parts, stage: str) -> None:
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
    """Runs rounds of every loop until the validator kills itself."""
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
    parts = Parts(app.state.dependencies, app.state.built_loops)
    parts.dependencies.files.clear()
    await _arm(parts, order.stage)
    await update_health(parts.dependencies)
    await parts.loops.intake.round()
    await parts.loops.judging.round()
    await parts.loops.verdict_senders[0].round()
    await parts.loops.finalising.round()


def main() -> None:
    """Executes orders until the standard input ends."""
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            try:
                os.dup2(2, 1)  # the validators' logs must not mix with the results
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
