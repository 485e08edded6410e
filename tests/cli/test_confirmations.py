"""Services that read events warn at startup if the chain can revert events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

import discovery.cli
import orchestrator.cli
from ledger.artifacts import Contract
from ledger.confirmations import is_unconfirmed
from ledger.deployment import Deployment
from protocol.identifiers import ZERO_ADDRESS
from validator.service import open_validator
from validator.settings import ValidatorSettings


@pytest.mark.parametrize(
    ("chain_id", "confirmations", "expected"),
    [(1, 0, True), (8453, 0, True), (1, 1, False), (31337, 0, False), (1337, 0, False)],
)
def test_only_a_local_development_chain_needs_no_confirmations(
    chain_id: int, confirmations: int, expected: bool
) -> None:
    assert is_unconfirmed(chain_id=chain_id, confirmations=confirmations) is expected


def _discovery(config: Path) -> None:
    discovery.cli.serve(config=config, host=None, port=None, log_level="INFO")


def _orchestrator(config: Path) -> None:
    orchestrator.cli.serve(config=config, host=None, port=None, log_level="INFO")


def _validator(config: Path) -> None:
    open_validator(ValidatorSettings.load(file=config))


STARTS: dict[str, Callable[[Path], None]] = {
    "discovery": _discovery,
    "orchestrator": _orchestrator,
    "validator": _validator,
}


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Builds services without running them, and captures their logs."""
    for module in (discovery.cli, orchestrator.cli):
        monkeypatch.setattr(module, "run_service", lambda *_, **__: None)
        monkeypatch.setattr(module, "configure_logs", lambda **_: None)
    for number, name in enumerate(STARTS, 1):
        monkeypatch.setenv(f"MUSTER_{name.upper()}_KEY", f"{number:064x}")
    yield
    structlog.reset_defaults()


def _config(directory: Path, service: str, *, chain_id: int, confirmations: int) -> Path:
    deployment = directory / "deployment.json"
    Deployment(chain_id=chain_id, block=1, contracts=dict.fromkeys(Contract, ZERO_ADDRESS)).save(deployment)
    own: dict[str, Any] = {"pool_id": 1, "public_url": "http://127.0.0.1:1", "orchestrator": "http://127.0.0.1:1"}
    wanted = {
        "discovery": (),
        "orchestrator": ("pool_id", "public_url"),
        "validator": ("pool_id", "orchestrator"),
    }[service]
    lines = [f"[{service}]", f'deployment = "{deployment}"', f"confirmations = {confirmations}"]
    if service == "validator":
        lines.append(f'directory = "{directory / "validator"}"')
    lines += [f'{name} = "{own[name]}"' if isinstance(own[name], str) else f"{name} = {own[name]}" for name in wanted]
    path = directory / "muster.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.usefixtures("starting")
@pytest.mark.parametrize("service", sorted(STARTS))
@pytest.mark.parametrize(("chain_id", "confirmations", "warnings"), [(1, 0, 1), (1, 3, 0), (31337, 0, 0)])
def test_a_service_warns_once_about_zero_confirmations(
    tmp_path: Path, service: str, chain_id: int, confirmations: int, warnings: int
) -> None:
    config = _config(tmp_path, service, chain_id=chain_id, confirmations=confirmations)
    with capture_logs() as lines:
        STARTS[service](config)
    said = [line for line in lines if line["event"] == "unconfirmed-events"]
    assert len(said) == warnings
    assert all(line["log_level"] == "warning" and "confirmations" in line["hint"] for line in said)
