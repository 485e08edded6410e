"""The report as one self-contained HTML page without scripts and external fonts or images.

The templates in `templates/` hold the markup; this module computes the coordinates of the charts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cli.devnet.report.data import KINDS, Criterion, RunReport, TimelineRow, TimeSpan
from cli.devnet.report.text import duration, latency, membership, rewarded, share, stake
from ledger.amounts import format_amount

_TOP = 12
_COLOURS = ("generate", "verify", "learn", "broadcast")
"""CSS variables for the lines of different requested lengths."""
_MOST_TICKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Size of a chart, and its margins without the one at the top, in pixels."""

    width: int
    left: int
    right: int
    bottom: int
    ticks: int
    """Approximate maximum number of ticks on the horizontal axis."""


_WIDE = Room(width=1080, left=46, right=104, bottom=34, ticks=8)
_NARROW = Room(width=360, left=40, right=92, bottom=44, ticks=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart.

    Args:
        name: Label at the line's end.
        colour: Name of a CSS variable, without the dashes.
        points: (x, y) values.
        noisy: Whether to draw a thin line with a running mean on top of it, and no dots at the points.
    """

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    noisy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Vertical axis of a chart."""

    top: float
    step: float
    """Distance between two ticks."""
    spec: str
    """Format specification of values."""


_SHARES = Axis(top=1, step=0.25, spec=".0%")


def as_page(report: RunReport, criteria: Sequence[Criterion]) -> str:
    """Returns the report as an HTML page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - a plain installation has no jinja2

    environment = Environment(
        loader=PackageLoader("cli.devnet.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "latency": latency, "money": format_amount, "visible": visible}
    environment.globals |= {
        "ticks": ticks,
        "stake": stake,
        "membership": membership,
        "rewarded": rewarded,
        "share": share,
    }
    return environment.get_template("page.html").render(
        report=report,
        criteria=criteria,
        passed=all(one.met for one in criteria),
        kinds=KINDS,
        learning=_learning(report),
        path=_path_rows(report),
        length_charts=_length_charts(report),
    )


def _learning(report: RunReport) -> list[dict[str, object]]:
    sampled = [(float(one.version), one.pass_at_1) for one in report.evaluations if one.pass_at_1 is not None]
    series = (
        Series(name="greedy", colour="greedy", points=[(float(one.version), one.greedy) for one in report.evaluations]),
        Series(name="pass@1", colour="pass", points=sampled),
        Series(
            name="reward", colour="reward", points=[(step.step + 1.0, step.reward) for step in report.steps], noisy=True
        ),
    )
    return _in_both_sizes(series, height=340, axis=_SHARES)


def _path_rows(report: RunReport) -> list[TimelineRow]:
    """Returns one row for each part of the path of the report's example rollout file."""
    legs = () if report.journey is None else report.journey.legs
    return [
        TimelineRow(
            name=leg.name, spans=(TimeSpan(begin=leg.begin, end=leg.end, kind=leg.kind, label=leg.note or leg.name),)
        )
        for leg in legs
    ]


def _length_charts(report: RunReport) -> list[list[dict[str, object]]]:
    """Returns the charts of answer lengths and of their distance to requested lengths.

    The result is empty if no length is requested.
    """
    known = [one for one in report.evaluations if one.distance is not None]
    if not known:
        return []
    means = [
        Series(
            name=f"wanted {length}:",
            colour=_COLOURS[number % len(_COLOURS)],
            points=[(float(one.version), one.lengths[length]) for one in known if length in one.lengths],
        )
        for number, length in enumerate(sorted({length for one in known for length in one.lengths}))
    ]
    held_out = [(float(one.version), one.distance) for one in known if one.distance is not None]
    training = [(step.step + 1.0, step.distance) for step in report.steps if step.distance is not None]
    distances = [
        Series(name="held out", colour="greedy", points=held_out),
        Series(name="training", colour="reward", points=training, noisy=True),
    ]
    return [
        _in_both_sizes(means, height=260, axis=_token_axis(means)),
        _in_both_sizes(distances, height=220, axis=_token_axis(distances)),
    ]


def _token_axis(series: Sequence[Series]) -> Axis:
    """Returns an axis from 0 to at least the largest value, with ticks at whole tokens."""
    most = max((y for one in series for _, y in one.points), default=1.0)
    step = max(1, math.ceil(most / _MOST_TICKS))
    return Axis(top=float(step * max(1, math.ceil(most / step))), step=float(step), spec=".1f")


def _in_both_sizes(series: Sequence[Series], *, height: int, axis: Axis) -> list[dict[str, object]]:
    """Returns the coordinates of a chart for wide and for narrow screens, for the macro `line_chart`."""
    return [line_chart(series, height=height, axis=axis, room=room) for room in (_WIDE, _NARROW)]


def visible(value: object) -> str:
    """Returns a text in which a replacement character stands for each control, direction or invisible character."""
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in str(value))


def line_chart(series: Sequence[Series], *, height: int, axis: Axis, room: Room) -> dict[str, object]:
    """Returns the coordinates of a line chart of one size.

    The vertical axis begins at 0, or below the lowest value if this value is negative.
    """
    shown = [one for one in series if one.points]
    last = max((x for one in shown for x, _ in one.points), default=1) or 1
    lowest = min((y for one in shown for _, y in one.points), default=0.0)
    below = max(0, math.ceil(-lowest / axis.step))
    bottom, span = -below * axis.step, axis.top + below * axis.step

    def x_of(x: float) -> float:
        return round(room.left + x / last * (room.width - room.left - room.right), 1)

    def y_of(y: float) -> float:
        return round(_TOP + (1 - (y - bottom) / span) * (height - _TOP - room.bottom), 1)

    lines, labels = [], []
    for one in shown:
        values = [y for _, y in one.points]
        drawn = _running_mean(values) if one.noisy else values
        xs = [x_of(x) for x, _ in one.points]
        lines.append(
            {
                "colour": one.colour,
                "raw": _path(xs, [y_of(y) for y in values]) if one.noisy else None,
                "path": _path(xs, [y_of(y) for y in drawn]),
                "dots": []
                if one.noisy
                else [(x, y_of(y), f"{y:{axis.spec}}") for x, y in zip(xs, values, strict=True)],
            }
        )
        labels.append((y_of(drawn[-1]) + 4, f"{one.name} {drawn[-1]:{axis.spec}}", one.colour))
    labels.sort()
    for number in range(1, len(labels)):  # move labels apart where they would overlap
        y, name, colour = labels[number]
        labels[number] = max(y, labels[number - 1][0] + 16), name, colour
    values_of_ticks = [number * axis.step for number in range(-below, round(axis.top / axis.step) + 1)]
    return {
        "width": room.width,
        "height": height,
        "left": room.left,
        "right": room.width - room.right,
        "y_ticks": [(y_of(value), f"{value:{axis.spec}}") for value in values_of_ticks],
        "x_ticks": [(x_of(value), f"{value:g}") for value in ticks(0, last, least=1, most=room.ticks)],
        "lines": lines,
        "labels": labels,
    }


def ticks(begin: float, end: float, *, least: float = 0.0, most: int = 8) -> list[float]:
    """Returns at most about `most` round numbers from `begin` to `end`, at least `least` apart."""
    rough = max((end - begin) / most, least, 1e-9)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(begin / step - 1e-9), math.floor(end / step + 1e-9)
    return [round(step * number, 9) for number in range(first, last + 1)]


def _running_mean(values: Sequence[float], window: int = 7) -> list[float]:
    windows = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return [sum(part) / len(part) for part in windows]


def _path(xs: Sequence[float], ys: Sequence[float]) -> str:
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))
