"""Forms of results: tables that fit a terminal, tab-separated values in a pipe, and JSON with one typing rule."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.output import listing, printing
from cli.output.printing import show_fields, show_table
from cli.output.tables import Column, Columns, fit, short_hex
from cli.output.values import Ago, Ether, Must, Named, Shown, Size
from protocol.errors import InvalidInput, Unavailable

ROOT = Path(__file__).parents[2]
ADDRESS = "0x12345678901234567890123456789012345678Ab"
LONG = f"a name with many words, {ADDRESS} and 0x{'ab' * 32}, and a line break\nand a tab\there, and 漢字"


def _declared() -> Iterator[tuple[str, Columns]]:
    """Yields all columns that the code declares; their modules are not imported, because some load torch."""
    names = {"Columns": Columns, "Column": Column, "at": (1, 4, 16), "wanted": True, "mixed": True}
    for path in sorted((ROOT / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Columns.of":
                yield f"{path}:{node.lineno}", eval(ast.unparse(node), names)


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (printing, listing):
        monkeypatch.setattr(module, "at_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")


def test_every_listing_fits_80_columns_and_has_a_constant_number_of_tabs_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = list(_declared())
    assert len(found) > 25
    for name, columns in found:
        row = (LONG,) * len(columns.names)
        rows = [row, ("x",) * len(row), (None,) * len(row)]
        show_table(columns, rows)
        piped = capsys.readouterr().out.splitlines()
        assert [line.count("\t") for line in piped] == [len(row) - 1] * 4, name
        assert piped[0].split("\t") == list(columns.names)
        assert ADDRESS in piped[1], "values are whole in a pipe"
        with monkeypatch.context() as patched:
            patched.setattr(printing, "at_terminal", lambda: True)
            show_table(columns, rows)
            shown = capsys.readouterr().out.splitlines()
            assert len(shown) == 4, f"{name}: one line per object"
            assert max(map(len, shown)) <= 80, name
            assert ADDRESS not in shown[1]
            with printing.output_form(wide=True):
                show_table(columns, rows)
            assert ADDRESS in capsys.readouterr().out


def test_every_listing_declares_its_columns_as_a_constant() -> None:
    for path in sorted((ROOT / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "show_table":
                first = ast.unparse(node.args[0])
                assert re.fullmatch(r"[A-Z_]+( if \w+ else [A-Z_]+)?|columns", first), f"{path}: {first}"


def test_a_table_is_shortened_in_order_hashes_then_texts_then_columns() -> None:
    columns = Columns.of("node", Column("why", least=8), Column("seen", drop=1), Column("size", drop=2))
    row = [ADDRESS, "a reason of some length", "3 min ago", "17 KiB"]

    def lines(width: int | None) -> list[str]:
        return fit(columns, [row], numeric=(False, False, False, True), width=width).lines

    assert lines(None)[1] == f"{ADDRESS}  a reason of some length  3 min ago  17 KiB"
    assert lines(60)[1] == "0x1234…78Ab  a reason of some length  3 min ago  17 KiB"
    assert lines(48)[1] == "0x1234…78Ab  a reason of som…  3 min ago  17 KiB"
    assert lines(36) == ["NODE         WHY           SEEN", "0x1234…78Ab  a reason of…  3 min ago"]
    assert lines(24)[1] == "0x1234…78Ab  a reason o…"
    assert all(len(line) <= 12 for line in lines(12)), "a narrower terminal cuts what may not be left out"
    assert short_hex(f"({ADDRESS})") == "(0x1234…78Ab)"


def test_values_are_typed_by_one_rule(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    time_ms = 1_700_000_000_000
    fields = {
        "must": Must(1_500_000_000_000_000_000),
        "cost": Ether(21_000),
        "seen": Ago(time_ms),
        "size": Size(2048),
        "node": Named(ADDRESS, "attic"),
        "share": Shown(0.25, "25 %"),
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "count": 3,
        "live": True,
        "list": [ADDRESS, "b"],
        "none": None,
    }
    show_fields(fields, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "must": "1500000000000000000",
        "cost": "21000",
        "seen": "2023-11-14T22:13:20Z",
        "size": 2048,
        "node": ADDRESS,
        "share": 0.25,
        "at": "2026-01-02T03:04:05Z",
        "count": 3,
        "live": True,
        "list": [ADDRESS, "b"],
        "none": None,
    }
    show_fields(fields)
    piped = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert piped["must"] == "1500000000000000000"
    assert (piped["seen"], piped["live"], piped["list"], piped["none"]) == (
        "2023-11-14T22:13:20Z",
        "true",
        f"{ADDRESS},b",
        "",
    )
    monkeypatch.setattr(printing, "at_terminal", lambda: True)
    show_fields(fields)
    shown = capsys.readouterr().out
    assert "1.5 MUST" in shown
    assert "0.000000000000021 ETH" in shown
    assert re.search(r"seen +\d+ d ago\n", shown)
    assert f"attic {ADDRESS}" in shown
    assert "2.0 KiB" in shown


@pytest.mark.usefixtures("at_terminal")
def test_a_narrow_terminal_names_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    columns = Columns.of("name", Column("last_error", drop=1))
    with printing.output_form():
        show_table(columns, [("n" * 50, "e" * 50)])
        show_table(columns, [])
    written = capsys.readouterr()
    assert written.out.splitlines() == ["NAME", "n" * 50]
    assert "not shown: last error; --wide prints everything" in written.err


# Watching


class Feed:
    """A command whose output changes, and whose service is down in one round."""

    def __init__(self, *rounds: str | Exception) -> None:
        self.rounds = list(rounds)

    async def __call__(self) -> None:
        if not self.rounds:
            raise KeyboardInterrupt
        now = self.rounds.pop(0)
        if isinstance(now, Exception):
            raise now
        printing.say(now)


def _watched(feed: Feed) -> None:
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(listing._watch(feed, wide=False, interval=0))


def test_watch_in_a_pipe_prints_each_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    _watched(Feed("one", "one", Unavailable("it is down"), "two"))
    written = capsys.readouterr()
    assert written.out == "one\n\ntwo\n\n"
    assert "it is down" in written.err
    _watched(Feed('{"n":1}', '{"n":2}'))
    assert capsys.readouterr().out == '{"n":1}\n{"n":2}\n', "one JSON document per line"


@pytest.mark.usefixtures("at_terminal")
def test_watch_at_a_terminal_redraws_the_screen_and_leaves_the_last_output(capsys: pytest.CaptureFixture[str]) -> None:
    _watched(Feed("one", Unavailable("it is down"), "two"))
    written = capsys.readouterr().out
    assert written.count("\x1b[2J") == 0, "the screen is not cleared, so it does not flicker"
    assert ": it is down" in written
    assert written.endswith("two\n")


@pytest.mark.parametrize("error", [Unavailable("down"), InvalidInput("wrong")])
def test_watch_ends_if_its_first_refresh_fails(error: Exception) -> None:
    with pytest.raises(type(error)):
        asyncio.run(listing._watch(Feed(error), wide=False, interval=0))


def test_at_a_real_terminal_a_listing_has_its_width_and_no_colour_with_no_color() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "NO_COLOR": "1"}
    subprocess.run(
        [sys.executable, "-m", "cli", "work", "reasons"], stdout=theirs, stderr=theirs, env=environment, check=True
    )
    os.close(theirs)
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    lines = seen.decode().replace("\r\n", "\n").splitlines()
    assert lines[0].split() == ["CODE", "REASON", "WORDS"]
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "some values are cut; --wide prints everything"


def _read(ours: int) -> bytes:
    try:
        return os.read(ours, 1 << 16)
    except OSError:  # the other side is closed
        return b""
