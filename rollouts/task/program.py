"""`python -m rollouts`, the program of a task's container.

Command-line options configure the task; `MUSTER_…` environment variables name its bridge, token and volumes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from protocol.errors import InvalidInput, MusterError
from protocol.runtime.budgets import keep_rule
from protocol.runtime.clock import SystemClock
from protocol.runtime.logs import configure_logs, get_logger
from protocol.wire.runs import MOST_GROUPS_PER_SLOT
from rollouts.engines.opening import open_engine
from rollouts.engines.vllm.cpu_kernels import restart_as
from rollouts.precision import Dtype, EngineName
from rollouts.recompute.node_self_test import open_proven
from rollouts.task.bridge import Bridge
from rollouts.task.fetching import RelayFetch
from rollouts.task.loop import MOST_SLOTS, RolloutTask
from rollouts.task.outbox import Outbox
from rollouts.task.policies import KEPT_VERSIONS, PolicyStore
from rollouts.task.serving_loop import ServingTask

GROUPS = 8
"""Default number of groups to request per lease."""

_log = get_logger(__name__)


def main(
    arguments: Sequence[str] | None = None,
    *,
    make: Callable[..., RolloutTask] = RolloutTask,
    serve: Callable[..., ServingTask] = ServingTask,
) -> int:
    """Runs the task until SIGTERM or SIGINT; returns the exit status: 0 if stopped, 1 after an error.

    Args:
        arguments: Command-line arguments; None for the arguments of this process.
        make: Factory with the arguments of `RolloutTask`.
        serve: Factory with the arguments of `ServingTask`.
    """
    options = _parser().parse_args(arguments)
    configure_logs(level=options.log_level, service=True)
    try:
        if (options.numerics or "").startswith("cpu-"):
            restart_as(options.numerics)
        asyncio.run(_run(options, make, serve))
    except MusterError as error:
        _log.error("task-ended", why=error.detail, hint=error.hint, code=error.code)
        return 1
    return 0


async def _run(
    options: argparse.Namespace, make: Callable[..., RolloutTask], serve: Callable[..., ServingTask]
) -> None:
    clock = SystemClock()
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    data, shared = (Path(_required_variable(name)) for name in ("MUSTER_DATA_DIR", "MUSTER_SHARED_DIR"))
    engine = open_proven(
        lambda numerics: open_engine(options.engine, dtype=options.dtype, device=options.device, device_class=numerics),
        options.numerics,
    )
    async with Bridge(
        _required_variable("MUSTER_BRIDGE_SOCKET"), token=_required_variable("MUSTER_BRIDGE_TOKEN"), clock=clock
    ) as bridge:
        keep = keep_rule(shared / "checkpoints", told=options.keep_versions, most=KEPT_VERSIONS)
        fetch = RelayFetch(clock=clock, allow_plain_http=options.allow_plain_http)
        parts = {
            "bridge": bridge,
            "engine": engine,
            "policies": PolicyStore(shared, fetch=fetch, clock=clock, keep=keep),
            "outbox": Outbox(data, bridge=bridge),
            "groups": options.groups or (MOST_GROUPS_PER_SLOT if options.serve else GROUPS),
            "clock": clock,
        }
        task: RolloutTask | ServingTask
        if options.serve:
            task = serve(**parts, allow_plain_http=options.allow_plain_http)
        else:
            task = make(**parts, most_slots=options.slots)
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, task.stop)
        async with task:
            await task.run()


def _required_variable(name: str) -> str:
    """Returns an environment variable that every task container has.

    Raises:
        InvalidInput: The variable is not set, so this process does not run in a task container.
    """
    value = os.environ.get(name, "")
    if not value:
        raise InvalidInput(
            f"{name} is not set", hint="only a Muster worker starts this program; see docs/contributors.md"
        )
    return value


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rollouts", description="Generates rollouts for the pool's run.")
    parser.add_argument("--engine", type=EngineName, default=EngineName.TORCH, choices=list(EngineName))
    parser.add_argument("--dtype", type=Dtype, default=Dtype.FLOAT32, choices=list(Dtype))
    parser.add_argument("--device", default=None, help="cpu, cuda, cuda:N; default: a GPU if there is one")
    parser.add_argument(
        "--numerics",
        metavar="CLASS",
        help="device of the numerics class to compute in, for vllm: cpu-avx2, cpu-avx512, cpu-avx512_bf16, cpu-amx or "
        "sm_90; none: no class; default: the class of the CPU, none on a GPU",
    )
    parser.add_argument("--threads", type=int, default=0, help="threads of torch on a CPU; 0 leaves it to torch")
    parser.add_argument(
        "--serve", action="store_true", help="answer the clients of the run's gateway instead of generating rollouts"
    )
    parser.add_argument(
        "--groups",
        type=_positive,
        help="groups to request per lease; default: 8, or with --serve, where a group is a choice, as many as the run "
        "leases in a slot",
    )
    slots = f"slots of one version under way at the same time; default: {MOST_SLOTS}"
    parser.add_argument("--slots", type=_positive, default=MOST_SLOTS, help=slots)
    keep = "versions kept besides those in use; default: 2, or fewer that fit in a tenth of the disk"
    parser.add_argument("--keep-versions", type=_positive, help=keep)
    parser.add_argument(
        "--allow-plain-http", action="store_true", help="allow plain http to relays and gateways on other machines"
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser
