"""A real Prometheus, and the queries of the shipped dashboards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ledger.devchain import free_port

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "deploy/compose/grafana/dashboards").glob("*.json"))


def find_program(name: str) -> str:
    """Returns the path of `prometheus` or `promtool`; skips the test if it is missing."""
    path = os.pathsep.join([os.environ["PATH"], str(ROOT / ".tools/prometheus")])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"there is no {name} (deploy/setup/system.sh prometheus unpacks it)")
    return found


def dashboard_queries(dashboard: Mapping[str, Any], *, interval: str) -> dict[str, str]:
    """Returns each query of a dashboard by panel and letter, with Grafana's variable for the interval replaced."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", interval)
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def query(self, text: str) -> list[Any]:
        """Returns the series of an instant query."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": text}, trust_env=False).json()
        assert answer["status"] == "success", f"{text}: {answer}"
        found: list[Any] = answer["data"]["result"]
        return found


@contextmanager
def run_prometheus(folder: Path, jobs: Mapping[str, Sequence[int]]) -> Iterator[Prometheus]:
    """Runs a Prometheus that scrapes ports of this machine every second.

    Args:
        folder: Folder for its data and its log.
        jobs: Ports by name of the job.
    """
    program, port = find_program("prometheus"), free_port()
    scrapes = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{each}" for each in ports]}]}
        for job, ports in jobs.items()
    ]
    settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes}
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log
        )
    try:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while not _is_ready(url):
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()  # noqa: PT018
            time.sleep(0.1)
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).is_success
    except httpx.TransportError:
        return False
