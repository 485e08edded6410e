"""Output of `muster`: results on standard output, everything else on standard error.

Results have three forms. Values are typed by one rule, which `cli.output.values` implements:

- A terminal gets text: tables that fit its width, shortened addresses, times as durations, amounts with their unit.
  `--wide` prints full values.
- A pipe or file gets tab-separated values without colour: a listing is a line with the names of the columns, then one
  line per object, always with the same number of tabs. Values are those of JSON; null is an empty text.
- `--json` prints JSON. Addresses and hashes are strings. Amounts are strings of digits in the smallest unit (10⁻¹⁸
  MUST; wei). Times are ISO 8601 in UTC, durations ISO 8601, sizes and counts numbers. What a service answers is printed
  as its REST API sends it; there, the names of times end in `_ms` and the values are milliseconds of Unix time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import MusterError
from protocol.runtime.logs import get_logger, logs_json_only, printable

if TYPE_CHECKING:
    from cli.output.tables import Columns

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

MOST_OF_STRANGERS = 200
"""Maximum length of a stranger's text in a remark, warning or error, in characters."""
_NOT_ASCII = re.compile(r"[^\n\x20-\x7e]+")
_DIM, _RED, _YELLOW = "2", "31", "33"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OutputForm:
    """Form of the results of the running command.

    Args:
        wide: Print full values at a terminal, too.
        has_wide: The command has the option `--wide`.
        lines: Collects the lines of standard output, if the caller prints them itself.
        one_line: JSON is printed on one line.
    """

    wide: bool = False
    has_wide: bool = False
    lines: list[str] | None = None
    one_line: bool = False


_form = OutputForm()


@contextmanager
def output_form(*, wide: bool = False, lines: list[str] | None = None, one_line: bool = False) -> Iterator[None]:
    """Sets the form of results inside the context, for a command with `--wide`."""
    global _form  # noqa: PLW0603 - one command runs at a time in a process
    former = _form
    _form = replace(former, wide=wide, has_wide=True, lines=lines, one_line=one_line)
    try:
        yield
    finally:
        _form = former


def at_terminal() -> bool:
    """Returns whether results go to a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()  # `sys.stdout` is None if closed


def say(text: str) -> None:
    """Prints one line of a result."""
    _write(printable(text))
    if _form.lines is None:
        sys.stdout.flush()  # a service's log shows the line at once


def report(text: str) -> None:
    """Prints one line about the progress of a service: a JSON object if its logs are JSON, else text."""
    if logs_json_only():
        show_json({"event": text}, one_line=True)
    else:
        say(text)


def note(text: str) -> None:
    """Prints a remark to standard error, so that pipes receive only results."""
    if _form.lines is not None and at_terminal():
        _form.lines.append(printable(text))  # belongs to the screen that `--watch` draws
        return
    _write_error(_styled(printable(text), _DIM))


def warn(text: str) -> None:
    """Prints a warning to standard error."""
    _write_error(f"{_styled('warning:', _YELLOW)} {printable(text)}")


def show_json(value: object, *, one_line: bool = False) -> None:
    """Prints a value as JSON; it may contain typed values, models, dataclasses, enums and times."""
    from cli.output.values import as_json  # noqa: PLC0415 - imported on demand, because it loads pydantic

    indent = None if one_line or _form.one_line else 2
    _write(printable_json(json.dumps(as_json(value), indent=indent, ensure_ascii=False)))


def printable_json(text: str) -> str:
    """Escapes control characters above 127 in JSON text, which JSON encoders keep but terminals interpret."""
    return _NOT_ASCII.sub(
        lambda run: "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in run[0]), text
    )


def show_result(text: str, fields: Mapping[str, object], *, as_json: bool) -> None:
    """Prints the result of a command that changed something: a sentence, or its fields as JSON."""
    if as_json:
        show_json(fields)
    else:
        say(text)


def show_fields(fields: Mapping[str, object] | Sequence[tuple[str, object]], *, as_json: bool = False) -> None:
    """Prints the fields of one object, one per line; in a pipe each line is a name, a tab and the value.

    A name may occur several times in a sequence, which can't be printed as JSON.
    """
    from cli.output.values import as_plain, as_text  # noqa: PLC0415

    if as_json:
        show_json(fields)
        return
    pairs = list(fields.items()) if isinstance(fields, Mapping) else fields
    if not at_terminal():
        for name, value in pairs:
            _write(f"{_cell(name)}\t{_cell(as_plain(value))}")
        return
    left = max((len(name) for name, _ in pairs), default=0) + 2
    room = max(20, terminal_width() - left)
    for name, value in pairs:
        items = value if isinstance(value, (list, tuple)) and value else [value]
        text = [line for item in items for line in printable(as_text(item)).split("\n")]
        folded = text if _form.wide else [part for line in text for part in _folded(line, room)]
        for number, line in enumerate(folded):
            title = "" if number else printable(name.replace("_", " "))
            _write(f"{_styled(title, _DIM, out=True)}{' ' * (left - len(title))}{line}".rstrip())


def show_table(columns: Columns, rows: Iterable[Sequence[object]], *, as_json: bool = False, empty: str = "") -> None:
    """Prints a listing with one line per object; at a terminal `empty` if there are none."""
    from cli.output.values import Size, as_plain, as_text  # noqa: PLC0415

    listed = list(rows)
    if as_json:
        show_json([dict(zip(columns.names, row, strict=True)) for row in listed])
        return
    if not listed:
        note(empty)
    if not at_terminal():
        _write("\t".join(columns.names))
        for row in listed:
            _write("\t".join(_cell(as_plain(cell)) for _, cell in zip(columns.names, row, strict=True)))
        return
    if not listed:
        return
    from cli.output.tables import fit  # noqa: PLC0415 - only a terminal needs it

    texts = [[_cell(as_text(cell)) for cell in row] for row in listed]
    numeric = [
        all(cell is None or isinstance(cell, (int, float, Size)) for cell in cells)
        for cells in zip(*listed, strict=True)
    ]
    fitted = fit(columns, texts, numeric=numeric, width=None if _form.wide else terminal_width())
    for line in fitted.lines:
        _write(line)
    if _form.has_wide and (fitted.dropped or fitted.cut):
        missing = ", ".join(name.replace("_", " ") for name in fitted.dropped)
        note(f"{f'not shown: {missing}' if missing else 'some values are cut'}; --wide prints everything")


def terminal_width() -> int:
    """Returns the number of columns of the terminal; `COLUMNS` overrides it."""
    return shutil.get_terminal_size().columns


def show_error(error: MusterError) -> None:
    """Prints an error and its hint; a service with JSON logs logs them."""
    if logs_json_only():
        _log.error("ended", detail=error.detail, hint=error.hint, code=error.code, retryable=error.retryable)
        return
    _write_error(f"{_styled('error:', _RED)} {printable(error.detail)}")
    if error.hint:
        _write_error(f"  {_styled('hint:', _DIM)} {printable(error.hint)}")


def shorten(text: str, width: int) -> str:
    """Returns a text as one printable line of at most `width` characters; `⏎` stands for a line break."""
    line = printable("⏎".join(text.strip().splitlines()))
    return line if len(line) <= width else line[: width - 1] + "…"


def strangers(text: str) -> str:
    """Returns a stranger's text as one line of at most 200 characters, so that it can't imitate Muster's own lines."""
    return shorten(text, MOST_OF_STRANGERS)


@contextmanager
def strangers_errors() -> Iterator[None]:
    """Makes one line each of detail and hint of an error inside the context, because a stranger may have written them.

    Raises:
        MusterError: The error, with shorter texts.
    """
    try:
        yield
    except MusterError as error:
        error.detail, error.hint = strangers(error.detail), strangers(error.hint)
        raise


def _cell(text: str) -> str:
    """Returns a text as one line without tabs."""
    return printable(" ".join(text.split()) if any(each in "\t\n\r\v\f" for each in text) else text)


def _folded(line: str, width: int) -> list[str]:
    """Breaks a line between words; longer words, such as hashes, stay whole."""
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]


def _write(text: str) -> None:
    if _form.lines is not None:
        _form.lines.extend(text.split("\n"))
    else:
        sys.stdout.write(text + "\n")


def _write_error(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text + "\n")


def _styled(text: str, style: str, *, out: bool = False) -> str:
    """Returns a text in a terminal's colour, unless the stream is no terminal or `NO_COLOR` is set."""
    stream = sys.stdout if out else sys.stderr
    plain = stream is None or not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not text else f"\x1b[{style}m{text}\x1b[0m"
