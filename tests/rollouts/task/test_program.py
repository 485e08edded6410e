"""`python -m rollouts` where it can't work: one line that says why, and exit status 1."""

from __future__ import annotations

import pytest

from rollouts.task.program import main


def test_outside_a_container_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MUSTER_DATA_DIR", raising=False)
    assert main([]) == 1
    said = "".join(capsys.readouterr())
    assert "MUSTER_DATA_DIR is not set" in said
    assert "Traceback" not in said


def test_an_unknown_engine_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--engine", "abacus"])
    assert ended.value.code == 2
    assert "torch" in capsys.readouterr().err
