"""`muster validator audit-log`: repeats a validator's row draws of a past epoch from public data."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from cli.connection import PoolOption, chosen_pool, open_ledger
from cli.keys import resolve_address
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, say, show_json, show_table
from cli.output.tables import Column, Columns
from cli.pool.connection import Where
from cli.rollouts.audit_files import open_audit_files
from protocol.errors import InvalidInput
from protocol.identifiers import Address
from validator.audit.log import AuditLog, EpochLog
from validator.audit.recompute import AuditComparison

DRAWS = Columns.of(
    "work", "verdict", Column("share", drop=1), "rows", Column("draw", least=8), Column("why", drop=2, least=16)
)


@listing()
async def audit_log(
    context: typer.Context,
    *,
    validator: Annotated[
        str | None, typer.Option(help="Address or key name of the validator; default: all of them.")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(min=1, help="Number of the epoch; default: the newest past epoch with verdicts.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every past epoch.")] = False,
    pool: PoolOption = None,
    where: Where = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat a validator's draws of the rows to recompute, for a past epoch.

    Exits with 1 if the validator recomputed other rows than the drawn ones, or too few. All data is public: secrets and
    verdicts are on the ledger, audit files in the pool's store.
    """
    if every and epoch is not None:
        raise InvalidInput("--all and --epoch exclude each other", hint="give one of them")
    pool_id = chosen_pool(context.obj, pool)
    named = None if validator is None else resolve_address(context.obj, validator)
    async with (
        open_ledger(context.obj) as ledger,
        open_audit_files(context.obj, pool_id=pool_id, where=where) as files,
    ):
        history = AuditLog(ledger, pool_id=pool_id, read=files.read)
        await history.load()
        logs: list[EpochLog] = []
        for author in history.validators() if named is None else [named]:
            logs += [
                await history.of(author, number)
                for number in _epochs(history, author, epoch=epoch, every=every, named=named is not None)
            ]
    if as_json:
        show_json([_raw(log) for log in logs])
    else:
        for log in logs:
            _show(log)
        if not logs:
            note("no past epoch has verdicts yet; an epoch ends when the validator begins the next one")
    if any(log.differs for log in logs):
        raise typer.Exit(1)


def _epochs(history: AuditLog, validator: Address, *, epoch: int | None, every: bool, named: bool) -> list[int]:
    past = history.past_epochs(validator)
    if epoch is not None:
        return [epoch] if epoch in past or named else []
    if every:
        return past
    newest = history.newest_with_verdicts(validator)
    return [] if newest is None else [newest]


def _show(log: EpochLog) -> None:
    shown = "not revealed yet" if log.secret is None else f"0x{log.secret.hex()}"
    say(f"validator {log.validator}, epoch {log.epoch}: submissions of the blocks {log.first} to {log.last}")
    say(f"secret {shown}")
    rows = []
    for line in log.lines:
        verdict, found = line.verdict, line.comparison
        share = None if found.share is None else f"{found.share:.2%}".replace(".00%", "%")
        audited = f"{found.drawn} of {found.rows}" if found.rows else None
        outcome = verdict.outcome.name.lower() + (" (dispute)" if verdict.decisive else "")
        rows.append((verdict.work.key, outcome, share, audited, found.finding, found.why))
    show_table(DRAWS, rows, empty="no verdicts on these submissions")
    counts = Counter(line.comparison.finding for line in log.lines)
    if counts:
        say(", ".join(f"{counts[finding]} {_COUNTED[finding]}" for finding in AuditComparison if counts[finding]))


_COUNTED = {
    AuditComparison.AGREES: "as drawn",
    AuditComparison.DIFFERS: "NOT as drawn",
    AuditComparison.UNKNOWN: "that can't be recomputed",
}


def _raw(log: EpochLog) -> dict[str, object]:
    return {
        "validator": log.validator,
        "epoch": log.epoch,
        "first_block": log.first,
        "last_block": log.last,
        "secret": None if log.secret is None else f"0x{log.secret.hex()}",
        "verdicts": [
            {
                "work": line.verdict.work.key,
                "node": line.verdict.work.node,
                "step": line.verdict.work.step,
                "index": line.verdict.work.index,
                "outcome": line.verdict.outcome.name.lower(),
                "decisive": line.verdict.decisive,
                "audit_hash": line.verdict.audit_hash,
                "share": line.comparison.share,
                "rows_audited": line.comparison.drawn,
                "rows": line.comparison.rows,
                "finding": line.comparison.finding.name.lower(),
                "why": line.comparison.why,
            }
            for line in log.lines
        ],
    }
