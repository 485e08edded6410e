"""Formats a validator's status for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from cli.output.printing import note, say, show_fields, show_table
from cli.output.quantities import ago, counted, format_span, moment
from cli.output.tables import Column, Columns
from cli.output.values import Ago, Shown
from validator.api.views import LatencyView, MemberView, ParkedView, StatusView

COUNTED_VERDICTS = Columns.of("verdict", Column("reason", least=16), "count")
VALIDATORS = Columns.of("validator", "where", "last_heard")
LOOPS = Columns.of("loop", "crashes", Column("last_error", least=20))
PROCESSES = Columns.of(
    "process", Column("where", drop=2, least=8), "state", Column("since", drop=1), Column("why", least=20)
)
PARKED = Columns.of(
    "work",
    Column("node", drop=3),
    Column("step/index", drop=4),
    Column("tries", drop=5),
    Column("parked", drop=2),
    Column("expires", drop=1),
    Column("why", least=24),
)


def show_status(found: StatusView) -> None:
    """Prints a validator's own state, queue, verdicts, fellow validators and parked work."""
    now = datetime.now(UTC)
    queue, rates = found.queue, found.rates
    show_fields(
        {
            "validator": f"{found.validator} of pool {found.pool_id}, release {found.version}",
            **_own_state(found.members, now),
            **_own_numerics(found.members),
            **(
                {}
                if found.seated is not False
                else {"NOT SEATED": "the ledger refuses this validator's verdicts: it has no such role in the pool"}
            ),
            "ledger": _ledger(found),
            "epoch": "-" if found.epoch is None else str(found.epoch) if found.epoch else "no epoch has begun",
            "queue": f"{queue.ready} ready · {queue.in_hand} in work · {queue.waiting} later · {queue.parked} parked",
            "not final": f"{queue.not_final} pieces of work",
            "latency": _latency(found.latency),
            "rates": f"{rates.files:.2f} files/s · {rates.rows:.1f} rows/s · "
            f"{rates.prefilled_tokens:.0f} prefilled tokens/s",
            "looked again": " · ".join(f"{count} {name.replace('_', ' ')}" for name, count in found.looks.items()),
        }
    )
    rows = [(each.outcome, each.reason, each.count) for each in found.verdicts]
    show_table(COUNTED_VERDICTS, rows, empty="no verdict was given yet")
    validators = [
        (each.address, "here" if each.here else "elsewhere", Ago(each.heard_at_ms)) for each in found.validators
    ]
    show_table(VALIDATORS, validators, empty="the pool has no validators")
    _show_members(found.members)
    troubled = [(each.name, each.crashes, each.last_error) for each in found.loops if each.crashes]
    if troubled:
        show_table(LOOPS, troubled)
    if found.parked:
        say(f"{queue.parked} parked, waiting for your decision:")
        show_parked(found.parked)


def _own_state(members: Sequence[MemberView], now: datetime) -> dict[str, str]:
    """Returns a row with the reason why this validator takes no work; empty if it takes work."""
    for each in members:
        if each.is_this and each.state != "well":
            words = f"{each.state}, {ago(each.since_ms, now=now)}: {_trouble(each)}" if each.code else each.state
            return {"TAKES NO WORK": words}
    return {}


def _own_numerics(members: Sequence[MemberView]) -> dict[str, str]:
    """Returns a row with the numerics classes that this process can verify; empty if there are none."""
    own = next((each.numerics for each in members if each.is_this), ())
    return {"numerics": ", ".join(own)} if own else {}


def _show_members(members: Sequence[MemberView]) -> None:
    """Prints the validator processes that share this Redis.

    Prints nothing if there is only one process and its state is `well`.
    """
    if len(members) < 2 and all(each.state == "well" for each in members):
        return
    rows = [
        (
            ("* " if each.is_this else "") + each.address,
            each.place,
            each.state,
            Ago(each.since_ms),
            _trouble(each) or None,
        )
        for each in members
    ]
    show_table(PROCESSES, rows)


def _trouble(each: MemberView) -> str:
    if not each.code:
        return ""
    failed = f", {each.tests} self-tests failed" if each.tests > 1 else ""
    return f"{each.why} ({each.code}{failed})" + (f" → {each.hint}" if each.hint else "")


def show_parked(items: Sequence[ParkedView]) -> None:
    """Prints parked work with the reason and a hint for each."""
    now = datetime.now(UTC)
    rows = [
        (
            each.key + ("" if each.kind == "first" else f" {each.kind}"),
            each.node,
            f"{each.step}/{each.index}",
            each.attempts,
            Ago(each.parked_at_ms),
            Shown(moment(each.deadline_ms), _until(each.deadline_ms, now)),
            f"{each.why} ({each.code})" + (f" → {each.hint}" if each.hint else ""),
        )
        for each in items
    ]
    show_table(PARKED, rows, empty="nothing is parked")
    if rows:
        note("`muster validator retry WORK`, or `muster validator resolve WORK accepted|rejected --because WHY`")


def _ledger(found: StatusView) -> str:
    if found.chain_block is None or found.next_block is None:
        return "not read yet by this process; another process on the same Redis may read it"
    behind = found.chain_block + 1 - found.next_block
    return f"block {found.chain_block}, " + (f"{counted(behind, 'block')} behind" if behind > 0 else "read to the end")


def _latency(latency: LatencyView) -> str:
    if latency.p50_s is None or latency.p99_s is None:
        return "no verdict yet"
    return f"p50 {latency.p50_s:.2f} s · p99 {latency.p99_s:.2f} s, of the last {latency.of} verdicts"


def _until(deadline_ms: int, now: datetime) -> str:
    at = moment(deadline_ms)
    return "-" if at is None else "now" if at <= now else f"in {format_span(at - now)}"
