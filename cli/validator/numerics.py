"""`muster validator numerics`: lists the numerics classes that this machine can verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.output.listing import listing
from cli.output.printing import JsonOption, note, say, show_error, show_json, show_table
from cli.output.progress import working
from cli.output.tables import Column, Columns
from protocol.errors import MusterError

CLASSES = Columns.of("class", Column("state", least=20))


@listing()
def numerics(
    vllm_python: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Python interpreter with vLLM. Default: this interpreter."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda. Default: a GPU if there is one.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Recompute the recorded file of each class; half a minute per class.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the numerics classes whose files this machine can verify to the bit.

    A pool that pays for one of these classes names it in `arithmetic` of the run's recipe. With --check, vLLM
    recomputes a recorded file of each class. If a result differs from the recorded file, or vLLM fails, this machine
    must not judge the class, and the command exits with 1.
    """
    from rollouts.recompute.place import VllmPlace, classes_at  # noqa: PLC0415 - these imports load torch
    from rollouts.recompute.reference import differences  # noqa: PLC0415
    from rollouts.recompute.vllm_process import VllmProcess  # noqa: PLC0415

    place = VllmPlace(python=vllm_python, device=device)
    rows: list[dict[str, str]] = []
    try:
        with working("asking vLLM for its classes"):
            classes = classes_at(place)
        for one in classes:
            state = "recorded file not checked"
            if check:
                try:
                    with working(f"recomputing the recorded file of {one}"), VllmProcess(place, one) as process:
                        found = differences(process)
                    state = f"DIFFERS: {found[0]}" if found else "equals the recorded file to the bit"
                except MusterError as error:  # the other classes are checked nevertheless
                    state = f"FAILED: {error.detail}"
            rows.append({"class": str(one), "state": state})
    except MusterError as error:
        show_error(error)
        raise typer.Exit(1) from error
    if as_json:
        show_json(rows)
    else:
        show_table(CLASSES, [tuple(row.values()) for row in rows])
        if not check:
            note("--check recomputes the recorded file of each class")
    if any(row["state"].startswith(("DIFFERS", "FAILED")) for row in rows):
        say("do not set vllm_python on this validator until each class equals its recorded file")
        raise typer.Exit(1)
