"""Rules that hold for every command: `--json`, confirmation of what can't be undone, and exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.exit_codes import EXIT_CODES, FAILED, TRY_LATER, USAGE, WrongUsage, exit_code_of
from cli.lazy import mount
from cli.main import PARTS, app
from protocol.errors import InvalidInput, MusterError, Unavailable
from protocol.runtime.findings import exit_code, failure, ok, warning
from tests.kit.devnet import run_muster

WITHOUT_JSON = {
    "devnet": "runs a network; --check and the report have its results",
    "discovery serve": "a service: its log is JSON",
    "gateway run": "a service: its log is JSON",
    "gateway verifier": "a service: its log is JSON",
    "serve": "a service: its log is JSON",
    "orchestrator serve": "a service: its log is JSON",
    "shardcast origin": "a service: its log is JSON",
    "shardcast relay": "a service: its log is JSON",
    "validator run": "a service: its log is JSON",
    "worker init": "asks, and reports each step; its results are files",
    "worker run": "a service: its log is JSON",
    "pool invite": "prints the signed document, which is JSON",
    "work lease": "prints the signed document, which is JSON",
    "work sign": "prints the signed document, which is JSON",
    "trainer export": "writes files for other programs",
}

ASKS = {
    "ledger transfer",
    "node leave",
    "node revoke-consent",
    "pool ban-provider",
    "pool delete-webhook",
    "pool end",
    "pool evict",
    "pool stop",
    "pool transfer",
    "pool unban-provider",
    "pool withdraw",
    "validator resolve",
    "worker init",
    "worker leave",
}
"""Commands whose effect can't be undone, or hits many nodes."""

NOT_SIMULATED = {
    "worker page": "changes nothing on the ledger",
    "shardcast origin": "a service",
    "shardcast relay": "a service",
    "work lease": "sends nothing",
    "work sign": "sends nothing",
    "pool invite": "sends nothing",
}


@cache
def _options() -> dict[str, frozenset[str]]:
    """Returns the options of every command by its words."""
    mount(app, PARTS, [], every=True)

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, frozenset[str]]]:
        below = getattr(command, "commands", None)
        if below is None:
            yield " ".join(words), frozenset(option for one in command.params for option in one.opts)
        else:
            for name, one in below.items():
                yield from walk(one, (*words, name))

    return dict(walk(typer.main.get_command(app), ()))


def test_every_command_prints_json_on_request() -> None:
    missing = {words for words, options in _options().items() if "--json" not in options}
    assert missing == set(WITHOUT_JSON)


def test_what_cannot_be_undone_asks_and_what_sends_transactions_can_be_simulated() -> None:
    found = _options()
    assert {words for words, options in found.items() if "--yes" in options} == ASKS
    assert all("--dry-run" in found[words] for words in ASKS)
    signs = {words for words, options in found.items() if "--key" in options}
    assert {words for words in signs if "--dry-run" not in found[words]} == set(NOT_SIMULATED)


def test_listings_of_what_changes_can_be_watched() -> None:
    watched = {words for words, options in _options().items() if "-w" in options}
    for words in ("pool nodes", "pool tasks", "pool progress", "pool rollouts", "worker status", "validator status"):
        assert words in watched
    assert all("--wide" in _options()[words] for words in watched)


# Exit codes


def test_the_exit_codes_are_on_the_help_page_and_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    shown = " ".join(run_muster("--help").out.split())
    for code, words in EXIT_CODES.items():
        assert f"| {code} | {words} |" in page
        assert f"{code}: {words}" in shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("a wrong value"), FAILED),
        (Unavailable("down"), TRY_LATER),
        (WrongUsage("--yes is missing"), USAGE),
        (MusterError("an error", retryable=True), TRY_LATER),
    ],
)
def test_an_error_has_one_exit_code_in_all_commands(error: MusterError, code: int) -> None:
    assert exit_code_of(error) == code
    assert code in EXIT_CODES


def test_a_doctor_exits_with_0_with_warnings_and_with_1_if_the_node_cannot_join() -> None:
    fine, limited, broken = ok("a", "b"), warning("a", "b", "c"), failure("a", "b", "c")
    assert [exit_code(found) for found in ([fine], [fine, limited], [limited, broken])] == [0, 0, FAILED]


def test_an_unknown_option_and_a_missing_confirmation_exit_with_2() -> None:
    for words in (["pool", "nodes", "--colour"], ["pool", "delete-webhook", "1"], ["ledger", "transfer", "x"]):
        done = subprocess.run(
            [sys.executable, "-m", "cli", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == USAGE, words
        assert done.stdout == ""
