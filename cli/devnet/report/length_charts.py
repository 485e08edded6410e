"""Charts of answer length against requested length, for the HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cli.devnet.report.charts import Scale, Series, lines
from cli.devnet.report.model import ReportedEvaluation, RunReport

_COLOURS = ("generate", "verify", "learn", "broadcast")
"""CSS variables that are easy to tell apart."""
_MOST_TICKS = 8


def length_charts(report: RunReport) -> str:
    """Mean lengths, and the distance to the wanted ones; nothing where no length was wanted."""
    known = [one for one in report.evaluations if one.distance is not None]
    if not known:
        return ""
    means, off = _means(known), _distances(report, known)
    return (
        lines(means, x_label="version", height=260, scale=_tokens(means))
        + '<p class="note">Tokens that answers are longer or shorter than their prompts ask for, on average.</p>'
        + lines(off, x_label="version", height=220, scale=_tokens(off))
    )


def _means(known: Sequence[ReportedEvaluation]) -> list[Series]:
    wanted = sorted({length for one in known for length in one.lengths})
    return [
        Series(
            name=f"wanted {length}:",
            points=[(float(one.version), one.lengths[length]) for one in known if length in one.lengths],
            colour=_COLOURS[number % len(_COLOURS)],
            marked=True,
        )
        for number, length in enumerate(wanted)
    ]


def _distances(report: RunReport, known: Sequence[ReportedEvaluation]) -> list[Series]:
    held_out = [(float(one.version), one.distance) for one in known if one.distance is not None]
    learned = [(step.step + 1.0, step.distance) for step in report.steps if step.distance is not None]
    return [
        Series(name="held out", points=held_out, colour="greedy", marked=True),
        Series(name="training", points=learned, colour="reward", faint=True),
    ]


def _tokens(series: Sequence[Series]) -> Scale:
    """Returns an axis from 0 to above the largest value, with ticks at whole tokens."""
    most = max((y for one in series for _, y in one.points), default=1.0)
    step = max(1, math.ceil(most / _MOST_TICKS))
    return Scale(top=float(step * max(1, math.ceil(most / step))), step=float(step), spell=".1f")
