"""Everything that a service writes is JSON, one object per line, also when it can't start or crashes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

STARTS = """
import sys
from cli.main import main

for line in sys.argv[1:]:
    sys.argv = ["muster", *line.split()]
    try:
        main()
    except SystemExit as end:
        sys.stderr.write(f'{{"exit": {end.code}}}' + chr(10))
    sys.stderr.flush()
"""
SERVICES = {
    "discovery serve": "deployment",
    "orchestrator serve": "deployment",
    "validator run": "deployment",
    "worker run": "deployment",
    "trainer run": "deployment",
    "shardcast origin --watch nowhere": "publisher",
    "shardcast relay --upstream http://127.0.0.1:1 --store s --public-url https://x": "--orchestrator",
}

SERVICE = """
import signal, sys, threading
import uvicorn
from cli.main import _end_with
from protocol.http.serving.service import create_service, run_service
from protocol.runtime.logs import configure_logs

configure_logs(level="DEBUG", service=True)
app = create_service("test", version="1")

@app.get("/crash")
async def crash() -> None:
    raise RuntimeError("first line\\nsecond line")

def ask(port):
    import http.client
    for path in ("/healthz", "/crash", "/missing"):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", path)
        connection.getresponse().read()
        connection.close()
    try:
        raise ValueError("in a thread")
    finally:
        signal.raise_signal(signal.SIGTERM)

def bound(port):
    threading.Thread(target=ask, args=(port,)).start()

try:
    run_service(app, port=int(sys.argv[1]), on_bound=bound)
except Exception as error:
    sys.exit(_end_with(error))
raise RuntimeError("at the end")
"""


def run(script: str, *arguments: str, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Runs a script; returns its exit status and everything that it wrote, parsed as JSON lines."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "HOME": str(folder), "XDG_DATA_HOME": str(folder)},
    )
    written = []
    for line in (done.stdout + done.stderr).splitlines():
        try:
            written.append(json.loads(line))
        except ValueError:
            pytest.fail(f"not JSON: {line!r}")
    return done.returncode, written


def test_a_service_that_can_not_start_says_why_in_json(tmp_path: Path) -> None:
    _, written = run(STARTS, *SERVICES, folder=tmp_path)
    ends = [line["exit"] for line in written if "exit" in line]
    errors = [line for line in written if line.get("event") == "ended"]
    assert ends == [1] * len(SERVICES)
    for error, word in zip(errors, SERVICES.values(), strict=True):
        assert word in error["detail"] + error["hint"]
        assert error["level"] == "error"
        assert error["code"]


def test_access_lines_and_tracebacks_are_json_lines(tmp_path: Path) -> None:
    code, written = run(SERVICE, "0", folder=tmp_path)
    assert code == 1
    assert [line["status"] for line in written if line["event"] == "answered"] == [200, 500, 404]
    traces = [line["exception"].splitlines()[-1] for line in written if "exception" in line]
    assert traces == ["second line", "ValueError: in a thread", "RuntimeError: at the end"]
    assert "uvicorn.error" in {line["logger"] for line in written}


def test_a_port_in_use_is_reported_in_json(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, written = run(SERVICE, str(taken.getsockname()[1]), folder=tmp_path)
    assert code == 1
    assert [line["code"] for line in written if line["event"] == "ended"] == ["cannot-listen"]
