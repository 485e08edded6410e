"""The report as one HTML page that needs nothing else: no scripts, no fonts, no pictures from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from cli.devnet.report.charts import Series, bars, lines, swimlanes, waterfall
from cli.devnet.report.judgement import Criterion
from cli.devnet.report.length_charts import length_charts
from cli.devnet.report.model import KINDS, NodeAccount, PipelineStage, RunReport
from cli.devnet.report.style import STYLE
from cli.devnet.report.words import briefly, duration, fate, money, tiles

_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Muster devnet report</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>STYLE</style></head>"""
_FOOTER = """Everything on this page was read from the ledger, the orchestrator, the object store, and the trainer's
own log of one run of {} on one machine."""
_KIND_NAMES = {
    "generate": "generation: from the lease to the finished file",
    "verify": "verification: from the ledger's submission to its verdict",
    "learn": "learning: the optimiser's step",
    "broadcast": "broadcast: from the announcement to the version on the node's disk",
    "wait": "waiting for rollouts",
}
_OUTCOMES = ("accepted", "rejected", "forged", "expired", "open")


def as_page(report: RunReport, criteria: Sequence[Criterion]) -> str:
    """The whole page."""
    passed = all(one.met for one in criteria)
    body = [
        f"<h1>Muster devnet: {'it learned, and the cheat lost' if passed else 'not what it had to be'}</h1>"
        if report.cheaters
        else f"<h1>Muster devnet: {'it learned' if passed else 'not what it had to be'}</h1>",
        f'<p class="about">{" · ".join(f"{escape(k)}: {escape(v)}" for k, v in report.about.items())}</p>',
        _verdict(criteria, passed=passed),
        f'<div class="tiles">{"".join(_tile(value, what) for value, what in tiles(report))}</div>',
        _section("Learning", "Reward of the rollouts that each step learned, and right answers on held-out prompts.")
        + _learning(report)
        + "</section>",
        _lengths(report),
        _overlap(report),
        _journey(report),
        _stages(report),
        _nodes(report),
        '<div class="grid2">',
        _latencies(report),
        _staleness(report),
        "</div>",
        _verdicts(report),
        _processes(report),
        f"<footer>{_FOOTER.format(duration(report.wall_seconds))}</footer>",
    ]
    return _HEAD.replace("STYLE", STYLE) + f"<body><main>{''.join(body)}</main></body></html>\n"


def _section(title: str, note: str) -> str:
    return f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'


def _tile(value: str, what: str) -> str:
    return f'<div class="tile"><strong>{escape(value)}</strong><span>{escape(what)}</span></div>'


def _verdict(criteria: Sequence[Criterion], *, passed: bool) -> str:
    items = "".join(
        f'<li><b class="{"met" if one.met else "missed"}">{"✓" if one.met else "✗"}</b>'
        f"{escape(one.name)}: {escape(one.found)}</li>"
        for one in criteria
    )
    return f'<div class="verdict {"good" if passed else "bad"}"><ul>{items}</ul></div>'


def _learning(report: RunReport) -> str:
    reward = [(step.step + 1.0, step.reward) for step in report.steps]
    greedy = [(float(one.version), one.greedy) for one in report.evaluations]
    drawn = [(float(one.version), one.pass_at_1) for one in report.evaluations if one.pass_at_1 is not None]
    return lines(
        [
            Series(name="greedy", points=greedy, colour="greedy", marked=True),
            Series(name="pass@1", points=drawn, colour="pass", marked=True),
            Series(name="reward", points=reward, colour="reward", faint=True),
        ],
        x_label="version",
    )


def _lengths(report: RunReport) -> str:
    charts = length_charts(report)
    note = "Mean length of answers to held-out prompts, a line for each length that prompts ask for."
    return _section("Length", note) + charts + "</section>" if charts else ""


def _overlap(report: RunReport) -> str:
    spans = [span for lane in report.lanes for span in lane.spans]
    if not spans:
        return ""
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    used = {span.kind for span in spans}
    key = "".join(
        f'<span><i style="background:var(--{kind})"></i>{_KIND_NAMES[kind]}</span>' for kind in KINDS if kind in used
    )
    return (
        _section("Everything at the same time", "A window from the middle of the run; seconds since its first lease.")
        + f'<div class="key">{key}</div>{swimlanes(report.lanes, begin=begin, end=end)}</section>'
    )


def _journey(report: RunReport) -> str:
    journey = report.journey
    if journey is None:
        return ""
    note = f"{journey.node}, step {journey.step}, slot {journey.index}: from its lease to the policy that learned it."
    return _section("One rollout's way through the system", note) + waterfall(journey.legs) + "</section>"


def _stages(report: RunReport) -> str:
    rows = [(stage.name, stage.did, stage.rate, _Raw(_meter(stage))) for stage in report.stages]
    note = "Idle: share of the run with nothing to do. The mark is what the stages' own times predict."
    return _section("Stages", note) + _table(("stage", "did", "rate", "idle"), rows) + "</section>"


def _meter(stage: PipelineStage) -> str:
    mark = "" if stage.predicted_idle is None else f'<b style="left:{min(stage.predicted_idle, 1) * 100:.0f}%"></b>'
    filled = f'<i style="width:{min(stage.idle, 1) * 100:.0f}%"></i>'
    return f'<span class="meter">{filled}{mark}</span>{stage.idle:.0%}'


def _latencies(report: RunReport) -> str:
    rows = [(one.name, f"{one.count:,}", briefly(one.p50), briefly(one.p99)) for one in report.latencies]
    note = "Medians and 99th percentiles over all files of the run."
    return _section("Latencies", note) + _table(("way", "#count", "#p50", "#p99"), rows) + "</section>"


def _nodes(report: RunReport) -> str:
    key = "".join(f'<span><i style="background:var(--{name})"></i>{name}</span>' for name in _OUTCOMES)
    rows = [
        (
            _Raw(_name(node)),
            _Raw(_stack(node)),
            f"{node.files:,}",
            f"{node.tokens:,}",
            f"{money(node.stake_before)} → {money(node.stake_after)}",
            money(node.earned),
            money(node.slashed),
            fate(node),
        )
        for node in report.nodes
    ]
    head = ("node", "verdicts", "#files", "#tokens", "#stake", "#earned", "#slashed", "now")
    note = "Files by verdict; stake before and after, rewards and slashes in MUST, as the ledger has them."
    return _section("Nodes", note) + f'<div class="key">{key}</div>' + _table(head, rows) + "</section>"


def _name(node: NodeAccount) -> str:
    cheat = f' <span class="cheat">{escape(node.cheat)}</span>' if node.cheat else ""
    return f'{escape(node.name)}{cheat}<br><span class="address">{escape(node.address[:10])}…</span>'


def _stack(node: NodeAccount) -> str:
    total = node.files or 1
    counts = (node.accepted, node.rejected, node.forged, node.expired, node.open)
    parts = "".join(
        f'<i style="width:{count / total * 100:.2f}%;background:var(--{name})" title="{count} {name}"></i>'
        for name, count in zip(_OUTCOMES, counts, strict=True)
        if count
    )
    return f'<div class="stack">{parts}</div>'


def _verdicts(report: RunReport) -> str:
    rows = [(one.outcome.name.lower(), one.reason, f"{one.honest:,}", f"{one.cheating:,}") for one in report.verdicts]
    note = "Every verdict on the ledger, of honest nodes and of those that cheat."
    return _section("Verdicts", note) + _table(("outcome", "reason", "#honest", "#cheating"), rows) + "</section>"


def _staleness(report: RunReport) -> str:
    if not report.staleness:
        return ""
    values = [(str(behind), float(count)) for behind, count in report.staleness.items()]
    note = "Groups learned, by how many versions the policy had moved on since they were generated."
    return _section("Staleness", note) + bars(values, colour="generate", unit=" behind") + "</section>"


def _processes(report: RunReport) -> str:
    most = max((one.cpu_seconds for one in report.processes), default=0) or 1
    rows = [
        (
            one.name,
            _Raw(f'<span class="meter"><i style="width:{one.cpu_seconds / most * 100:.0f}%"></i></span>'),
            f"{one.cpu_seconds:.1f}",
            f"{one.memory_mib:,.0f}",
        )
        for one in report.processes
    ]
    if not rows:
        return ""
    note = "What each process cost this machine over the whole run, its children included."
    return _section("Processes", note) + _table(("process", "", "#CPU seconds", "#MiB at the end"), rows) + "</section>"


class _Raw(str):
    """Markup of our own, which is not escaped again."""

    __slots__ = ()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a column whose name begins with # holds numbers."""
    classes = [' class="number"' if name.startswith("#") else "" for name in head]
    top = "".join(f"<th{each}>{escape(name.lstrip('#'))}</th>" for name, each in zip(head, classes, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{each}>{cell if isinstance(cell, _Raw) else escape(cell)}</td>"
            for cell, each in zip(row, classes, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
