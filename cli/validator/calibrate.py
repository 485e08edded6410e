"""`muster validator calibrate`: derives limits of statistical checks from honest work."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output.printing import JsonOption, note, say, show_error, show_json, show_table, warn
from cli.output.progress import working
from cli.output.quantities import one_of
from cli.output.tables import Column, Columns
from protocol.errors import InvalidInput, MusterError, NotFound
from protocol.runtime.files import write_atomically
from rollouts.precision import Dtype, EngineName

if TYPE_CHECKING:
    from rollouts.recompute.place import VllmPlace
    from validator.calibration.measuring import MeasuredEntry

MEASURED_CLASSES = Columns.of(
    "class", "batch", "files", "rows", Column("tokens", drop=1), Column("longest_row", drop=2), "differing_rows"
)
MEASURED_LIMITS = Columns.of(
    "generated_by",
    "checked_in",
    Column("files", drop=2),
    Column("not_the_draw", drop=3),
    Column("largest_gap", drop=1),
    Column("logprob", drop=1),
    Column("proofs", drop=1),
    "limits",
)

ANOTHER_INTERPRETER = (
    "vLLM has its own Python environment (docs/engines.md): run `PYTHON -m cli validator calibrate …` with that Python"
)


def calibrate(
    *,
    model: Annotated[Path, typer.Option(exists=True, file_okay=False, help="A version's folder, with its recipe.")],
    engines: Annotated[str, typer.Option(help="Engines that generate, comma-separated: torch, vllm.")] = "torch",
    dtypes: Annotated[str, typer.Option(help="Data types, comma-separated: float32, bfloat16.")] = "float32,bfloat16",
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS,…",
            help="Numerics classes, comma-separated, to compare to the bit; replaces --engines and --dtypes.",
        ),
    ] = None,
    vllm_python: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Python interpreter with vLLM, for --classes."),
    ] = None,
    batches: Annotated[str, typer.Option(help="Numbers of answers generated at once, comma-separated.")] = "64,1",
    samples: Annotated[int, typer.Option(min=1, help="Honest samples for each engine, type and batch size.")] = 2048,
    groups: Annotated[int, typer.Option(min=1, help="Groups per file, as in the run's slots.")] = 4,
    headroom: Annotated[
        float, typer.Option(min=1, help="Factor by which a limit exceeds the largest honest value.")
    ] = 2.0,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Calibration file to write or extend; see --widen.")
    ] = None,
    widen: Annotated[
        bool,
        typer.Option("--widen", help="Widen existing entries of OUT instead of replacing them, for another version."),
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N. Default: a GPU if there is one.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Derive the limits of the statistical checks from measurements of honest work.

    Each engine generates samples in each data type, and torch checks them. A validator judges only files whose model,
    engine and data type have limits. Run this command on machines like the nodes, with every engine that the pool
    allows; with --widen, one file combines the measurements of several machines.

    With --classes, vLLM generates samples in each numerics class, and another vLLM process recomputes them. Honest work
    of a class has no differences, so a class needs no limits and nothing is written. A difference is an error.
    """
    if classes is not None:
        from rollouts.recompute.place import VllmPlace  # noqa: PLC0415 - slow to load, and `--help` does not need it

        place = VllmPlace(python=vllm_python, device=device, threads=threads)
        _compare_classes(
            classes, model, place, out=out, batches=batches, samples=samples, groups=groups, as_json=as_json
        )
        return
    import torch  # noqa: PLC0415 - slow to load, and `--help` does not need it

    from rollouts.calibration.limits import RolloutCalibration  # noqa: PLC0415
    from rollouts.recipe import read_recipe  # noqa: PLC0415
    from validator.calibration.limits import ENOUGH_FILES, merged  # noqa: PLC0415
    from validator.calibration.measuring import Measurement, measure  # noqa: PLC0415

    try:
        torch.set_num_threads(threads)
        if out is not None:
            _check_place(out)
        before = RolloutCalibration.read(out) if out is not None and out.exists() else None
        in_a_file = groups * read_recipe(model).group_size
        wanted = Measurement(
            model=model,
            engines=tuple(one_of(EngineName, name) for name in engines.split(",")),
            dtypes=tuple(one_of(Dtype, name) for name in dtypes.split(",")),
            batches=tuple(_size(text) for text in batches.split(",")),
            files=-(-samples // in_a_file),
            groups=groups,
            headroom=headroom,
            device=device,
        )
        with working("measuring honest work"):
            measured = measure(wanted, progress=note)
        calibration = merged(before, [one.limits for one in measured], widen=widen)
        if out is not None:
            # Atomically, so that a crash does not lose the file's earlier measurements.
            write_atomically(out, calibration.to_json(), mode=0o644)
    except MusterError as error:
        missing_engine = isinstance(error, NotFound) and EngineName.VLLM.value in engines
        show_error(NotFound(error.detail, hint=ANOTHER_INTERPRETER) if missing_engine else error)
        raise typer.Exit(1) from error
    _show(measured, as_json=as_json)
    if any(one.limits.files < ENOUGH_FILES for one in measured):
        warn(f"limits from fewer than {ENOUGH_FILES} files are unreliable: measure again with more --samples")
    if out is not None:
        note(f"{out} has {len(calibration.entries)} entries; set the validator's `calibration` to this file")
    elif not as_json:
        say("no file was written: --out FILE writes one")


def _compare_classes(
    classes: str,
    model: Path,
    place: VllmPlace,
    *,
    out: Path | None,
    batches: str,
    samples: int,
    groups: int,
    as_json: bool,
) -> None:
    """Generates and recomputes files in each class; exits with 1 after a difference."""
    from rollouts.recipe import read_recipe  # noqa: PLC0415 - loads torch, and `--help` does not need it
    from validator.calibration.classes import ClassMeasurement, class_named, measure_classes  # noqa: PLC0415

    try:
        if out is not None:
            raise InvalidInput("numerics classes have no limits that could be written", hint="leave out --out")
        wanted = ClassMeasurement(
            model=model,
            classes=tuple(class_named(name.strip()) for name in classes.split(",")),
            place=place,
            batches=tuple(_size(text) for text in batches.split(",")),
            files=-(-samples // (groups * read_recipe(model).group_size)),
            groups=groups,
        )
        measured = list(measure_classes(wanted, progress=note))
    except MusterError as error:
        show_error(error)
        raise typer.Exit(1) from error
    if as_json:
        show_json([{**asdict(one), "arithmetic": str(one.arithmetic)} for one in measured])
    else:
        rows = [
            (str(one.arithmetic), one.batch, one.files, one.rows, one.tokens, one.longest, one.differing)
            for one in measured
        ]
        show_table(MEASURED_CLASSES, rows)
    differing = [one for one in measured if one.differing]
    for one in differing:
        warn(f"{one.arithmetic}, batch {one.batch}: {one.first}")
    if differing:
        note("no validator must judge these classes on this machine; please report the difference")
        raise typer.Exit(1)


def _show(measured: list[MeasuredEntry], *, as_json: bool) -> None:
    if as_json:
        show_json([one.limits.model_dump(mode="json") for one in measured])
        return
    rows = []
    for one in measured:
        limits, found = one.limits, one.figures
        rows.append(
            (
                f"{limits.prover.engine.value} {limits.prover.dtype.value}",
                limits.verifier.dtype.value,
                limits.files,
                f"{found.mismatches / found.tokens:.3%}",
                f"{found.largest_gap:.3g}",
                f"{found.largest_error:.2g}",
                f"{found.worst_distance:.3g}",
                f"{limits.sampling.largest:.3g} / {limits.logprobs.largest:.2g} / {limits.sample.distance_worst:.3g}",
            )
        )
    show_table(MEASURED_LIMITS, rows)


def _check_place(out: Path) -> None:
    """Checks, before hours of measurements, that the calibration can be written.

    Raises:
        InvalidInput: The folder of `out` is not writable.
    """
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise InvalidInput(
            f"nothing can be written into {out.parent}", hint="create that folder, or choose another --out"
        )


def _size(text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        size = 0
    if size < 1:
        raise InvalidInput(f"{text!r} is no batch size", hint="give numbers of at least 1, separated by commas")
    return size
