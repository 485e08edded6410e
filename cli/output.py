"""Output of `muster`: results on standard output as text or JSON, everything else on standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated

import structlog
import typer
from pydantic_core import to_jsonable_python
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from protocol.errors import MusterError
from protocol.runtime.logs import logs_json_only

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_PIPE_WIDTH = 240
"""Width in characters of tables that go to a pipe or file; wide enough that no address is wrapped."""

_NOT_ASCII = re.compile(r"[^\n\x20-\x7e]+")

_log = structlog.get_logger(__name__)
_at_a_terminal = sys.stdout is not None and sys.stdout.isatty()  # `sys.stdout` is None if closed
_stdout = Console(highlight=False, soft_wrap=True, width=None if _at_a_terminal else _PIPE_WIDTH)
_stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Prints one line of a result."""
    _stdout.print(_plain(text))


def report(text: str) -> None:
    """Prints one line about the progress of a service: a JSON object if its logs are JSON, else text."""
    if logs_json_only():
        show_json({"event": text}, one_line=True)
    else:
        say(text)


def note(text: str) -> None:
    """Prints a remark to standard error, so that pipes receive only results."""
    _stderr.print(f"[dim]{_plain(text)}[/dim]")


def warn(text: str) -> None:
    """Prints a warning to standard error."""
    _stderr.print(f"[yellow]warning:[/yellow] {_plain(text)}")


def show_json(value: object, *, one_line: bool = False) -> None:
    """Prints a value as JSON; it may contain models, dataclasses, enums and times.

    Callers pass amounts of tokens as strings, because many JSON readers round large integers.
    """
    indent = None if one_line else 2
    sys.stdout.write(printable_json(json.dumps(to_jsonable_python(value), indent=indent, ensure_ascii=False)) + "\n")


def printable_json(text: str) -> str:
    """Escapes control characters above 127 in JSON text, which JSON encoders keep but terminals interpret."""
    return _NOT_ASCII.sub(
        lambda run: "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in run[0]), text
    )


def show_fields(fields: Mapping[str, object], *, as_json: bool = False) -> None:
    """Prints the fields of one object, one per line."""
    if as_json:
        show_json(fields)
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields.items():
        grid.add_row(_plain(name.replace("_", " ")), _plain(_text(value)))
    _stdout.print(grid)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool = False, empty: str = ""
) -> None:
    """Prints a table with one row per object, or `empty` if there are none."""
    listed = list(rows)
    if as_json:
        show_json([dict(zip(columns, row, strict=True)) for row in listed])
        return
    if not listed:
        note(empty)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in listed:
        table.add_row(*[_plain(_text(cell)) for cell in row])
    _stdout.print(table)


def show_error(error: MusterError) -> None:
    """Prints an error and its hint; a service with JSON logs logs them."""
    if logs_json_only():
        _log.error("ended", detail=error.detail, hint=error.hint, code=error.code, retryable=error.retryable)
        return
    _stderr.print(f"[red]error:[/red] {_plain(error.detail)}")
    if error.hint:
        _stderr.print(f"  [dim]hint:[/dim] {_plain(error.hint)}")


def _plain(text: str) -> str:
    """Returns text without rich markup and terminal control characters."""
    return escape(printable(text))


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S UTC")
        case Enum():
            return str(value.value)
        case list() | tuple():
            return "\n".join(_text(item) for item in value) or "-"
        case _:
            return str(value)


def printable(text: str) -> str:
    """Replaces control characters, because terminals interpret them and much text comes from untrusted parties."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)


def shorten(text: str, width: int) -> str:
    """Returns a text as one printable line of at most `width` characters; `⏎` stands for a line break."""
    line = printable("⏎".join(text.strip().splitlines()))
    return line if len(line) <= width else line[: width - 1] + "…"
