"""`muster gateway verifier`: checks a gateway's answers with the versions' folders."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output.printing import report
from protocol.clients.verifications import VerificationClient
from protocol.errors import InvalidInput
from protocol.runtime.clock import SystemClock
from protocol.runtime.logs import configure_logs
from rollouts.precision import Dtype, EngineName

if TYPE_CHECKING:
    from rollouts.verify.gateway import Judge

_LONGEST_TOKEN = 1024


def verifier(
    *,
    gateway: Annotated[str, typer.Option(help="URL of the gateway.")],
    token_file: Annotated[
        Path,
        typer.Option(
            exists=True, dir_okay=False, help="File with a token of `muster gateway token create --role verifier`."
        ),
    ],
    model: Annotated[
        list[Path],
        typer.Option(exists=True, file_okay=False, help="Folder of a version that the pool serves; repeatable."),
    ],
    calibration: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Calibration file, with the limits of the statistical checks."),
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Data type for the recomputation. Default: the one of the answer.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N. Default: a GPU if there is one.")] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="Engine that recomputes. Default: vllm for an answer of a numerics class, else torch."),
    ] = None,
    vllm_python: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Python interpreter with vLLM. Default: this interpreter."),
    ] = None,
    allow_plain_http: Annotated[
        bool, typer.Option("--allow-plain-http", help="Allow http to another machine, in an encrypted network.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Check a gateway's answers until SIGTERM or SIGINT.

    The gateway's setting `verify` says which answers are checked. An answer is invalid only if a check failed. If this
    machine can't judge an answer, another verifier may.
    """
    configure_logs(level=log_level, service=True)
    client = VerificationClient(gateway, token=_token_in(token_file), allow_plain_http=allow_plain_http)

    from rollouts.calibration.limits import RolloutCalibration  # noqa: PLC0415 - loads torch, which `--help` does not need
    from rollouts.models.devices import find_device  # noqa: PLC0415
    from rollouts.recompute.place import VllmPlace  # noqa: PLC0415
    from rollouts.verify.gateway import Computation, Judge  # noqa: PLC0415

    computation = Computation(
        calibration=None if calibration is None else RolloutCalibration.read(calibration),
        dtype=dtype,
        device=None if device is None else find_device(device),
        engine=engine,
        vllm=VllmPlace(python=vllm_python, device=device),
    )
    judge = Judge.of([folder.resolve() for folder in model], computation)
    if asyncio.run(_run(client, judge)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # a computation can't be interrupted, and Python would crash if it ended below one


async def _run(client: VerificationClient, judge: Judge) -> bool:
    """Verifies answers until a signal; returns whether a computation still runs."""
    from rollouts.verify.gateway import GatewayVerifier  # noqa: PLC0415

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    running = GatewayVerifier(client, judge, clock=SystemClock())

    def say() -> None:
        report(f"verifying answers of {client.location.url} for {', '.join(judge.versions)}")

    async with client:
        await running.run(stop, on_start=say)
    return running.is_computing


def _token_in(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(_LONGEST_TOKEN).decode("ascii", "replace").strip()
    except OSError as error:
        raise InvalidInput(
            f"the token file {path} can't be read: {error.strerror}", hint="name another file"
        ) from error
    if not token or not token.isprintable() or " " in token:
        raise InvalidInput(
            f"{path} has no token",
            hint="create one with `muster gateway token create NAME --role verifier --file FILE`",
        )
    return token
