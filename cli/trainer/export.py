"""`muster trainer export`: curves and sampled answers of a run for TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output.printing import note, say
from cli.output.quantities import counted
from protocol.errors import InvalidInput, NotFound, Unavailable
from trainer.run.state.folder import PROGRESS_FILE

_EXPORTED = frozenset({"step", "evaluation", "published"})
"""Kinds of log lines that are exported. The version number in a line is the x value of the line's points."""
_NOT_CURVES = frozenset({"step", "version", "at_ms"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPoint:
    """One line of the progress log.

    Args:
        number: Version of the policy that the step produced, or version that was evaluated or published.
        at: Unix time in seconds.
        curves: Finite numbers by name, such as `step/figures/entropy`.
        answers: Greedy answers to held-out prompts: prompt, answer, and whether the answer is correct.
    """

    number: int
    at: float
    curves: Mapping[str, float]
    answers: Sequence[tuple[str, str, bool]] = ()


def export(
    folder: Annotated[Path, typer.Argument(exists=True, help="The trainer's state directory, or its progress.jsonl.")],
    tensorboard: Annotated[Path | None, typer.Option(help="Write event files to this new folder.")] = None,
    wandb: Annotated[str | None, typer.Option(help="Log a run to this project of Weights & Biases.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run in Weights & Biases; default: the folder's name.")
    ] = None,
) -> None:
    """Export a run's curves and sampled answers to TensorBoard or Weights & Biases.

    Weights & Biases gets the figures, and the prompts and answers of evaluations. With WANDB_MODE=offline nothing
    leaves this machine.
    """
    if tensorboard is None and wandb is None:
        raise InvalidInput("no destination of the export is given", hint="give --tensorboard DIR, or --wandb PROJECT")
    if tensorboard is not None and tensorboard.exists() and (not tensorboard.is_dir() or any(tensorboard.iterdir())):
        raise InvalidInput(f"{tensorboard} is not an empty folder", hint="give --tensorboard a new folder")
    points = read_points(folder / PROGRESS_FILE if folder.is_dir() else folder)
    if tensorboard is not None:
        write_events(tensorboard, points)
        say(f"wrote {counted(len(points), 'point')} to {tensorboard}: tensorboard --logdir {tensorboard}")
    if wandb is not None:
        home = folder.resolve() if folder.is_dir() else folder.resolve().parent
        place = log_run(points, project=wandb, name=name or home.name)
        say(f"logged {counted(len(points), 'point')} to {wandb}: {place}")


def read_points(file: Path) -> list[ExportedPoint]:
    """Returns the exported lines, ordered by version number.

    If the log repeats a step, only the last line of this step is returned.

    Raises:
        NotFound: There is no such file.
        InvalidInput: The file has no line to export.
    """
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError as error:
        raise NotFound(f"there is no {file}", hint="give the `state` directory of a trainer that has run") from error
    found: dict[tuple[str, int], ExportedPoint] = {}
    broken = 0
    for line in text.splitlines():
        try:
            parsed = json.loads(line)
            if parsed["kind"] in _EXPORTED:
                number = int(parsed["version"])
                found[parsed["kind"], number] = _point(parsed, number=number)
        except (ValueError, KeyError, TypeError):
            broken += 1  # for example the last line, if the trainer is still writing it
    if broken:
        note(f"skipped {counted(broken, 'unreadable line')} of {file}")
    if not found:
        raise InvalidInput(f"{file} has no step to export", hint="wait for the trainer's first step")
    return [found[key] for key in sorted(found, key=lambda key: (key[1], key[0]))]


def write_events(folder: Path, points: Sequence[ExportedPoint]) -> None:
    """Writes TensorBoard event files."""
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an optional dependency
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
    from tensorboard.plugins.text.summary_v2 import text_pb  # noqa: PLC0415
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

    writer: Any = EventFileWriter(str(folder))
    for point in points:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in point.curves.items()]
        writer.add_event(Event(wall_time=point.at, step=point.number, summary=Summary(value=values)))
        if point.answers:
            writer.add_event(
                Event(wall_time=point.at, step=point.number, summary=text_pb("answers", _as_table(point.answers)))
            )
    writer.close()


def log_run(points: Sequence[ExportedPoint], *, project: str, name: str) -> str:
    """Logs a run to Weights & Biases; returns the run's URL, or its folder in offline mode."""
    import wandb  # noqa: PLC0415 - an optional dependency

    # Only the run's figures and answers leave this machine: no host, command line, Git remote or console output.
    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    try:
        run: Any = wandb.init(project=project, name=name, settings=settings)
    except wandb.errors.Error as error:
        raise Unavailable(
            f"Weights & Biases refuses the run: {error}", hint="run `wandb login`, or set WANDB_MODE=offline"
        ) from error
    try:
        run.define_metric("version")
        run.define_metric("*", step_metric="version")
        for point in points:
            logged: dict[str, Any] = dict(point.curves) | {"version": point.number}
            if point.answers:
                rows = [list(one) for one in point.answers]
                logged["answers"] = wandb.Table(columns=["prompt", "answer", "correct"], data=rows)
            run.log(logged)
        return str(run.url or run.dir)
    finally:
        run.finish()


def _point(line: Mapping[str, Any], *, number: int) -> ExportedPoint:
    kind = str(line["kind"])
    answers = [(str(one["prompt"]), str(one["answer"]), bool(one["correct"])) for one in line.get("examples") or ()]
    curves = {f"{kind}/{name}": value for name, value in _numbers(line) if name not in _NOT_CURVES}
    return ExportedPoint(number=number, at=float(line["at_ms"]) / 1000, curves=curves, answers=answers)


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields each finite number of nested tables with its path, such as `figures/entropy`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{prefix}{name}", float(value)


def _as_table(answers: Sequence[tuple[str, str, bool]]) -> str:
    """Formats answers as a Markdown table. HTML is not escaped here, because TensorBoard escapes it."""
    rows = [
        f"| {_cell(prompt)} | {_cell(answer)} | {'right' if correct else 'wrong'} |"
        for prompt, answer, correct in answers
    ]
    return "\n".join(["| prompt | answer | |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
