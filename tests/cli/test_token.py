"""`muster token`: tokens are created locally and stored only as a hash."""

from __future__ import annotations

import io
import sys

import pytest

from protocol.http.tokens import TokenSetting
from protocol.identity.scopes import Scope
from tests.kit.devnet import run_muster


def test_a_new_token_matches_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run_muster("token", "new", "--json").json()
    monkeypatch.setattr(sys, "stdin", io.StringIO(made["token"] + "\n"))
    again = run_muster("token", "hash").out.strip()
    for hashed in (made["hash"], again):
        assert TokenSetting(name="ann", scope=Scope.READ, hash=hashed).hash == hashed
        assert made["token"].split("_", 2)[2] not in hashed


def test_a_malformed_token_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hunter2\n"))
    said = run_muster("token", "hash")
    assert said.code == 1
    assert "hunter2" not in said.err
