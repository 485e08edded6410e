"""The operators' page is correct: its settings load, its metrics and settings exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from discovery.settings import DiscoverySettings
from orchestrator.settings import OrchestratorSettings
from protocol.clients import ServiceLocation
from protocol.http.tokens import TokenBook
from protocol.runtime.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Returns the page's settings files; the secrets they name are files in this folder."""
    for service in ("discovery", "orchestrator"):
        (tmp_path / f"{service}-chain-url").write_text("https://chain.example/key\n")
    written = []
    for number, text in enumerate(EXAMPLES):
        written.append(tmp_path / f"{number}.toml")
        written[-1].write_text(re.sub("/run/secrets/|/etc/muster/", f"{tmp_path}/", text))
    return written


def test_the_settings_files_shown_on_the_page_load(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CONFIG", raising=False)
    discovery = DiscoverySettings.load(file=files[0])
    orchestrator = OrchestratorSettings.load(file=files[1])
    assert discovery.chain_url.get_secret_value() == "https://chain.example/key"
    assert ServiceLocation.parse(orchestrator.discovery[0]).address is not None
    TokenBook(orchestrator.tokens)


def test_the_object_store_settings_shown_on_the_page_load(files: list[Path], tmp_path: Path) -> None:
    for secret in ("s3-access", "s3-secret"):
        (tmp_path / secret).write_text(f"{secret}\n")
    needed = {"public_url": "https://pool.example", "pool_id": 1, "deployment": "d.json"}
    shown = [path for path in files if "storage_" in path.read_text()]
    local, bucket = [OrchestratorSettings.load(file=path, flags=needed) for path in shown]
    assert (local.storage_bucket, local.storage_directory) == (None, Path("/var/lib/muster/objects"))
    assert bucket.storage_secret_key is not None
    assert bucket.storage_secret_key.get_secret_value() == "s3-secret"


STORAGE = ("upload_most_bytes", "uploads_per_hour", "upload_bytes_per_hour", "uploads_open", "upload_url_life_s")
CHECKS = ("download_url_life_s", "storage_checks_sha256", "storage_checks_absence")


@pytest.mark.parametrize(
    ("kind", "names"),
    [(DiscoverySettings, ("nodes_per_ip", "ip_requests_per_second")), (OrchestratorSettings, STORAGE + CHECKS)],
)
def test_settings_named_in_the_text_exist(kind: type[Settings], names: tuple[str, ...]) -> None:
    for name in names:
        assert name in PAGE
        assert name in kind.model_fields


def test_metrics_named_in_the_text_exist() -> None:
    root = Path(__file__).parents[2]
    code = "".join(
        path.read_text() for part in ("protocol", "discovery", "orchestrator") for path in (root / part).rglob("*.py")
    )
    for name in set(re.findall(r"`(muster_[a-z_]+)", PAGE)):
        assert f'"{name.removesuffix("_total")}"' in code, name
