"""The display of commands that take long."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from cli.output import progress
from cli.output.progress import working


class Terminal(io.StringIO):
    """Standard error of a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "recomputing" in text:
            self.shown.set()
        return super().write(text)


def use_terminal(patch: pytest.MonkeyPatch) -> Terminal:
    """Replaces standard error; a fixture can't, because pytest replaces it between fixtures and test."""
    made = Terminal()
    patch.setattr(sys, "stderr", made)
    patch.setenv("TERM", "xterm")
    return made


def test_a_long_block_shows_what_it_does_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    with working("recomputing"):
        assert terminal.shown.wait(30)
        with working("a part of it"):
            pass
    assert "a part" not in terminal.getvalue()
    ended = terminal.getvalue()
    assert ended.endswith("\x1b[2K"), "the line is erased"
    with pytest.raises(ValueError, match="wrong"), working("recomputing"):
        raise ValueError("wrong")
    assert not progress._shown.locked()


def test_a_short_block_and_a_pipe_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with working("recomputing"):
        pass
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with working("recomputing"):
        pass
    assert terminal.getvalue() == ""
