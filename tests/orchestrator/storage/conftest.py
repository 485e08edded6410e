"""Fixtures: a real OpenStack Swift with its S3 API, started once."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Swift:
    """Endpoint and credentials of the Swift server."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str = "pool"


@pytest.fixture(scope="session")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    """Runs a Swift for this session with one empty bucket."""
    python = Path(os.environ.get("MUSTER_SWIFT_PYTHON", ROOT / ".tools" / "swift" / "bin" / "python"))
    if not python.exists():
        pytest.skip("no OpenStack Swift: deploy/setup/swift.sh makes an environment with it")
    home = tmp_path_factory.mktemp("swift")
    secret = secrets.token_hex(16)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, ROOT / "deploy" / "setup" / "swift_server.py", home],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={"PATH": os.environ["PATH"], "SWIFT_SECRET": secret},
        )
    try:
        swift = Swift(f"http://127.0.0.1:{_port(home, process)}", "test:tester", secret)
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=swift.endpoint,
            region_name="us-east-1",
            aws_access_key_id=swift.access_key,
            aws_secret_access_key=swift.secret_key,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket=swift.bucket)
        client.close()
        yield swift
    finally:
        process.kill()
        process.wait(60)


def _port(home: Path, process: subprocess.Popen[bytes]) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if (home / "port").exists():
            return int((home / "port").read_text())
        time.sleep(0.02)
    pytest.fail(f"Swift did not start: {(home / 'log').read_text()[-3000:]}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that use Swift."""
    for item in items:
        if "swift" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.needs_swift)
