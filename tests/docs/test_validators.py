"""The validator's page is correct: its settings load, and the names in it exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from validator.settings import ValidatorSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "validators.md").read_text()


def test_the_settings_file_shown_on_the_page_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CONFIG", raising=False)
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "chain-url").write_text("https://chain.example/key\n")
    path = tmp_path / "muster.toml"
    path.write_text(text.replace("/run/secrets/", f"{tmp_path}/"))
    settings = ValidatorSettings.load(file=path)
    assert (settings.pool_id, settings.confirmations, settings.pieces()) == (1, 3, 8)


def test_settings_metrics_and_error_classes_named_on_the_page_exist() -> None:
    table = PAGE[PAGE.index("| setting |") : PAGE.index("## Path of a submission")]
    for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE):
        for name in re.findall(r"`([a-z_]+)`", row):
            assert name in ValidatorSettings.model_fields, name
    code = "".join(path.read_text() for path in (ROOT / "validator").rglob("*.py"))
    for name in set(re.findall(r"`(muster_validator_[a-z_]+)`", PAGE)):
        assert f'"{name.removesuffix("_total")}"' in code, name
    sick = PAGE[PAGE.index("| `starting` |") : PAGE.index("A validator that takes no work")]
    everything = code + "".join(
        path.read_text() for part in ("protocol", "ledger", "rollouts") for path in (ROOT / part).rglob("*.py")
    )
    for row in re.findall(r"^\| (`.*?`) \|", sick, re.MULTILINE):
        for name in re.findall(r"`([a-z-]+)`", row):
            assert f'"{name}"' in everything, name
    parked = PAGE[PAGE.index("| code |") : PAGE.index("No person can slash")]
    for row in re.findall(r"^\| (`.*?`) \|", parked, re.MULTILINE):
        for name in re.findall(r"`([a-z-]+)`", row):
            assert f'"{name}"' in everything, name
