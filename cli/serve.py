"""`muster serve`: an OpenAI-compatible service of one model, whose answers can be verified."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from cli.output.printing import report, warn
from protocol.errors import InvalidInput
from protocol.http.serving.service import run_service
from protocol.runtime.logs import configure_logs
from protocol.runtime.settings import default_directory
from rollouts.precision import Dtype, EngineName


def serve(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Folder with weights, config and tokenizer.")
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of the model in requests. Default: the name of the folder.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other machines reach only another address than the default.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File with the token of clients; made if it does not exist. Default: in Muster's data folder.",
        ),
    ] = None,
    admin_token_file: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File with the token that may pause the service and update weights; made if it does not exist; may be "
            "the token file. Default: no token may.",
        ),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="Engine that generates.")] = EngineName.TORCH,
    dtype: Annotated[Dtype, typer.Option(help="Data type of the computation.")] = Dtype.FLOAT32,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:N. Default: an accelerator if there is one.")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Maximum answers in progress.")] = 64,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Maximum answers in progress or waiting; further requests get a 429.")
    ] = 1024,
    proofs: Annotated[
        bool, typer.Option("--proofs/--no-proofs", help="Whether answers have proofs of the hidden states.")
    ] = True,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Serve a model through OpenAI's API until SIGTERM or SIGINT.

    Requests need the bearer token in the token file. Every answer has the field `muster`, from which
    `muster rollouts verify` checks that this version drew it.
    """
    from rollouts.engines.opening import open_engine  # noqa: PLC0415 - loads torch, which `--help` does not need
    from rollouts.serving.access import token_book, token_in  # noqa: PLC0415
    from rollouts.serving.app import build_serving  # noqa: PLC0415
    from rollouts.serving.backend import Backend  # noqa: PLC0415
    from rollouts.serving.limits import RequestLimits  # noqa: PLC0415

    configure_logs(level=log_level, service=True)
    model = folder.resolve().name if name is None else name
    if not model or len(model) > 200 or not model.isprintable():
        raise InvalidInput(f"{model[:200]!r} can't be a model's name", hint="give --name with 1 to 200 characters")
    path = default_directory("serve") / "token" if token_file is None else token_file
    tokens = token_book(token_in(path), admin=None if admin_token_file is None else token_in(admin_token_file))
    if not _is_loopback(host):
        warn(f"{host} is reachable by other machines, and requests are not encrypted: put a TLS proxy in front")
    backend = Backend(
        open_engine(engine, dtype=dtype, device=device, max_batch=max_batch),
        folder.resolve(),
        limits=RequestLimits(answers=max_waiting),
        with_proofs=proofs,
    )

    def say_where(bound: int) -> None:
        report(f"serving {model} on http://{f'[{host}]' if ':' in host else host}:{bound}/v1")
        report(f"the token is in {path}")

    run_service(build_serving(backend, name=model, tokens=tokens), host=host, port=port, on_bound=say_where)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
