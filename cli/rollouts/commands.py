"""`muster rollouts`: shows rollout files, and verifies them against the version that generated them.

No command uses the network. `verify` exits with 0 if no check failed, with 1 if the file is rejected, and with 3 if the
file could not be checked. It exits with 3, too, if an answer of `muster serve` could not be checked completely.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.exit_codes import FAILED, NOT_CHECKED
from cli.output.printing import JsonOption, show_error
from cli.output.progress import working
from protocol.errors import MusterError
from protocol.runtime.configuration_file import reads
from rollouts.precision import Dtype, EngineName

app = typer.Typer(no_args_is_help=True, help="Show and verify rollout files.")


File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A rollout file (Parquet).")]


@app.command()
@reads("sandbox")
def verify(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="A rollout file (Parquet), or a JSON answer of `muster serve`."
        ),
    ],
    model: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder of the version that generated the file.")
    ],
    lease: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="JSON file with the slot's signed lease and its beacon."),
    ] = None,
    chain_id: Annotated[int | None, typer.Option(min=1, help="Id of the pool's chain, if there is no --lease.")] = None,
    pool: Annotated[int | None, typer.Option(min=1, help="Pool that leased the slot, if there is no --lease.")] = None,
    beacon: Annotated[str | None, typer.Option(help="Hash of the beacon block, if there is no --lease.")] = None,
    salt: Annotated[str | None, typer.Option(help="Salt of the lease, if there is no --lease.")] = None,
    units: Annotated[int | None, typer.Option(min=0, help="Work units that the node claimed for the file.")] = None,
    request: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="JSON body of the request, if the file is an answer to it."),
    ] = None,
    allow_missing_proofs: Annotated[
        bool, typer.Option("--allow-missing-proofs", help="Accept an answer without proofs.")
    ] = False,
    allow_chunk: Annotated[
        bool,
        typer.Option("--allow-chunk", help="Accept the last chunk of a stream, whose text is not checked."),
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Calibration file, with the limits of the statistical checks."),
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Data type for the recomputation. Default: the one in the file.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N. Default: a GPU if there is one.")] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="Engine that recomputes. Default: vllm for a file of a numerics class, else torch."),
    ] = None,
    vllm_python: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Python interpreter with vLLM. Default: this interpreter."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a file against its version: prompts, draws, proofs, rewards and all other fields.

    For an answer of `muster serve`, the command checks draws, proofs, log-probabilities and text. It takes the seed
    from the answer. With --request, it also compares the answer with what was asked. It exits with 3 if proofs, draws,
    log-probabilities or text could not be checked, because an answer that can't be checked may be forged.

    Without --lease, the command takes run, step, index and node from the file. It checks prompts and draws against the
    slot's seed only with --lease, or with all of --chain-id, --pool, --beacon and --salt. The ledger's event
    `WorkSubmitted` has the beacon block and the salt of every submission.
    """
    from cli.rollouts.report import GivenParts, show_verification  # noqa: PLC0415  # loads torch, which the other commands do not need
    from cli.rollouts.report import verify as verified  # noqa: PLC0415

    try:
        with working("recomputing the rows"):
            verification = verified(
                file,
                model=model,
                lease=lease,
                parts=GivenParts(chain_id=chain_id, pool=pool, beacon=beacon, salt=salt),
                units=units,
                request=request,
                allow_missing_proofs=allow_missing_proofs,
                allow_chunk=allow_chunk,
                calibration=calibration,
                dtype=dtype,
                device=device,
                engine=engine,
                vllm_python=vllm_python,
            )
    except MusterError as error:
        show_error(error)
        raise typer.Exit(NOT_CHECKED) from error
    show_verification(verification, as_json=as_json)
    if verification.rejected:
        raise typer.Exit(FAILED)
    raise typer.Exit(0 if verification.complete else NOT_CHECKED)


@app.command()
@reads("sandbox")
def show(
    file: File,
    model: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Folder of the version, for its tokenizer.")
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print token ids instead of text; needs no --model.")] = False,
    group: Annotated[int | None, typer.Option(min=0, help="Print only this group.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of samples to print.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Print a file's samples: prompt, answer and reward; of dialogues each message of the model and its reply.

    A file holds token ids, which the version's tokenizer decodes. Control characters in the text are printed as
    escapes.
    """
    from cli.rollouts.samples import show_samples  # noqa: PLC0415  # loads pyarrow

    show_samples(file, model=model, ids=ids, group=group, limit=limit, as_json=as_json)
