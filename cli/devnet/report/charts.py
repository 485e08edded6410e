"""Charts as inline SVG: text in, text out, colours by the page's CSS variables, so that light and dark both work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from cli.devnet.report.model import Leg, TimelineRow

WIDTH = 1080
_NARROW = 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 104, 12, 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    """Name of a CSS variable, without the dashes."""
    marked: bool = False
    """With a dot at each point."""
    faint: bool = False
    """Noisy: drawn thin, with a running mean on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Label of the vertical axis."""

    top: float
    step: float
    """Between ticks."""
    spell: str
    """Format specification for values."""


SHARES = Scale(top=1, step=0.25, spell=".0%")


def lines(series: Sequence[Series], *, x_label: str, height: int = 340, scale: Scale = SHARES) -> str:
    """Values over a number, from 0 or from the lowest of them; each line is named where it ends."""
    shown = [one for one in series if one.points]
    last = max((x for one in shown for x, _ in one.points), default=1) or 1
    lowest = min((y for one in shown for _, y in one.points), default=0.0)
    below = max(0, math.ceil(-lowest / scale.step))
    bottom, span = -below * scale.step, scale.top + below * scale.step
    plot_width, plot_height = WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / last * plot_width, _TOP + (1 - (y - bottom) / span) * plot_height

    parts = []
    for number in range(-below, round(scale.top / scale.step) + 1):
        tick = number * scale.step
        y = place(0, tick)[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:{scale.spell}}</text>'
        )
    for x in _ticks(last):
        at = place(x, 0)[0]
        parts.append(f'<text class="axis" x="{at:.1f}" y="{height - 14}" text-anchor="middle">{x:g}</text>')
    parts.append(
        f'<text class="axis" x="{WIDTH - _RIGHT + 12}" y="{height - 14}" text-anchor="start">{escape(x_label)}</text>'
    )
    names: list[tuple[float, str, str]] = []
    for one in shown:
        parts += _line(one, [place(x, y) for x, y in one.points], spell=scale.spell)
        end = _running_mean([y for _, y in one.points])[-1] if one.faint else one.points[-1][1]
        names.append((place(0, end)[1], f"{one.name} {end:{scale.spell}}", one.colour))
    parts += _end_names(names)
    return _svg(height, parts)


def _line(one: Series, points: Sequence[tuple[float, float]], *, spell: str) -> list[str]:
    colour = f"var(--{one.colour})"
    if not one.faint:
        parts = [
            f'<path d="{_path(points)}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"/>'
        ]
        if one.marked:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{value:{spell}}</title></circle>'
                for (x, y), (_, value) in zip(points, one.points, strict=True)
            ]
        return parts
    smooth = _running_mean([y for _, y in points])
    trend = [(x, y) for (x, _), y in zip(points, smooth, strict=True)]
    return [
        f'<path class="raw" d="{_path(points)}" stroke="{colour}"/>',
        f'<path class="line" d="{_path(trend)}" stroke="{colour}"/>',
    ]


def _end_names(names: Sequence[tuple[float, str, str]]) -> list[str]:
    """Names beside the ends of their lines, moved apart where they would touch."""
    parts, floor = [], 0.0
    for y, name, colour in sorted(names):
        at = max(y + 4, floor)
        floor = at + 16
        style = f"fill:var(--{colour})"
        parts.append(f'<text class="name" x="{WIDTH - _RIGHT + 8}" y="{at:.1f}" style="{style}">{escape(name)}</text>')
    return parts


def bars(values: Sequence[tuple[str, float]], *, colour: str, height: int = 190, unit: str = "") -> str:
    """One upright bar per value, each with its number on top."""
    most = max((value for _, value in values), default=0) or 1
    room, plot_height = (_NARROW - 40) / max(len(values), 1), height - 60
    width = min(72.0, room * 0.6)
    parts = [f'<line class="grid" x1="20" x2="{_NARROW - 20}" y1="{height - 34}" y2="{height - 34}"/>']
    for number, (name, value) in enumerate(values):
        middle, tall = 20 + room * (number + 0.5), value / most * plot_height
        top = height - 34 - tall
        parts.append(
            f'<rect x="{middle - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{tall:.1f}" rx="3" '
            f'fill="var(--{colour})"/>'
        )
        parts.append(f'<text class="value" x="{middle:.1f}" y="{top - 6:.1f}" text-anchor="middle">{value:,.0f}</text>')
        parts.append(
            f'<text class="axis" x="{middle:.1f}" y="{height - 14}" text-anchor="middle">{escape(name + unit)}</text>'
        )
    return _svg(height, parts, width=_NARROW)


def waterfall(legs: Sequence[Leg]) -> str:
    """Legs one under the other on one time axis, each with what it is and how long it took."""
    row, left, right = 30, 150, 90
    height = row * len(legs) + 34
    first = min((leg.begin for leg in legs), default=0.0)
    span = max((leg.end for leg in legs), default=1.0) - first or 1.0
    scale = (WIDTH - left - right) / span
    parts = _time_axis(0.0, span, left=left, right=right, height=height)
    for number, leg in enumerate(legs):
        y, x = 6 + number * row, left + (leg.begin - first) * scale
        width = max((leg.end - leg.begin) * scale, 2.5)
        parts.append(f'<text class="label" x="{left - 12}" y="{y + 15}" text-anchor="end">{escape(leg.name)}</text>')
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="17" rx="3" fill="var(--{leg.kind})">'
            f"<title>{escape(leg.note or leg.name)}</title></rect>"
        )
        took = f"{(leg.end - leg.begin) * 1000:,.0f} ms"
        parts.append(f'<text class="value" x="{x + width + 7:.1f}" y="{y + 16}">{took}</text>')
    return _svg(height, parts)


def swimlanes(lanes: Sequence[TimelineRow], *, begin: float, end: float) -> str:
    """Draws the activity of each part in a time window; a span's colour is its kind."""
    row, left, right = 26, 120, 16
    height = row * len(lanes) + 34
    scale = (WIDTH - left - right) / ((end - begin) or 1.0)
    parts = _time_axis(begin, end - begin, left=left, right=right, height=height)
    for number, lane in enumerate(lanes):
        y = 4 + number * row
        parts.append(f'<text class="label" x="{left - 12}" y="{y + 15}" text-anchor="end">{escape(lane.name)}</text>')
        parts.append(f'<rect class="track" x="{left}" y="{y + 2}" width="{WIDTH - left - right}" height="19" rx="3"/>')
        for span in lane.spans:
            a, b = max(span.begin, begin), min(span.end, end)
            if b <= a:
                continue
            parts.append(
                f'<rect x="{left + (a - begin) * scale:.1f}" y="{y + 2}" width="{max((b - a) * scale, 1.2):.1f}" '
                f'height="19" rx="2" fill="var(--{span.kind})" opacity="0.9"><title>{escape(span.label or span.kind)}: '
                f"{span.end - span.begin:.2f} s</title></rect>"
            )
    return _svg(height, parts)


def _time_axis(begin: float, span: float, *, left: float, right: float, height: float) -> list[str]:
    parts, scale = [], (WIDTH - left - right) / (span or 1.0)
    step = _step(span / 6)
    tick = math.ceil(begin / step) * step
    while tick <= begin + span + 1e-9:
        x = left + (tick - begin) * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 30}"/>')
        parts.append(f'<text class="axis" x="{x:.1f}" y="{height - 14}" text-anchor="middle">{tick:g} s</text>')
        tick = round(tick + step, 6)
    return parts


def _ticks(last: float) -> list[float]:
    step = max(1.0, _step(last / 8))
    return [step * number for number in range(int(last / step) + 1)]


def _step(rough: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) that is nearest above."""
    if rough <= 0:
        return 1.0
    power: float = 10 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _running_mean(values: Sequence[float], over: int = 7) -> list[float]:
    means = []
    for number in range(len(values)):
        near = values[max(0, number - over + 1) : number + 1]
        means.append(sum(near) / len(near))
    return means


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _svg(height: float, parts: Sequence[str], *, width: int = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height:g}" role="img">{"".join(parts)}</svg>'
