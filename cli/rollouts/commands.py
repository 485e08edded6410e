"""`muster rollouts`: files of rollouts, read by people and held against the version that they name.

Nothing here talks to a network. `verify` ends with 0 if nothing is wrong, 1 if the file is rejected, and 2 if it could
not be looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.output import JsonOption, show_error
from protocol.errors import MusterError
from rollouts.precision import Dtype

app = typer.Typer(no_args_is_help=True, help="Files of rollouts: look at them, and check them.")

EXIT_REJECTED = 1
EXIT_NOT_LOOKED_AT = 2

File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A file of rollouts (Parquet).")]


@app.command()
def verify(
    file: File,
    model: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="The folder of the version that it was made with.")
    ],
    lease: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="The slot's grant as JSON: lease and beacon. Default: the file."
        ),
    ] = None,
    chain_id: Annotated[int | None, typer.Option(min=1, help="The chain of the pool, if there is no grant.")] = None,
    pool: Annotated[int | None, typer.Option(min=1, help="The pool that leased the slot, likewise.")] = None,
    beacon: Annotated[str | None, typer.Option(help="The hash of the lease's beacon block, likewise.")] = None,
    salt: Annotated[str | None, typer.Option(help="The lease's salt, likewise.")] = None,
    units: Annotated[int | None, typer.Option(min=0, help="The work units that were submitted for it.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Limits of the statistical checks.")
    ] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="What to compute in. Default: what the file names.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N. Default: a GPU if there is one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a file against its version: prompts, draws, proofs, rewards and all other fields.

    Without a lease, run, step, index and node are what the file says. Prompts and draws are checked against the seed
    only with a lease, or with all of --chain-id, --pool, --beacon and --salt. The event `WorkSubmitted` has the beacon
    block and the salt of every submission.
    """
    from cli.rollouts.report import GivenParts, show_verification  # noqa: PLC0415  # the others need not load torch
    from cli.rollouts.report import verify as verified  # noqa: PLC0415

    try:
        verification = verified(
            file,
            model=model,
            lease=lease,
            parts=GivenParts(chain_id=chain_id, pool=pool, beacon=beacon, salt=salt),
            units=units,
            calibration=calibration,
            dtype=dtype,
            device=device,
        )
    except MusterError as error:
        show_error(error)
        raise typer.Exit(EXIT_NOT_LOOKED_AT) from error
    show_verification(verification, as_json=as_json)
    raise typer.Exit(EXIT_REJECTED if verification.rejected else 0)


@app.command()
def show(
    file: File,
    model: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="The version's folder: its tokenizer.")
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print token ids instead of text; needs no --model.")] = False,
    group: Annotated[int | None, typer.Option(min=0, help="Only this group.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most samples to print.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Print a file's samples: prompt, answer and reward.

    A file holds tokens, and the version's tokenizer has their text. Control characters in it are printed as escapes.
    """
    from cli.rollouts.report import show_samples  # noqa: PLC0415  # as above

    show_samples(file, model=model, ids=ids, group=group, limit=limit, as_json=as_json)
